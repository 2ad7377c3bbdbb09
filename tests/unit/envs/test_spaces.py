"""Spaces become specs, and values cross that border without loss."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from shoal.envs.spaces import ActionAdapter, ObservationAdapter
from shoal.errors import UserError
from shoal.records import ArraySpec, BoxAction, DiscreteAction


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), ArraySpec("observation", "uint8", (8, 8, 3))),
        (spaces.Box(-1, 1, (4,), np.float32), ArraySpec("observation", "float32", (4,))),
        (spaces.Box(-1, 1, (4,), np.float64), ArraySpec("observation", "float32", (4,))),
        (spaces.Box(-9, 9, (), np.int16), ArraySpec("observation", "int16", ())),
        (spaces.Discrete(6), ArraySpec("observation", "int64", (), 6)),
        (spaces.Discrete(6, start=-2), ArraySpec("observation", "int64", (), 6)),
        (spaces.MultiBinary((2, 3)), ArraySpec("observation", "int8", (2, 3))),
        (spaces.MultiDiscrete([3, 5]), ArraySpec("observation", "int64", (2,), 5)),
        (spaces.MultiDiscrete([3, 5], start=[1, -1]), ArraySpec("observation", "int64", (2,), 5)),
    ],
)
def test_plain_observation(space: spaces.Space, spec: ArraySpec) -> None:
    adapter = ObservationAdapter(space)
    assert adapter.specs == (spec,)
    sample = batch_space(space, 3).sample()
    column = adapter.to_columns(sample)["observation"]
    assert column.dtype == spec.dtype
    assert column.shape == (3, *spec.shape)
    if spec.num_categories:
        assert ((column >= 0) & (column < spec.num_categories)).all()
    start = getattr(space, "start", 0)
    np.testing.assert_array_equal(column, (np.asarray(sample) - start).astype(spec.dtype))


def test_nested_observations_get_dotted_names_in_the_order_of_the_space() -> None:
    space = spaces.Dict(
        {
            "position": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(4, start=1)]),
            "camera": spaces.Box(0, 255, (5, 5), np.uint8),
        }
    )
    adapter = ObservationAdapter(space)
    assert [s.name for s in adapter.specs] == [
        "observation.camera",
        "observation.position.0",
        "observation.position.1",
    ]
    sample = batch_space(space, 6).sample()
    columns = adapter.to_columns(sample)
    assert list(columns) == [s.name for s in adapter.specs]
    np.testing.assert_array_equal(columns["observation.camera"], sample["camera"])
    np.testing.assert_array_equal(columns["observation.position.0"], sample["position"][0])
    np.testing.assert_array_equal(columns["observation.position.1"], sample["position"][1] - 1)


def test_an_observation_that_needs_no_conversion_is_not_copied() -> None:
    adapter = ObservationAdapter(spaces.Box(0, 255, (4, 4), np.uint8))
    frames = np.zeros((2, 4, 4), np.uint8)
    assert adapter.to_columns(frames)["observation"] is frames


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.OneOf([spaces.Discrete(2)]),
    ],
)
def test_unsupported_observation_is_named(space: spaces.Space) -> None:
    with pytest.raises(UserError, match=r"^observation: the space .* is not supported; supported are Box"):
        ObservationAdapter(space)
    nested = spaces.Dict(a=spaces.Discrete(2), b=spaces.Dict(c=space))
    with pytest.raises(UserError, match=r"^observation\.b\.c: the space"):
        ObservationAdapter(nested)


def test_observations_without_arrays_or_with_clashing_names_are_refused() -> None:
    with pytest.raises(UserError, match="holds no array"):
        ObservationAdapter(spaces.Dict({}))
    clash = OrderedDict({"a.b": spaces.Discrete(2), "a": spaces.Dict(b=spaces.Discrete(2))})
    with pytest.raises(UserError, match="same name"):
        ObservationAdapter(spaces.Dict(clash))


def test_discrete_actions_are_counted_from_the_start_of_the_space() -> None:
    adapter = ActionAdapter(spaces.Discrete(3, start=-1))
    assert adapter.spec == DiscreteAction(3)
    np.testing.assert_array_equal(adapter.to_env(np.array([0, 1, 2])), [-1, 0, 1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_box_actions_are_clipped_and_are_members_of_the_space(dtype: type) -> None:
    space = spaces.Box(np.array([-0.1, -np.inf], dtype), np.array([0.3, 2.0], dtype), dtype=dtype)
    adapter = ActionAdapter(space)
    assert isinstance(adapter.spec, BoxAction)
    assert adapter.spec.low == tuple(map(float, space.low))
    assert adapter.spec.high[1] == 2.0
    action = adapter.to_env(np.array([[-5, -5], [0.25, 1.5], [0.3, 9]], np.float32))
    assert action.dtype == dtype
    np.testing.assert_allclose(action, [[-0.1, -5], [0.25, 1.5], [0.3, 2.0]])
    assert all(row in space for row in action)


@pytest.mark.parametrize(
    "space",
    [spaces.MultiDiscrete([2, 2]), spaces.Box(0, 9, (2,), np.int32), spaces.Dict(a=spaces.Discrete(2))],
)
def test_unsupported_actions_are_named(space: spaces.Space) -> None:
    with pytest.raises(UserError, match=r"^action: the space .* is not supported; supported are Discrete"):
        ActionAdapter(space)
