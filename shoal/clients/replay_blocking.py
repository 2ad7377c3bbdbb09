"""Writers and samplers for ordinary, blocking code. Made by `ReplayClient`; users import them from there.

Each stands for one asynchronous object on the event loop of a `ClientLoop`, and may be used from any other
thread. Trajectories are compressed and decompressed in the caller's thread. No call waits for ever:
`timeout_s` is the client's unless the call names another one; `math.inf` is one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from shoal.clients.loop_thread import ClientLoop
from shoal.clients.replay_batches import BatchSampler, BatchStats
from shoal.clients.replay_columns import as_priorities, as_trajectories, as_unroll, stack_trajectories
from shoal.clients.replay_draw import ItemRefs, SampledBatch
from shoal.clients.replay_shard import PAYLOAD_OVERHEAD_BYTES, max_item_bytes
from shoal.clients.replay_writer import ReplayWriter, WriterStats
from shoal.config.connections import LimitsSection
from shoal.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError, fresh
from shoal.records import FIRST, Columns, Episode, Trajectory
from shoal.wire import decode_sequence, encode_trajectory

# Told once when it closes.
OnClose = Callable[["Writer | Sampler"], None]


class Writer:
    """Appends to one table. Made by `ReplayClient.writer`; a context manager that flushes at its end.

    What was appended is kept until a shard has acked it, and sent again as often as it takes.
    """

    def __init__(
        self,
        loop: ClientLoop,
        writer: ReplayWriter,
        table: str,
        kind: str,
        on_close: OnClose,
        limits: LimitsSection,
        *,
        sticky: bool,
        timeout_s: float,
    ) -> None:
        self._loop = loop
        self._writer = writer
        self._max_bytes = max_item_bytes(limits.max_message_bytes)
        self._table = table
        self._kind = kind
        self._on_close = on_close
        self._stream = 0 if sticky else None
        self._timeout_s = timeout_s
        # Unrolls of a sequence table continue each other: the next one begins where the last that was taken
        # ends. Of one that was not taken: what it was, and a step behind its end.
        self._turn = threading.Lock()
        self._next_step = 0
        self._given_up: tuple[list[bytes], int] | None = None
        self._num_taken = 0
        self._num_rejections_told = 0
        self._closed = False

    @property
    def stats(self) -> WriterStats:
        return self._writer.stats

    def append(
        self,
        columns: Mapping[str, ArrayLike],
        *,
        priorities: ArrayLike | None = None,
        episodes: Sequence[Episode] = (),
        continues: bool = True,
        timeout_s: float | None = None,
    ) -> None:
        """Take over an unroll: columns [T+1, E, ...], or [T+1, ...] for one environment.

        Row t < T: what was seen, what was done and what came of it; of row T only what was seen counts, and
        it is row 0 of the next unroll unless that says that it does not continue this one. Every unroll has
        a column `first`; a transition table also needs `reward`, `terminated` and `truncated`.
        `priorities`: [E] for a sequence table, [T, E] for a transition table (without E for one
        environment); none: the highest that the table has seen.

        Returns when there is room for it in the window of what is not acked. Raises UnavailableError if
        there is none in time, and InvalidArgumentError if this cannot be appended: then it was not taken and
        may be appended again. An InvalidArgumentError that tells of an earlier append, which a shard has
        rejected, says that this one was taken.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        with self._in_turn(timeout_s) as timeout_s:
            payloads: list[bytes] = []
            # A step that nobody made keeps what follows from being taken for a continuation.
            first_step = end = self._next_step + (not continues)
            try:
                arrays = as_unroll(columns)
                num_steps, num_envs = arrays[FIRST].shape[0] - 1, arrays[FIRST].shape[1]
                wanted = as_priorities(self._kind, priorities, num_steps, num_envs)
                payloads = self._encoded(arrays, episodes, first_step)
                if self._given_up is not None and payloads != self._given_up[0]:
                    # The one before is missing.
                    first_step = self._given_up[1]
                    payloads = self._encoded(arrays, episodes, first_step)
                self._check_size(payloads, wanted)
                end = first_step + num_steps
                num_rejected = self._loop.run(self._append(payloads, wanted, timeout_s))
            except BaseException:
                if self._kind == "sequence":
                    self._given_up = payloads, end + 1
                raise
            self._next_step, self._given_up = end, None
            num_before = self._num_taken
            self._num_taken += 1
        self._tell_rejections(num_rejected, f"the {num_before} before it", "this append was taken, but ")

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every append is acked.

        Raises UnavailableError if that takes too long, InvalidArgumentError if a shard has rejected any,
        and the UserError of one that refuses us.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        left = self._loop.run(self._writer.flush(timeout_s))
        self._tell_rejections(self._writer.stats.num_rejected, f"{self._num_taken} appends")
        if left and self._writer.failure is not None:
            raise fresh(self._writer.failure)
        if left:
            raise UnavailableError(
                f"{left} appends to table {self._table!r} are not acked after {timeout_s:g} s: "
                "are the shards there, with room?"
            )

    def close(self) -> None:
        """Drop the connections and whatever is not acked. May be called again."""
        # A client that is closed has closed this too.
        with contextlib.suppress(UnavailableError):
            self._loop.run(self.end())

    async def end(self) -> None:
        """`close`, on the event loop."""
        self._closed = True
        self._on_close(self)
        await self._writer.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._closed:
                self.flush()
        finally:
            self.close()

    @contextlib.contextmanager
    def _in_turn(self, timeout_s: float) -> Iterator[float]:
        """One unroll of a sequence after another; other kinds need no order. Yields the time that is left."""
        if self._kind != "sequence":
            yield timeout_s
            return
        began = time.monotonic()
        if not self._turn.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            raise UnavailableError(f"another thread's append has not been taken within {timeout_s:g} s")
        try:
            yield max(timeout_s - (time.monotonic() - began), 0.0)
        finally:
            self._turn.release()

    def _check_size(self, payloads: list[bytes], priorities: np.ndarray | None) -> None:
        """What does not fit into one message would end the connection, and with it every append."""
        num_bytes = sum(map(len, payloads)) + PAYLOAD_OVERHEAD_BYTES * len(payloads)
        if priorities is not None:
            num_bytes += 4 * priorities.size
        if num_bytes > self._max_bytes:
            raise InvalidArgumentError(
                f"unroll of {num_bytes} bytes once encoded is above {self._max_bytes} bytes "
                "(limits.max_message_bytes less headers): append fewer environments or steps at once, or "
                "raise it here and in the shards"
            )

    def _encoded(self, columns: Columns, episodes: Sequence[Episode], first_step: int) -> list[bytes]:
        trajectories = as_trajectories(self._kind, columns, episodes, first_step)
        return [encode_trajectory(trajectory) for trajectory in trajectories]

    async def _append(self, payloads: list[bytes], priorities: np.ndarray | None, timeout_s: float) -> int:
        """Returns how many were rejected of those before: it is too early for this one's answer."""
        await self._writer.append(payloads, priorities, self._stream, timeout_s)
        return self._writer.stats.num_rejected

    def _tell_rejections(self, num_rejected: int, of: str, first: str = "") -> None:
        """Each once, to whoever calls next."""
        new = num_rejected - self._num_rejections_told
        if new > 0:
            self._num_rejections_told = num_rejected
            raise InvalidArgumentError(
                f"{first}table {self._table!r} has rejected {new} of {of}, the last because: "
                f"{self._writer.stats.last_rejection}"
            )


class Batch:
    """Items of all shards with their importance weights. Made by `Sampler`.

    Their order is by shard: shuffle before splitting a batch.
    """

    def __init__(self, sampler: Sampler, sampled: SampledBatch, limits: LimitsSection) -> None:
        self._sampler = sampler
        self._sampled = sampled
        self._limits = limits

    def __len__(self) -> int:
        return len(self._sampled)

    @property
    def weights(self) -> np.ndarray:
        """float64 [B], the largest being 1."""
        return self._sampled.weights

    @property
    def keys(self) -> np.ndarray:
        """uint64 [B]: which item it is, within its shard."""
        return self._sampled.refs.keys

    @cached_property
    def columns(self) -> Columns:
        """Decoded: [B, ...] from a transition table, [T+1, B, ...] from a sequence table."""
        transitions = self._sampled.transitions
        return stack_trajectories(self.trajectories) if transitions is None else transitions.columns

    @cached_property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """Decoded, one for each item of a sequence table or a queue; columns are [T+1, E, ...]."""
        if self._sampled.transitions is not None:
            raise FailedPreconditionError("a transition table has no trajectories: use `columns`")
        return tuple(decode_sequence(item.payloads, self._limits) for item in self._sampled.items)

    def update_priorities(self, priorities: ArrayLike) -> None:
        """New priorities [B], before alpha. They are sent in the background: see `Sampler.flush`."""
        self._sampler.update_priorities(self._sampled, priorities)


class Sampler:
    """Batches for ever: `for batch in sampler`. Made by `ReplayClient.sampler`; a context manager."""

    def __init__(
        self,
        loop: ClientLoop,
        sampler: BatchSampler,
        limits: LimitsSection,
        on_close: OnClose,
        *,
        timeout_s: float,
    ) -> None:
        self._loop = loop
        self._sampler = sampler
        self._limits = limits
        self._on_close = on_close
        self._timeout_s = timeout_s

    @property
    def stats(self) -> BatchStats:
        return self._sampler.stats

    def next(self, timeout_s: float | None = None) -> Batch:
        """The next batch. Raises UnavailableError, saying what each shard does, if it takes too long."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return Batch(self, self._loop.run(self._sampler.next(timeout_s)), self._limits)

    def update_priorities(self, sampled: SampledBatch | ItemRefs, priorities: ArrayLike) -> None:
        """See `Batch.update_priorities`."""
        self._loop.run(self._sampler.update_priorities(sampled, np.asarray(priorities)))

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until the shards have all new priorities. Raises UnavailableError if that takes too long."""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        left = self._loop.run(self._sampler.flush(timeout_s))
        if left:
            raise UnavailableError(f"{left} priorities were not taken within {timeout_s:g} s")

    def close(self) -> None:
        """Drop the connections and the batches that wait. May be called again."""
        # A client that is closed has closed this too.
        with contextlib.suppress(UnavailableError):
            self._loop.run(self.end())

    async def end(self) -> None:
        """`close`, on the event loop."""
        self._on_close(self)
        await self._sampler.close()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return self.next()

    def __enter__(self) -> Sampler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False
