"""What a batch holds, and the preallocated buffers that it lives in.

A `BatchSlot` is owned by one thread at a time; `services.learner.ring` hands it round. On CUDA its host side
is pinned, and the copy to the device runs on a side stream while the batch before is trained on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.batch import Batch
from shoal.clients.replay_draw import ItemRefs
from shoal.errors import UserError
from shoal.records import (
    ACTION,
    DISCOUNT,
    FIRST,
    INITIAL,
    NEXT,
    POLICY_VERSION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    ActionSpec,
    ArraySpec,
    BoxAction,
    Columns,
    DiscreteAction,
    EnvSpec,
    Episode,
    Trajectory,
)

# What each environment of a batch counts.
_WEIGHT = ArraySpec("weight", "float32", ())


@dataclass(frozen=True)
class BatchLayout:
    """Columns [T+1, B, ...] of every batch, and so [T+1, E, ...] of every usable trajectory.

    Of n-step transitions T is 1: row 0 is where they begin, row 1 has the observation that they lead to, and
    `discount` is one column more.
    """

    spec: EnvSpec
    # What the policy remembers: columns `initial.<name>` [1, E, ...] of a trajectory, [B, ...] of a batch.
    state: tuple[ArraySpec, ...]
    behaviour: tuple[ArraySpec, ...]
    unroll_length: int
    batch_envs: int
    transitions: bool = False

    def columns(self) -> tuple[ArraySpec, ...]:
        discount = (ArraySpec(DISCOUNT, "float32", ()),) if self.transitions else ()
        return (
            *self.spec.observation,
            self.spec.action.array_spec(),
            ArraySpec(REWARD, "float32", ()),
            ArraySpec(TERMINATED, "bool", ()),
            ArraySpec(TRUNCATED, "bool", ()),
            ArraySpec(FIRST, "bool", ()),
            ArraySpec(POLICY_VERSION, "int64", ()),
            *self.behaviour,
            *discount,
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
        specs = (*self.columns(), *self.initial())
        problem = _why_other_columns(specs, trajectory.columns, num_leading=2)
        return problem or _why_out_of_range(self.spec.action, trajectory.columns[ACTION])

    def why_unusable_transitions(self, columns: Columns) -> str | None:
        """The same of the columns [B, ...] of transitions."""
        problem = _why_other_columns(self._of_transitions, columns, num_leading=1)
        return problem or _why_out_of_range(self.spec.action, columns[ACTION][np.newaxis])

    @cached_property
    def _of_transitions(self) -> tuple[ArraySpec, ...]:
        """What a transition has: two observations, and what is of its first step or of all together."""
        others = {ACTION, REWARD, POLICY_VERSION, DISCOUNT, *(spec.name for spec in self.behaviour)}
        return (
            *self.spec.observation,
            *(replace(spec, name=NEXT + spec.name) for spec in self.spec.observation),
            *(spec for spec in self.columns() if spec.name in others),
        )


def _why_other_columns(specs: Iterable[ArraySpec], columns: Columns, num_leading: int) -> str | None:
    for spec in specs:
        array = columns.get(spec.name)
        if array is None:
            return f"no column {spec.name!r} among {', '.join(columns)}"
        shape = array.shape[num_leading:]
        if array.dtype != spec.dtype or shape != spec.shape:
            return (
                f"column {spec.name!r} is {array.dtype}{list(shape)} instead of "
                f"{spec.dtype}{list(spec.shape)}"
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"column {spec.name!r} holds NaN or infinity"
    return None


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
        self.length = layout.unroll_length
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
            discount_SB=self._tensors.get(DISCOUNT),
        )
        self.clear()

    def clear(self) -> None:
        self.arrays[_WEIGHT.name].fill(1.0)
        self.num_filled = 0
        self.num_transitions = 0
        # Environment steps that this batch tells of: those in it, or what came into a sampled table.
        self.env_steps = 0
        self.episodes: list[Episode] = []
        # Where the first `num_filled` came from, if they can get new priorities.
        self.refs: ItemRefs | None = None

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
        self._filled_up_to(end)
        self.env_steps = self.num_transitions

    def fill_sequences(self, trajectories: Sequence[Trajectory], weights: np.ndarray) -> None:
        """All that the batch gets, each of one environment. What stays empty counts nothing."""
        end = len(trajectories)
        for name, array in self.arrays.items():
            if name == _WEIGHT.name:
                continue
            given = [trajectory.columns[name] for trajectory in trajectories]
            into = array[np.newaxis, :end] if name.startswith(INITIAL) else array[:, :end]
            np.concatenate(given, axis=1, out=into)
        self._weigh(weights)
        self._filled_up_to(end)

    def fill_transitions(self, columns: Columns, weights: np.ndarray) -> None:
        """All that the batch gets, as `Transitions` has them."""
        end = len(weights)
        # Rows of no observation, and flags of ends, stay as they were made: zero.
        for name, array in self.arrays.items():
            if name == _WEIGHT.name:
                continue
            if name in columns:
                array[0, :end] = columns[name]
            if (after := columns.get(NEXT + name)) is not None:
                array[1, :end] = after
        self._weigh(weights)
        self._filled_up_to(end)

    def _weigh(self, weights: np.ndarray) -> None:
        array = self.arrays[_WEIGHT.name]
        array[: len(weights)] = weights
        array[len(weights) :] = 0.0

    def _filled_up_to(self, end: int) -> None:
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
        versions = self.arrays[POLICY_VERSION][:-1, : self.num_filled]
        kept: np.ndarray = versions[~self.arrays[FIRST][1:, : self.num_filled]]
        return kept
