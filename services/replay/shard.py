"""One shard: named tables, what may enter them, and what was there before.

Called by the servicer and by the in-process client, on the event loop. Every payload is decoded once,
completely and within the limits, and compared with the table's signature before it is stored: a sampler can
decode whatever it meets. Decoding happens on the loop, one trajectory after another, so that it never takes
more memory than one append.

An append is acked once it is as safe as the table's durability promises. If its time is up while it is
stored but not that safe, it is answered PENDING, and its resend waits until the fate of the first is known.
TIMED_OUT means that it is not stored: it may go to another shard.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.replay.arrivals import Arrivals, SampleSession
from services.replay.dedup import Claim, Dedup
from services.replay.signature import Refused
from services.replay.stored_table import CLOSE_S, StoredTable
from services.replay.tables import DRAINING, MAX_PAYLOADS, Insertion, Ledger
from shoal.clients.replay_shard import (
    Ack,
    Append,
    Outcome,
    PrioritiesUpdated,
    Sampled,
    TableStats,
)
from shoal.config.connections import LimitsSection
from shoal.config.tree import ReplaySection
from shoal.errors import InvalidArgumentError, LimitError, NotFoundError, UnavailableError
from shoal.metrics import Clock
from shoal.records import ArraySpec, Life, Trajectory
from shoal.wire import decode_trajectory

log = logging.getLogger(__name__)

MAX_ID_CHARS = 128

OPENING = "replay shard is still reading its files: try again, or use another one"


class Shard:
    """A `ReplayBackend`: tables by name. `open` before use if any of them keeps files."""

    def __init__(
        self,
        settings: ReplaySection,
        limits: LimitsSection,
        directory: Path | None = None,
        clock: Clock = time.monotonic,
        make_dedup: Callable[[int], Dedup] = Dedup,
    ) -> None:
        """`directory` is needed if a table keeps files: it has one of its own in there, by its name."""
        self.tables: Mapping[str, StoredTable] = {
            name: StoredTable(
                name, table, limits, make_dedup(settings.max_lives), clock, directory and directory / name
            )
            for name, table in settings.tables.items()
        }
        self._limits = limits
        self._unavailable = OPENING if any(table.on_disk for table in self.tables.values()) else ""

    async def open(self) -> None:
        """Read what the tables' files hold; until then everything is refused as unavailable."""
        for table in self.tables.values():
            await table.open()
        if self._unavailable == OPENING:
            self._unavailable = ""

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write what the tables' files lack, as far as there is time. Stop inserts and samples first."""
        await asyncio.gather(*(table.close(timeout_s) for table in self.tables.values()))

    def check_append(self, life: Life, table: str, declared: Sequence[ArraySpec] = ()) -> None:
        if self._unavailable:
            raise UnavailableError(self._unavailable)
        for name, value in (("actor_id", life.actor_id), ("run_id", life.run_id)):
            if not 1 <= len(value) <= MAX_ID_CHARS:
                raise InvalidArgumentError(
                    f"{name} has {len(value)} characters: 1 to {MAX_ID_CHARS} are allowed"
                )
        into = self._table(table)
        if declared:
            into.signature.declared(declared)

    async def append(
        self,
        life: Life,
        table: str,
        append: Append,
        waited_s: float = 0.0,
        declared: Sequence[ArraySpec] = (),
    ) -> Ack:
        pending = await self.begin_append(life, table, append, waited_s, declared)
        return await pending.ack()

    async def begin_append(
        self,
        life: Life,
        table: str,
        append: Append,
        waited_s: float = 0.0,
        declared: Sequence[ArraySpec] = (),
    ) -> _PendingAck:
        into = self._table(table)
        ledger = into.table.ledger
        ledger.received_bytes += append.num_bytes
        now = asyncio.get_running_loop().time
        deadline = now() - waited_s + (append.timeout_s or into.table.insert_timeout_s)
        claim = await into.dedup.claim(life, append.sequence, deadline - now())
        if claim is Claim.DUPLICATE:
            ledger.num_duplicates += 1
            return _PendingAck(Ack(append.sequence, Outcome.DUPLICATE))
        if claim is Claim.BUSY:
            ledger.num_insert_timeouts += 1
            return _PendingAck(Ack(append.sequence, Outcome.PENDING))
        insertion = Insertion(life, append.sequence, append.payloads, (), append.priorities)
        try:
            self._check(into, insertion, declared)
            if not await into.has_room(deadline - now()):
                ledger.num_insert_timeouts += 1
                return _PendingAck(Ack(append.sequence, Outcome.TIMED_OUT))
            if not await into.table.insert(insertion, deadline - now()):
                return _PendingAck(Ack(append.sequence, Outcome.TIMED_OUT))
            return _PendingAck(Ack(append.sequence, Outcome.STORED), insertion.durable, deadline, ledger)
        except InvalidArgumentError as error:
            num_refused = max(1, len(append.payloads))
            ledger.num_inserted += num_refused
            ledger.num_rejected[_reason(error)] += num_refused
            return _PendingAck(Ack(append.sequence, Outcome.REJECTED, str(error)))
        finally:
            _settle(into.dedup, insertion)

    def open_sample(self) -> SampleSession:
        return SampleSession(self)

    def arrivals(self, table: str) -> Arrivals:
        return self._table(table).table.arrivals

    async def sample(
        self, table: str, num_items: int, timeout_s: float = 0.0, waited_s: float = 0.0
    ) -> Sampled:
        source = self._table(table)
        if num_items < 0:
            raise InvalidArgumentError(f"asked for {num_items} items: ask for none or more")
        timeout_s = (timeout_s or source.table.sample_timeout_s) - waited_s
        return await source.table.sample(num_items, source.max_sample_bytes, timeout_s)

    def update_priorities(self, table: str, keys: np.ndarray, priorities: np.ndarray) -> PrioritiesUpdated:
        if self._unavailable:
            # The last state on disk may be written already.
            raise UnavailableError(self._unavailable)
        target = self._table(table).table
        if keys.shape != priorities.shape or keys.ndim != 1:
            raise InvalidArgumentError(
                f"{keys.size} keys with {priorities.size} priorities: send one for each"
            )
        if keys.dtype != np.uint64 or priorities.dtype != np.float64:
            raise InvalidArgumentError(
                f"keys are {keys.dtype} and priorities {priorities.dtype}: uint64 and float64 are needed"
            )
        bad = ~(np.isfinite(priorities) & (priorities >= 0))
        if bad.any():
            raise InvalidArgumentError(f"priority {priorities[bad][0]} is not a finite number of at least 0")
        return target.update_priorities(keys, priorities)

    def stats(self) -> tuple[TableStats, ...]:
        if self._unavailable == OPENING:
            raise UnavailableError(OPENING)
        return tuple(table.stats() for table in self.tables.values())

    def stop_inserts(self) -> None:
        """From now on appends are refused as unavailable; samples go on."""
        self._unavailable = DRAINING
        for table in self.tables.values():
            table.table.stop_inserts()

    def stop_samples(self, *, on_disk_only: bool = False) -> None:
        """Of all tables, or only of those that keep files."""
        for table in self.tables.values():
            if table.on_disk or not on_disk_only:
                table.table.stop_samples()

    def _check(self, into: StoredTable, insertion: Insertion, declared: Sequence[ArraySpec]) -> None:
        """Decodes the trajectories. Raises InvalidArgumentError for what must not be stored."""
        num_payloads = len(insertion.payloads)
        if not 1 <= num_payloads <= MAX_PAYLOADS:
            raise LimitError(f"append of {num_payloads} trajectories: 1 to {MAX_PAYLOADS} are allowed")
        largest = max(map(len, insertion.payloads))
        if largest > into.max_payload_bytes:
            raise LimitError(
                f"trajectory of {largest} bytes is above the limit of {into.max_payload_bytes} bytes "
                "(limits.max_message_bytes less headers, for all unrolls of a sequence together): raise it "
                "or shorten the unrolls"
            )
        priorities = insertion.priorities
        if priorities is not None and not (np.isfinite(priorities) & (priorities >= 0)).all():
            raise Refused("a priority is not a finite number of at least 0", "not_finite")
        try:
            into.check(insertion, self._decode(insertion.payloads), declared)
        except InvalidArgumentError:
            raise
        except Exception:
            # Ending the stream would make the writer send the same append again, for ever.
            log.exception("cannot check an append of %d bytes", insertion.num_bytes)
            raise InvalidArgumentError("internal error while checking, see the shard's log") from None

    def _decode(self, payloads: Sequence[bytes]) -> Iterator[Trajectory]:
        """All of an append at once must not take more memory than one large trajectory may."""
        most = self._limits.max_trajectory_bytes
        num_bytes = 0
        for payload in payloads:
            trajectory = decode_trajectory(payload, self._limits)
            num_bytes += sum([array.nbytes for array in trajectory.columns.values()])
            if num_bytes > most:
                raise LimitError(
                    f"append of {len(payloads)} trajectories has more than {most} bytes once unpacked "
                    "(limits.max_trajectory_bytes): raise it or send fewer at once"
                )
            yield trajectory

    def _table(self, name: str) -> StoredTable:
        if self._unavailable == OPENING:
            raise UnavailableError(OPENING)
        try:
            return self.tables[name]
        except KeyError:
            names = ", ".join(self.tables)
            raise NotFoundError(f"no replay table {name!r} here: there are {names}") from None


@dataclass(frozen=True, slots=True)
class _PendingAck:
    """What to answer once `durable` is done, if it is in time."""

    answer: Ack
    durable: asyncio.Future[None] | None = None
    deadline: float = 0.0
    ledger: Ledger | None = None

    async def ack(self) -> Ack:
        if self.durable is None:
            return self.answer
        if await _done(self.durable, self.deadline - asyncio.get_running_loop().time()):
            return self.answer
        if self.ledger is not None:
            self.ledger.num_insert_timeouts += 1
        return Ack(self.answer.sequence, Outcome.PENDING)


def _reason(error: InvalidArgumentError) -> str:
    """Under which of REJECT_REASONS a refusal is counted."""
    if isinstance(error, Refused):
        return error.reason
    return "limit" if isinstance(error, LimitError) else "invalid"


async def _done(future: asyncio.Future[None], timeout_s: float) -> bool:
    """Wait for it without cancelling it; False if time was up first."""
    if not future.done() and timeout_s > 0:
        await asyncio.wait((future,), timeout=timeout_s)
    return future.done() and not future.cancelled() and future.exception() is None


def _settle(dedup: Dedup, insertion: Insertion) -> None:
    """End the claim now, or when it is known whether what was stored is safe.

    If that is never known, since the shard left before, the claim stays: a resend is then stored elsewhere.
    """
    life, sequence, durable = insertion.life, insertion.sequence, insertion.durable
    if insertion.first_key is not None:
        dedup.add(life, sequence)
    if insertion.first_key is None or durable is None:
        dedup.settle(life, sequence)
    elif durable.done():
        _settle_if_safe(dedup, life, sequence, durable)
    else:
        durable.add_done_callback(lambda done: _settle_if_safe(dedup, life, sequence, done))


def _settle_if_safe(dedup: Dedup, life: Life, sequence: int, durable: asyncio.Future[None]) -> None:
    if not durable.cancelled() and durable.exception() is None:
        dedup.settle(life, sequence)
