"""One shard: named tables, what may enter them, and what was there before.

Called by the servicer and by the in-process client, on the event loop. Every payload is decoded once,
completely and within the limits, before it is stored: a sampler can decode whatever it meets. The shard knows
no spec, so which columns there are besides `first`, their types and their values are the sampler's to check.
Decoding happens on the loop, one payload after another, so it never takes more memory than one trajectory.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

from services.replay.dedup import Claim, Dedup
from services.replay.queue_table import QueueTable
from services.replay.tables import DRAINING, Insertion, Table
from shoal.clients.replay import (
    RESPONSE_OVERHEAD_BYTES,
    Ack,
    Outcome,
    PrioritiesUpdated,
    Sampled,
    TableStats,
    max_item_bytes,
)
from shoal.config.tree import LimitsSection, ReplaySection
from shoal.errors import InvalidArgumentError, LimitError, NotFoundError, UnavailableError
from shoal.metrics import Clock
from shoal.records import Life
from shoal.wire import decode_trajectory

log = logging.getLogger(__name__)

# The class of each kind of table in the configuration.
TABLE_KINDS = {"queue": QueueTable}
MAX_ID_CHARS = 128


class Shard:
    """A `ReplayBackend`: tables by name, each with its own memory of repeats."""

    def __init__(
        self,
        settings: ReplaySection,
        limits: LimitsSection,
        clock: Clock = time.monotonic,
        make_dedup: Callable[[int], Dedup] = Dedup,
    ) -> None:
        self.tables: Mapping[str, Table] = {
            name: TABLE_KINDS[table.kind](name, table, clock) for name, table in settings.tables.items()
        }
        self._dedups = {name: make_dedup(settings.max_lives) for name in settings.tables}
        self._limits = limits
        self._max_sample_bytes = limits.max_message_bytes - RESPONSE_OVERHEAD_BYTES
        self._draining = False

    def check_append(self, life: Life, table: str) -> None:
        if self._draining:
            raise UnavailableError(DRAINING)
        for name, value in (("actor_id", life.actor_id), ("run_id", life.run_id)):
            if not 1 <= len(value) <= MAX_ID_CHARS:
                raise InvalidArgumentError(
                    f"{name} has {len(value)} characters: 1 to {MAX_ID_CHARS} are allowed"
                )
        self._table(table)

    async def append(
        self,
        life: Life,
        table: str,
        sequence: int,
        payload: bytes,
        timeout_s: float = 0.0,
        waited_s: float = 0.0,
    ) -> Ack:
        into, dedup = self._table(table), self._dedups[table]
        ledger = into.ledger
        ledger.received_bytes += len(payload)
        started = asyncio.get_running_loop().time() - waited_s
        timeout_s = timeout_s or into.insert_timeout_s
        claim = await dedup.claim(life, sequence, timeout_s - waited_s)
        if claim is Claim.DUPLICATE:
            ledger.num_duplicates += 1
            return Ack(sequence, Outcome.DUPLICATE)
        if claim is Claim.BUSY:
            ledger.num_insert_timeouts += 1
            return Ack(sequence, Outcome.TIMED_OUT)
        insertion = Insertion(life, sequence, payload)
        try:
            self._check(payload)
            waited_s = asyncio.get_running_loop().time() - started
            stored = await into.insert(insertion, timeout_s - waited_s)
        except InvalidArgumentError as error:
            ledger.num_rejected["limit" if isinstance(error, LimitError) else "invalid"] += 1
            return Ack(sequence, Outcome.REJECTED, str(error))
        finally:
            dedup.settle(life, sequence, stored=insertion.key is not None)
        return Ack(sequence, Outcome.STORED if stored else Outcome.TIMED_OUT)

    async def sample(
        self, table: str, num_items: int, timeout_s: float = 0.0, waited_s: float = 0.0
    ) -> Sampled:
        source = self._table(table)
        if num_items < 1:
            raise InvalidArgumentError(f"asked for {num_items} items: ask for at least 1")
        timeout_s = (timeout_s or source.sample_timeout_s) - waited_s
        items = await source.sample(num_items, self._max_sample_bytes, timeout_s)
        return Sampled(items, source.num_items, source.num_bytes, source.priority_mass)

    def update_priorities(
        self, table: str, keys: Sequence[int], priorities: Sequence[float]
    ) -> PrioritiesUpdated:
        target = self._table(table)
        if len(keys) != len(priorities):
            raise InvalidArgumentError(
                f"{len(keys)} keys with {len(priorities)} priorities: send one for each"
            )
        for priority in priorities:
            if not (math.isfinite(priority) and priority >= 0):
                raise InvalidArgumentError(f"priority {priority} is not a finite number of at least 0")
        return target.update_priorities(keys, priorities)

    def stats(self) -> tuple[TableStats, ...]:
        return tuple(table.stats() for table in self.tables.values())

    def stop_inserts(self) -> None:
        """From now on appends are refused as unavailable; samples go on."""
        self._draining = True
        for table in self.tables.values():
            table.stop_inserts()

    def stop_samples(self) -> None:
        for table in self.tables.values():
            table.stop_samples()

    @property
    def num_items(self) -> int:
        return sum(table.num_items for table in self.tables.values())

    def _check(self, payload: bytes) -> None:
        """Raises InvalidArgumentError, or LimitError, for what must not be stored."""
        most = max_item_bytes(self._limits.max_message_bytes)
        if len(payload) > most:
            raise LimitError(
                f"item of {len(payload)} bytes is above the limit of {most} bytes "
                "(limits.max_message_bytes less headers): raise it or shorten the unrolls"
            )
        try:
            decode_trajectory(payload, self._limits)
        except InvalidArgumentError:
            raise
        except Exception:
            # Ending the stream would make the writer send the same item again, for ever.
            log.exception("cannot check an item of %d bytes", len(payload))
            raise InvalidArgumentError("internal error while checking, see the shard's log") from None

    def _table(self, name: str) -> Table:
        try:
            return self.tables[name]
        except KeyError:
            names = ", ".join(self.tables)
            raise NotFoundError(f"no replay table {name!r} here: there are {names}") from None
