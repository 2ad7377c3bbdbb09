"""What stands beside an exported network: its inputs and outputs, what they mean, and where it came from.

For people and programs that run the file without shoal. Used by `shoal export` only.
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Sequence
from typing import Any

from shoal import __version__
from shoal.cli.saved_run import SavedRun
from shoal.policy.exporting import NEXT, PARAMS, ActingNetwork
from shoal.records import (
    ACTION,
    ACTION_MASK,
    FIRST,
    PREVIOUS_ACTION,
    PREVIOUS_REWARD,
    ActionSpec,
    ArraySpec,
    BoxAction,
    MultiDiscreteAction,
)
from shoal.spec_json import array_to_json, spec_to_json

_VERSIONS = {"torch": ("torch",), "onnx": ("torch", "onnx", "onnxscript", "onnxruntime")}
_CALLS = {
    "torch": "torch.export.load(file).module()(observation, first, state) with dicts of tensors by name; "
    "gives a dict by name",
    "onnx": "onnxruntime.InferenceSession(file).run(None, inputs) with a dict of arrays by name",
}
_START = "begin with states of zeros and first true; first is true with the first observation of each episode"
_PARAMS = {
    "q": "value of each action",
    "soft_actor_critic": "means, then log standard deviations, of the normals before tanh",
    "deterministic": "the action within [-1, 1]",
}


def describe(
    network: ActingNetwork, saved: SavedRun, policy: str, format: str, difference: float
) -> dict[str, Any]:
    """As JSON."""
    checkpoint, spec = saved.checkpoints[policy], network.policy.spec
    return {
        "format": format,
        "call": _CALLS[format],
        "start": _START,
        "inputs": [_described(array, _meaning_of_input(array, network)) for array in network.inputs],
        "outputs": [
            _described(array, _meaning_of_output(array, network, saved)) for array in network.outputs
        ],
        "largest_difference": difference,
        "policy": policy,
        "policy_section": saved.config.policy.model_dump(mode="json"),
        "env_spec": spec_to_json(spec),
        "checkpoint": str(checkpoint.path),
        "learner_steps": checkpoint.progress.get("learner_steps"),
        "env_steps": checkpoint.progress.get("env_steps"),
        "versions": {"shoal": __version__, "python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in _VERSIONS[format]},
    }


def arrays_line(arrays: Sequence[dict[str, Any]]) -> str:
    """Names, dtypes and shapes, for people."""
    return ", ".join(
        f"{array['name']} {array['dtype']}[{', '.join(map(str, array['shape']))}]" for array in arrays
    )


def _described(array: ArraySpec, meaning: str) -> dict[str, Any]:
    tree = array_to_json(array)
    return tree | {"shape": ["batch", *tree["shape"]], "meaning": meaning}


def _meaning_of_input(array: ArraySpec, network: ActingNetwork) -> str:
    if array.name == FIRST:
        return "the observation is the first of an episode"
    if array.name == ACTION_MASK:
        return "observation: 0 forbids an action; where all are 0 all are allowed"
    if array.name == PREVIOUS_ACTION:
        return _meaning_of_previous(network.policy.spec.action)
    if array.name == PREVIOUS_REWARD:
        return "sign(r) log(1 + |r|) of the reward r of the step before; 0 at the start of an episode"
    if array in network.policy.state:
        return f"state: {NEXT}{array.name} of the step before"
    return (
        f"observation: categories from 0 to {array.num_categories - 1}"
        if array.num_categories
        else "observation"
    )


def _meaning_of_previous(action: ActionSpec) -> str:
    if isinstance(action, BoxAction):
        return (
            "the action of the step before: elements with bounds scaled by them to [-1, 1], others clipped "
            "to +-10; 0 at the start of an episode"
        )
    return "the action of the step before, counted from 1; 0 at the start of an episode"


def _meaning_of_output(array: ArraySpec, network: ActingNetwork, saved: SavedRun) -> str:
    action = network.policy.spec.action
    if array.name == ACTION:
        return f"the best action of {action.describe()}" + (
            ", within the bounds" if isinstance(action, BoxAction) else ", counted from 0"
        )
    if array.name != PARAMS:
        return f"state: {array.name.removeprefix(NEXT)} of the next step"
    kind = saved.config.policy.kind
    if kind in _PARAMS:
        return _PARAMS[kind]
    if isinstance(action, BoxAction):
        return "means, then log standard deviations, of the normals before they are cut to the bounds"
    several = " of all elements, one element after another" if isinstance(action, MultiDiscreteAction) else ""
    masked = any(array.name == ACTION_MASK for array in network.policy.spec.observation)
    return f"logits{several}{', those of forbidden actions too' if masked else ''}"
