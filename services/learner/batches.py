"""What a batch holds, and the preallocated buffers that it lives in.

A `BatchSlot` is owned by one thread at a time; `services.learner.ring` hands it round. On CUDA its host side
is pinned, and the copy to the device runs on a side stream while the batch before is trained on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.algorithm import Batch
from shoal.errors import UserError
from shoal.records import (
    ACTION,
    FIRST,
    POLICY_VERSION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    ArraySpec,
    DiscreteAction,
    EnvSpec,
    Episode,
    Trajectory,
)


@dataclass(frozen=True)
class BatchLayout:
    """Columns [T+1, B, ...] of every batch, and so [T+1, E, ...] of every usable trajectory."""

    spec: EnvSpec
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

    @property
    def nbytes(self) -> int:
        per_row = sum(np.dtype(spec.dtype).itemsize * math.prod(spec.shape) for spec in self.columns())
        return (self.unroll_length + 1) * self.batch_envs * per_row

    def why_unusable(self, trajectory: Trajectory) -> str | None:
        """What about a trajectory does not fit, with what was expected; None if all does."""
        if trajectory.unroll_length != self.unroll_length:
            return (
                f"{trajectory.unroll_length} transitions per env instead of {self.unroll_length}: "
                "actor.unroll_length must be the same everywhere"
            )
        for spec in self.columns():
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
        action = self.spec.action
        if isinstance(action, DiscreteAction):
            chosen = trajectory.columns[ACTION]
            if chosen.size and (chosen.min() < 0 or chosen.max() >= action.n):
                return f"actions from {chosen.min()} to {chosen.max()} instead of 0 to {action.n - 1}"
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
        leading = (layout.unroll_length + 1, layout.batch_envs)
        pinned = device.type == "cuda"
        self._host: dict[str, Tensor] = {}
        for spec in layout.columns():
            tensor = torch.from_numpy(np.zeros((*leading, *spec.shape), spec.dtype))
            self._host[spec.name] = tensor.pin_memory() if pinned else tensor
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
            behaviour={spec.name: self._tensors[spec.name] for spec in layout.behaviour},
        )
        self.clear()

    def clear(self) -> None:
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
            array[:, self.num_filled : end] = trajectory.columns[name][:, start : start + count]
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

    def versions(self) -> np.ndarray:
        """Policy version of every transition, [num_transitions]."""
        versions = self.arrays[POLICY_VERSION][:-1]
        kept: np.ndarray = versions[~self.arrays[FIRST][1:]]
        return kept
