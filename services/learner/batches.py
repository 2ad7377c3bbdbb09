"""What a batch holds, and the preallocated buffers that it lives in.

A `BatchSlot` is owned by one thread at a time; `services.learner.ring` hands it round. On CUDA its host side
is pinned, and the copy to the device runs on a side stream while the batch before is trained on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.batch import Batch
from shoal.errors import UserError
from shoal.records import (
    ACTION,
    FIRST,
    INITIAL,
    POLICY_VERSION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    ActionSpec,
    ArraySpec,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    Episode,
    Trajectory,
)

# What each environment of a batch counts.
_WEIGHT = ArraySpec("weight", "float32", ())


@dataclass(frozen=True)
class BatchLayout:
    """Columns [T+1, B, ...] of every batch, and so [T+1, E, ...] of every usable trajectory."""

    spec: EnvSpec
    # What the policy remembers: columns `initial.<name>` [1, E, ...] of a trajectory, [B, ...] of a batch.
    state: tuple[ArraySpec, ...]
    behaviour: tuple[ArraySpec, ...]
    unroll_length: int
    batch_envs: int

    def columns(self) -> tuple[ArraySpec, ...]:
        return (
            *self.spec.observation,
            self.spec.action.array_spec(),
            ArraySpec(REWARD, "float32", ()),
            ArraySpec(TERMINATED, "bool", ()),
            ArraySpec(TRUNCATED, "bool", ()),
            ArraySpec(FIRST, "bool", ()),
            ArraySpec(POLICY_VERSION, "int64", ()),
            *self.behaviour,
        )

    def initial(self) -> tuple[ArraySpec, ...]:
        """The states, by the names of their columns in a trajectory."""
        return tuple(replace(spec, name=INITIAL + spec.name) for spec in self.state)

    @property
    def nbytes(self) -> int:
        per_env = (self.unroll_length + 1) * _nbytes(self.columns()) + _nbytes((*self.initial(), _WEIGHT))
        return self.batch_envs * per_env

    def why_unusable(self, trajectory: Trajectory) -> str | None:
        """What about a trajectory does not fit, with what was expected; None if all does."""
        if trajectory.unroll_length != self.unroll_length:
            return (
                f"{trajectory.unroll_length} transitions per env instead of {self.unroll_length}: "
                "actor.unroll_length must be the same everywhere"
            )
        for spec in (*self.columns(), *self.initial()):
            array = trajectory.columns.get(spec.name)
            if array is None:
                held = ", ".join(trajectory.columns)
                return f"no column {spec.name!r} among {held}"
            if array.dtype != spec.dtype or array.shape[2:] != spec.shape:
                return (
                    f"column {spec.name!r} is {array.dtype}{list(array.shape[2:])} instead of "
                    f"{spec.dtype}{list(spec.shape)}"
                )
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                return f"column {spec.name!r} holds NaN or infinity"
        return _why_out_of_range(self.spec.action, trajectory.columns[ACTION])


def _nbytes(specs: Iterable[ArraySpec]) -> int:
    return sum(np.dtype(spec.dtype).itemsize * math.prod(spec.shape) for spec in specs)


def _why_out_of_range(action: ActionSpec, chosen: np.ndarray) -> str | None:
    """Of actions that are numbers of something; others may be any."""
    if isinstance(action, BoxAction) or not chosen.size:
        return None
    if isinstance(action, DiscreteAction):
        if chosen.min() < 0 or chosen.max() >= action.n:
            return f"actions from {chosen.min()} to {chosen.max()} instead of 0 to {action.n - 1}"
        return None
    low, high = chosen.min((0, 1)), chosen.max((0, 1))
    if (low < 0).any() or (high >= action.nvec).any():
        most = [n - 1 for n in action.nvec]
        return f"actions from {low.tolist()} to {high.tolist()} instead of 0 to {most}"
    return None


def make_slots(layout: BatchLayout, device: torch.device, count: int) -> list[BatchSlot]:
    """Allocate them all. UserError if the memory is not there."""
    try:
        return [BatchSlot(layout, device) for _ in range(count)]
    except (MemoryError, ValueError, RuntimeError) as error:
        raise UserError(
            f"cannot allocate {count} batches of {layout.nbytes} bytes ({error}): lower learner.batch_envs, "
            "learner.prefetch_batches or actor.unroll_length"
        ) from None


class BatchSlot:
    """One preallocated batch: numpy views to fill, tensors to train on, and what is known about its data."""

    def __init__(self, layout: BatchLayout, device: torch.device) -> None:
        self._device = device
        self._size = layout.batch_envs
        pinned = device.type == "cuda"
        rows = (layout.unroll_length + 1, layout.batch_envs)
        shapes = [(spec, (*rows, *spec.shape)) for spec in layout.columns()]
        shapes += [(spec, (layout.batch_envs, *spec.shape)) for spec in layout.initial()]
        self._host: dict[str, Tensor] = {}
        shapes.append((_WEIGHT, (layout.batch_envs,)))
        for spec, shape in shapes:
            tensor = torch.from_numpy(np.zeros(shape, spec.dtype))
            self._host[spec.name] = tensor.pin_memory() if pinned else tensor
        # [T+1, B, ...] each, but those of the policy's state, [B, ...].
        self.arrays: dict[str, np.ndarray] = {name: tensor.numpy() for name, tensor in self._host.items()}
        self._tensors = (
            {name: torch.empty_like(tensor, device=device) for name, tensor in self._host.items()}
            if pinned
            else self._host
        )
        self._side_stream = torch.cuda.Stream(device) if pinned else None  # type: ignore[no-untyped-call]
        self._batch = Batch(
            observation={spec.name: self._tensors[spec.name] for spec in layout.spec.observation},
            action_SB=self._tensors[ACTION],
            reward_SB=self._tensors[REWARD],
            terminated_SB=self._tensors[TERMINATED],
            truncated_SB=self._tensors[TRUNCATED],
            first_SB=self._tensors[FIRST],
            weight_B=self._tensors[_WEIGHT.name],
            behaviour={spec.name: self._tensors[spec.name] for spec in layout.behaviour},
            state={spec.name: self._tensors[INITIAL + spec.name] for spec in layout.state},
        )
        self.clear()

    def clear(self) -> None:
        self.arrays[_WEIGHT.name].fill(1.0)
        self.num_filled = 0
        self.num_transitions = 0
        self.episodes: list[Episode] = []

    @property
    def room(self) -> int:
        return self._size - self.num_filled

    def fill(self, trajectory: Trajectory, start: int, count: int) -> None:
        """Append environments [start, start + count) of the trajectory."""
        end = self.num_filled + count
        for name, array in self.arrays.items():
            if name == _WEIGHT.name:
                continue
            given = trajectory.columns[name][:, start : start + count]
            if name.startswith(INITIAL):
                array[self.num_filled : end] = given[0]
            else:
                array[:, self.num_filled : end] = given
        first = self.arrays[FIRST][1:, self.num_filled : end]
        self.num_transitions += first.size - int(np.count_nonzero(first))
        self.num_filled = end

    def upload(self) -> None:
        """Start the copy to the device; the caller may be any thread."""
        if self._side_stream is not None:
            with torch.cuda.stream(self._side_stream):
                for name, tensor in self._host.items():
                    self._tensors[name].copy_(tensor, non_blocking=True)

    def on_device(self) -> Batch:
        """The batch, for work queued after this call on the caller's stream."""
        if self._side_stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._side_stream)
        return self._batch

    @property
    def oldest_version(self) -> int:
        """Of all steps that are in it; there must be some."""
        return int(self.arrays[POLICY_VERSION][:-1, : self.num_filled].min())

    def versions(self) -> np.ndarray:
        """Policy version of every transition, [num_transitions]."""
        versions = self.arrays[POLICY_VERSION][:-1]
        kept: np.ndarray = versions[~self.arrays[FIRST][1:]]
        return kept
