"""Whether an exported network does what the policy does: both play the same random steps, side by side.

Each goes on from its own memory, over episode starts, with one environment and with several. Used by
`shoal export` on the file as it was written. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from shoal.policy.exporting import NEXT, ActingNetwork, quiet
from shoal.records import ACTION_MASK, FIRST, ArraySpec

TOLERANCE = 1e-5

_NUM_STEPS = 6
_BATCHES = (1, 5)
_START_CHANCE = 0.3

Arrays = dict[str, Tensor]
# One step: observation, first and state to outputs.
Step = Callable[[Arrays, Tensor, Arrays], Arrays]


def open_torch(path: Path) -> Step:
    """The network in a file of `torch.export`, to be run here."""
    with quiet():
        module = torch.export.load(path).module()

    def step(observation: Arrays, first: Tensor, state: Arrays) -> Arrays:
        outputs: Arrays = module(observation, first, state)
        return outputs

    return step


def open_onnx(path: Path) -> Step:
    """The network in an ONNX file, to be run here by onnxruntime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def step(observation: Arrays, first: Tensor, state: Arrays) -> Arrays:
        inputs = {**observation, FIRST: first, **state}
        outputs = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
        return {name: torch.from_numpy(array) for name, array in zip(names, outputs, strict=True)}

    return step


def largest_difference(network: ActingNetwork, exported: Step) -> float:
    """Between any two numbers that should be the same, relative to those above 1; infinite if not even the
    names, shapes and dtypes are the same, or integers differ."""
    generator = torch.Generator().manual_seed(0)
    differences = [0.0]
    with torch.inference_mode():
        for num_envs in _BATCHES:
            _, _, ours = network.zeros(num_envs)
            theirs = ours
            for row in range(_NUM_STEPS):
                observation = {
                    array.name: _random(array, num_envs, generator)
                    for array in network.policy.spec.observation
                }
                first = torch.rand(num_envs, generator=generator) < (1.0 if row == 0 else _START_CHANCE)
                expected, found = network(observation, first, ours), exported(observation, first, theirs)
                differences.append(_difference(expected, found))
                if differences[-1] > TOLERANCE:
                    return differences[-1]
                ours, theirs = _states(expected), _states(found)
    return max(differences)


def _difference(expected: Arrays, found: Arrays) -> float:
    if expected.keys() != found.keys():
        return float("inf")
    largest = 0.0
    for name, ours in expected.items():
        theirs = found[name]
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return float("inf")
        if not ours.is_floating_point():
            largest = max(largest, 0.0 if torch.equal(ours, theirs) else float("inf"))
        elif not torch.equal(ours, theirs):
            off = ((ours - theirs).abs() / ours.abs().clamp(min=1.0)).max().item()
            # NaN is further away than anything.
            largest = max(largest, off if off == off else float("inf"))
    return largest


def _states(outputs: Arrays) -> Arrays:
    return {
        name.removeprefix(NEXT): tensor.clone() for name, tensor in outputs.items() if name.startswith(NEXT)
    }


def _random(array: ArraySpec, num_envs: int, generator: torch.Generator) -> Tensor:
    shape, dtype = (num_envs, *array.shape), getattr(torch, array.dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    top = array.num_categories or (256 if dtype == torch.uint8 else 2)
    drawn = torch.randint(0, top, shape, generator=generator)
    if array.name == ACTION_MASK:
        # Nothing allowed in the first row, everything in the last: whatever stands between.
        drawn[0], drawn[-1] = 0, 1
    return drawn.to(dtype)
