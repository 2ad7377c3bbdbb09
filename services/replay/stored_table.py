"""One table with all that belongs to it: its signature, its memory of repeats, its files if it keeps any.

Made and used by `Shard`, on the event loop; only recovery runs in a thread, before anything else touches the
table. To its table it is the sink of events: it passes them on to the journal, which begins after recovery.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from services.replay.dedup import Dedup
from services.replay.queue_table import QueueTable
from services.replay.ring_table import RingTable
from services.replay.sequence_table import SequenceTable
from services.replay.signature import Signature
from services.replay.storage.files import Files, RealFiles
from services.replay.storage.journal import Journal
from services.replay.storage.payload_store import PayloadStore
from services.replay.storage.recovery import RecoveryReport, recover
from services.replay.storage.snapshots import Snapshots
from services.replay.storage.threads import in_thread
from services.replay.tables import EventSink, Insertion, NoJournal, Table
from services.replay.transition_table import TransitionTable
from shoal.clients.replay_shard import RESPONSE_OVERHEAD_BYTES, TableStats, max_item_bytes
from shoal.config.connections import LimitsSection
from shoal.config.tables import AnyTable, SampledTable
from shoal.config.tables import QueueTable as QueueSettings
from shoal.config.tables import TransitionTable as TransitionSettings
from shoal.journal.events import Event, Inserted, TableState
from shoal.metrics import Clock
from shoal.records import FIRST, ArraySpec, Trajectory

log = logging.getLogger(__name__)

# How often the journal is told which items are gone. Not at each eviction: a segment holds thousands.
RECLAIM_EVERY_S = 1.0
# For writing the last, unless said otherwise.
CLOSE_S = 10.0


class StoredTable:
    """`open` before use and `close` after it, if the table keeps files; both do nothing otherwise."""

    def __init__(
        self,
        name: str,
        settings: AnyTable,
        limits: LimitsSection,
        dedup: Dedup,
        clock: Clock,
        directory: Path | None,
        files: Files | None = None,
    ) -> None:
        if settings.on_disk and directory is None:
            raise ValueError(f"table {name!r} keeps files and has no directory for them")
        self.name = name
        self.on_disk = settings.on_disk
        # To the samplers, at the end: what is sampled again and again cannot be.
        self.is_handed_over = settings.kind == "queue" and not settings.on_disk
        self.dedup = dedup
        self.signature = Signature(fixes_unroll_length=settings.kind == "sequence")
        # All unrolls of a sequence go out in one message.
        self.max_payload_bytes = max_item_bytes(limits.max_message_bytes) // getattr(settings, "unrolls", 1)
        self.max_sample_bytes = limits.max_message_bytes - RESPONSE_OVERHEAD_BYTES
        self.recovery_s = 0.0
        self.num_recovered = 0
        self.num_corrupt_frames = 0
        self._settings = settings
        self._directory = directory
        self._files = files or RealFiles()
        self._journal: Journal | None = None
        self._snapshots: Snapshots | None = None
        self._payloads: PayloadStore | None = None
        self._reclaiming: asyncio.Task[None] | None = None
        self.table = self._make_table(name, clock)

    def record(self, event: Event) -> asyncio.Future[None] | None:
        """As the table's `EventSink`."""
        assert self._journal is not None
        if isinstance(event, Inserted):
            # At once, so that a state which has the items knows the append too.
            self.dedup.add(event.life, event.sequence)
        return self._journal.record(event)

    async def open(self) -> None:
        """Read the files, and begin to write new ones."""
        if self.on_disk:
            log.info("table %s: reading %s; nothing is served yet", self.name, self._directory)
            report = await in_thread("recovery", self._recover)
            for line in report.lines:
                log.warning("table %s: %s", self.name, line)
            self.recovery_s = report.seconds
            self.num_recovered = report.num_items
            self.num_corrupt_frames = report.num_corrupt_frames
            self._begin(report)

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write what the files lack; what cannot be written in time is given up, and logged as a number."""
        if self._reclaiming is not None:
            self._reclaiming.cancel()
        if self._journal is not None:
            await self._journal.close(timeout_s)
        if self._snapshots is not None:
            await self._close_snapshots(self._snapshots, timeout_s)
        if self._payloads is not None:
            self._payloads.close()

    def check(
        self, insertion: Insertion, trajectories: Iterable[Trajectory], declared: Sequence[ArraySpec] = ()
    ) -> None:
        """Take over what the append holds. Raises InvalidArgumentError for what this table can never store.

        One after another: of what is unpacked, only what the table needs is kept, and memory used again.
        """
        fit = self.signature.fit(declared)
        kept = []
        for trajectory in trajectories:
            fit.check(trajectory)
            kept.append(trajectory if self._settings.kind == "transition" else _without_columns(trajectory))
        insertion.trajectories = tuple(kept)
        self.table.check(insertion)
        self.signature.fix(fit)

    async def has_room(self, timeout_s: float) -> bool:
        """Whether an insert may go, as far as its files are concerned; waits for that."""
        return self._journal is None or await self._journal.has_room(timeout_s)

    def stats(self) -> TableStats:
        keeper = self._journal or self._snapshots
        return dataclasses.replace(
            self.table.stats(),
            durability=self._settings.durability,
            degraded=(keeper.degraded if keeper else "")
            or (self._payloads.degraded if self._payloads else ""),
            disk_bytes=keeper.disk_bytes if keeper else 0,
        )

    @property
    def pending_bytes(self) -> int:
        """What waits to be written to the journal."""
        return self._journal.pending_bytes if self._journal else 0

    @property
    def samples_per_insert(self) -> float:
        """0: no ratio is kept."""
        return (self._settings.samples_per_insert or 0.0) if isinstance(self._settings, SampledTable) else 0.0

    @property
    def ratio_tolerance(self) -> float:
        settings = self._settings
        if not isinstance(settings, SampledTable) or settings.samples_per_insert is None:
            return 0.0
        return settings.ratio_tolerance

    @property
    def ratio_surplus(self) -> float:
        return self.table.ratio_surplus if isinstance(self.table, RingTable) else 0.0

    @property
    def disk_free_bytes(self) -> int | None:
        """Room on the disk of its files; None without files, or if the disk does not say."""
        if not self.on_disk or self._directory is None:
            return None
        try:
            found = os.statvfs(self._directory)
        except OSError:
            return None
        return found.f_bavail * found.f_frsize

    def _recover(self) -> RecoveryReport:
        assert self._directory is not None
        max_ram_bytes = getattr(self._settings, "max_ram_bytes", None)
        return recover(self._directory, self.table, self.dedup, self.signature, self._files, max_ram_bytes)

    def _begin(self, found: RecoveryReport) -> None:
        assert self._directory is not None
        if self._settings.durability == "memory":
            self._snapshots = Snapshots(
                self._directory,
                self._settings,
                self.table,
                self._save,
                found.next_segment,
                self._files,
                found.segments,
            )
            self._snapshots.start()
        else:
            self._journal = Journal(
                self._directory,
                self._settings,
                self._save,
                found.next_segment,
                self._files,
                found.segments,
                found=found.found,
                signature=lambda: self.signature.specs,
                is_read=self._payloads.is_read if self._payloads else lambda number: False,
                on_deleted=self._payloads.segment_deleted if self._payloads else lambda number: None,
            )
            self._journal.start()
            self._reclaiming = asyncio.get_running_loop().create_task(self._reclaim())

    async def _close_snapshots(self, snapshots: Snapshots, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(snapshots.close(), timeout_s)
        except TimeoutError:
            log.error("table %s: the last snapshot took longer than %.1f s", self.name, timeout_s)
        num_lost = int(np.count_nonzero(self.table.save().keys >= np.uint64(snapshots.saved_below)))
        if num_lost:
            log.error("table %s: %d items are in no snapshot and are lost", self.name, num_lost)

    async def _reclaim(self) -> None:
        assert self._journal is not None
        while True:
            await asyncio.sleep(RECLAIM_EVERY_S)
            self._journal.reclaim(self.table.oldest_key)

    def _save(self) -> TableState:
        return dataclasses.replace(self.table.save(), signature=self.signature.specs, lives=self.dedup.save())

    def _make_table(self, name: str, clock: Clock) -> Table:
        settings = self._settings
        sink: EventSink = NoJournal() if settings.durability == "memory" else self
        if isinstance(settings, QueueSettings):
            return QueueTable(name, settings, sink, clock)
        if isinstance(settings, TransitionSettings):
            return TransitionTable(name, settings, sink, self.max_sample_bytes, clock)
        self._payloads = PayloadStore(
            settings.max_items, settings.max_ram_bytes, self._files, self._directory
        )
        return SequenceTable(name, settings, sink, self._payloads, clock)


def _without_columns(trajectory: Trajectory) -> Trajectory:
    """All columns but the one that tells its size."""
    # Copied, or the block that it shares with others would stay.
    first = {FIRST: trajectory.columns[FIRST].copy()}
    return Trajectory(first, trajectory.episodes, trajectory.stream, trajectory.first_step)
