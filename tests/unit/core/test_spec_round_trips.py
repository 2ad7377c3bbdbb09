"""Any spec comes back from protocol buffers and from JSON as it was, to the hash."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from shoal.codec import DTYPES
from shoal.records import ActionSpec, ArraySpec, BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction
from shoal.spec_json import spec_from_json, spec_to_json
from shoal.v1 import spec_pb2
from shoal.wire import spec_from_proto, spec_to_proto

SHAPES = st.lists(st.integers(0, 9), max_size=4).map(tuple)
BOUNDS = st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)).map(sorted)


@st.composite
def arrays(draw: st.DrawFn, name: str) -> ArraySpec:
    low, high = draw(BOUNDS.filter(lambda pair: pair[0] < math.inf and pair[1] > -math.inf))
    return ArraySpec(
        name, draw(st.sampled_from(sorted(DTYPES))), draw(SHAPES), draw(st.integers(0, 1 << 40)), low, high
    )


@st.composite
def actions(draw: st.DrawFn) -> ActionSpec:
    num = draw(st.integers(1, 4))
    kind = draw(st.sampled_from(["discrete", "multi_discrete", "box"]))
    if kind == "discrete":
        return DiscreteAction(num)
    if kind == "multi_discrete":
        return MultiDiscreteAction(tuple(draw(st.lists(st.integers(1, 9), min_size=num, max_size=num))))
    bounds = draw(st.lists(BOUNDS, min_size=num, max_size=num))
    lows = tuple(-math.inf if math.isinf(low) else low for low, _ in bounds)
    highs = tuple(math.inf if math.isinf(high) else high for _, high in bounds)
    return BoxAction((num,), lows, highs)


@st.composite
def specs(draw: st.DrawFn) -> EnvSpec:
    names = draw(st.lists(st.text(max_size=9), min_size=1, max_size=3, unique=True))
    return EnvSpec(draw(st.text(max_size=9)), tuple(draw(arrays(name)) for name in names), draw(actions()))


@given(specs())
def test_through_protocol_buffers(spec: EnvSpec) -> None:
    back = spec_from_proto(spec_pb2.EnvSpec.FromString(spec_to_proto(spec).SerializeToString()))
    assert (back, back.hash()) == (spec, spec.hash())


@given(specs())
def test_through_json(spec: EnvSpec) -> None:
    back = spec_from_json(json.loads(json.dumps(spec_to_json(spec), allow_nan=False)))
    assert (back, back.hash()) == (spec, spec.hash())


@given(specs())
def test_a_peer_that_knows_no_bounds_sends_the_spec_without_them(spec: EnvSpec) -> None:
    message = spec_to_proto(spec)
    for array in message.observation:
        array.ClearField("low")
        array.ClearField("high")
    assert spec_from_proto(message) == spec.without_bounds()
