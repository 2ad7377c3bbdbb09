"""The memory in which an actor and its environment workers meet: actions one way, steps the other.

One block holds the arrays of all slots of all policies, so that what the workers wrote is what the actor's
caller reads, in one array per column and without a copy; each worker has its own rows. The block is a file
without a name: it is gone with the last process that has it mapped, however that ends, and the small
/dev/shm of a container does not bound it. Who may touch which rows when is the business of
`shoal.envs.workers` and `shoal.envs.worker_process`.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from shoal.envs.batch import EnvStep, Slots

# A cache line: no two arrays share one, and every dtype is aligned.
_ALIGNMENT = 64


@dataclass(frozen=True)
class Rows:
    """A worker's part of the slots of one policy."""

    start: int
    num: int


@dataclass(frozen=True)
class SlotArrays:
    """Of one policy, or of one worker's rows of it."""

    action: np.ndarray
    step: EnvStep

    def part(self, rows: Rows) -> SlotArrays:
        """Views of these rows."""
        part = slice(rows.start, rows.start + rows.num)
        step = self.step
        return SlotArrays(
            self.action[part],
            EnvStep(
                {name: array[part] for name, array in step.observation.items()},
                step.reward[part],
                step.terminated[part],
                step.truncated[part],
                step.first[part],
                step.done[part],
            ),
        )

    def show(self, step: EnvStep) -> None:
        """Copies a step into these arrays."""
        for name, array in self.step.observation.items():
            array[...] = step.observation[name]
        self.step.reward[...] = step.reward
        self.step.terminated[...] = step.terminated
        self.step.truncated[...] = step.truncated
        self.step.first[...] = step.first
        self.step.done[...] = step.done


def create_block(slots: Mapping[str, Slots]) -> int:
    """A file descriptor of zeroed memory for these slots; to be closed by the caller."""
    num_bytes = sum(_padded(dtype, shape) for one in slots.values() for dtype, shape in _arrays(one))
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("shoal-envs")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.truncate(fd, max(num_bytes, 1))
    return fd


def map_block(fd: int, slots: Mapping[str, Slots]) -> dict[str, SlotArrays]:
    """The arrays in it, by policy. The descriptor may be closed; the memory lives as long as the arrays."""
    memory = mmap.mmap(fd, 0)
    offset = 0
    mapped = {}
    for policy, one in slots.items():
        arrays = []
        for dtype, shape in _arrays(one):
            arrays.append(np.ndarray(shape, dtype, memory, offset))
            offset += _padded(dtype, shape)
        names = [spec.name for spec in one.spec.observation]
        action, *rest = arrays
        columns = dict(zip(names, rest, strict=False))
        reward, terminated, truncated, first, done = rest[len(names) :]
        mapped[policy] = SlotArrays(action, EnvStep(columns, reward, terminated, truncated, first, done))
    return mapped


def _arrays(slots: Slots) -> Iterator[tuple[np.dtype[np.generic], tuple[int, ...]]]:
    """In the order of `SlotArrays` and `EnvStep`."""
    for spec in (slots.spec.action.array_spec(), *slots.spec.observation):
        yield np.dtype(spec.dtype), (slots.num, *spec.shape)
    yield np.dtype(np.float32), (slots.num,)
    for _ in range(4):
        yield np.dtype(np.bool_), (slots.num,)


def _padded(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> int:
    num_bytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
