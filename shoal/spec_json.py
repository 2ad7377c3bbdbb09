"""The environment's spec as JSON: in checkpoints, in exported networks, and from environment workers.

Strict JSON, which has no infinity: an unbounded side of a Box action is null, and bounds of
observations are left out where there are none. Stateless; any thread.
"""

from __future__ import annotations

import math
from typing import Any

from shoal.records import (
    ActionSpec,
    ArraySpec,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    MultiDiscreteAction,
)


def spec_to_json(spec: EnvSpec) -> dict[str, Any]:
    return {
        "env_id": spec.env_id,
        "observation": [array_to_json(array) for array in spec.observation],
        "action": action_to_json(spec.action),
    }


def array_to_json(array: ArraySpec) -> dict[str, Any]:
    tree: dict[str, Any] = {"name": array.name, "dtype": array.dtype, "shape": list(array.shape)}
    if array.num_categories:
        tree["num_categories"] = array.num_categories
    bounds = {"low": array.low, "high": array.high}
    return tree | {name: bound for name, bound in bounds.items() if math.isfinite(bound)}


def action_to_json(action: ActionSpec) -> dict[str, Any]:
    if isinstance(action, DiscreteAction):
        return {"kind": "discrete", "n": action.n}
    if isinstance(action, MultiDiscreteAction):
        return {"kind": "multi_discrete", "nvec": list(action.nvec)}
    return {
        "kind": "box",
        "shape": list(action.shape),
        "low": [low if math.isfinite(low) else None for low in action.low],
        "high": [high if math.isfinite(high) else None for high in action.high],
    }


def spec_from_json(tree: dict[str, Any]) -> EnvSpec:
    """Raises KeyError, TypeError or ValueError if it was written by something else."""
    return EnvSpec(
        env_id=str(tree["env_id"]),
        observation=tuple(_array_from_json(array) for array in tree["observation"]),
        action=_action_from_json(tree["action"]),
    )


def _array_from_json(tree: dict[str, Any]) -> ArraySpec:
    return ArraySpec(
        str(tree["name"]),
        str(tree["dtype"]),
        _ints(tree["shape"]),
        int(tree.get("num_categories", 0)),
        float(tree.get("low", -math.inf)),
        float(tree.get("high", math.inf)),
    )


def _action_from_json(tree: dict[str, Any]) -> ActionSpec:
    kind = tree["kind"]
    if kind == "discrete":
        return DiscreteAction(int(tree["n"]))
    if kind == "multi_discrete":
        return MultiDiscreteAction(_ints(tree["nvec"]))
    if kind == "box":
        return BoxAction(
            _ints(tree["shape"]),
            tuple(-math.inf if low is None else float(low) for low in tree["low"]),
            tuple(math.inf if high is None else float(high) for high in tree["high"]),
        )
    raise ValueError(f"an action of kind {kind!r}")


def _ints(values: list[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
