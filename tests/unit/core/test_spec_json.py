"""Specs as JSON: every kind comes back as it was, to the hash, from JSON that any parser reads."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from shoal.records import (
    ActionSpec,
    ArraySpec,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    MultiDiscreteAction,
)
from shoal.spec_json import spec_from_json, spec_to_json

OBSERVATION = (
    ArraySpec("observation.frame", "uint8", (84, 84)),
    ArraySpec("observation.kind", "int64", (), num_categories=5),
)


@pytest.mark.parametrize(
    "action",
    [
        DiscreteAction(3),
        MultiDiscreteAction((3, 2, 5)),
        BoxAction((2,), (-1 / 3, -math.inf), (math.inf, 0.1)),
        BoxAction((), (-2.0,), (2.0,)),
    ],
    ids=lambda action: type(action).__name__,
)
def test_it_comes_back(action: ActionSpec) -> None:
    spec = EnvSpec("Test-v0", OBSERVATION, action)
    text = json.dumps(spec_to_json(spec), allow_nan=False)
    found = spec_from_json(json.loads(text))
    assert found == spec
    assert found.hash() == spec.hash()


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"env_id": "x", "observation": 5, "action": {"kind": "discrete", "n": 2}},
        {"env_id": "x", "observation": [{"name": "a"}], "action": {"kind": "discrete", "n": 2}},
        {
            "env_id": "x",
            "observation": [{"name": "a", "dtype": "int8", "shape": [], "low": 2, "high": 1}],
            "action": {"kind": "discrete", "n": 2},
        },
        {"env_id": "x", "observation": [], "action": {"kind": "text"}},
        {"env_id": "x", "observation": [], "action": {"kind": "discrete", "n": "many"}},
    ],
)
def test_anything_else_is_refused(tree: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        spec_from_json(tree)
