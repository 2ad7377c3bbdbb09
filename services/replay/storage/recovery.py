"""What the files of a table say, told to the table: run once, before anything else touches it.

Blocking; called from a thread while nobody else knows the table. Nothing is written, and only leftovers of
snapshots are deleted; what is found is synced, since from now on a repeat of it is acked. The newest whole
state wins: its items are among the inserts before it, and the events after it happen again, in order. Damage
costs the frames that it hits: they are skipped and counted, and nothing stops the start but files of another
format, or that cannot be read or synced for a reason that may go away.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from services.replay.storage.files import Files, RealFiles, why
from services.replay.storage.found_items import Budget, FoundItems
from services.replay.storage.segments import UNKNOWN_KEY, Generation, Segment
from services.replay.tables import Table
from shoal.clients.replay_shard import SEQUENCE_WINDOW
from shoal.errors import UserError
from shoal.journal.events import Event, Inserted, SeenLife, TableState
from shoal.journal.format import Record
from shoal.journal.framing import Damage
from shoal.journal.reader import Entry, list_segments, read_segment, segment_number
from shoal.records import ArraySpec, Life

log = logging.getLogger(__name__)

# Snapshots are written under such names, then renamed.
TEMPORARY_SUFFIX = ".tmp"

# Number of a segment and offset in it.
Place = tuple[int, int]


class SeenSequences(Protocol):
    """What recovery needs of the memory of repeats."""

    def restore(self, lives: tuple[SeenLife, ...]) -> None: ...

    def add(self, life: Life, sequence: int) -> None: ...


class RestorableSignature(Protocol):
    """What recovery needs of a table's signature."""

    def restore(self, specs: tuple[ArraySpec, ...]) -> None: ...


@dataclass
class RecoveryReport:
    """What was found. `lines` say what is wrong, a line per file; `segments` are for those who write next."""

    next_segment: int = 1
    num_items: int = 0
    num_events: int = 0
    num_bytes: int = 0
    num_corrupt_frames: int = 0
    seconds: float = 0.0
    lines: list[str] = field(default_factory=list)
    segments: tuple[Segment, ...] = ()
    # The state that was begun with, if there was one.
    found: Generation | None = None

    def __str__(self) -> str:
        rate = self.num_bytes / 1e6 / max(self.seconds, 1e-9)
        return (
            f"{self.num_items} items recovered, {self.num_corrupt_frames} damaged frames skipped, "
            f"{self.num_bytes / 1e6:.1f} MB in {len(self.segments)} files read in {self.seconds:.2f} s "
            f"({rate:.0f} MB/s)"
        )


def recover(
    directory: Path,
    table: Table,
    dedup: SeenSequences,
    signature: RestorableSignature,
    files: Files | None = None,
    max_ram_bytes: int | None = None,
) -> RecoveryReport:
    """Bring the table to where its files end. Of the payloads the newest `max_ram_bytes` keep their data.

    Raises UserError if the directory cannot be used, a file of it cannot be opened, read or synced, or they
    are those of another table or release.
    """
    return _Recovery(directory, files or RealFiles(), max_ram_bytes).run(table, dedup, signature)


class _Recovery:
    def __init__(self, directory: Path, files: Files, max_ram_bytes: int | None) -> None:
        self._directory = directory
        self._files = files
        self._report = RecoveryReport()
        self._budget = Budget(max_ram_bytes)

    def run(self, table: Table, dedup: SeenSequences, signature: RestorableSignature) -> RecoveryReport:
        started = time.monotonic()
        report = self._report
        paths = self._paths()
        if paths:
            report.next_segment = _number(paths[-1]) + 1
            state, place = self._newest_state(paths)
            kind = table.save().kind
            if state is not None and state.kind != kind:
                raise UserError(
                    f"the files in {self._directory} are those of a {state.kind} table and the configuration "
                    f"says {kind}: give the table another name, or move the files away"
                )
            items, events, before = self._collect(paths, state, place)
            self._sync(paths)
            if state is None:
                report.lines.append(
                    f"{self._directory} holds no whole state: begun anew with the events in it"
                )
                state = _empty_state(kind, events)
            else:
                report.found = Generation(place[0], state.keys)
            if num_missing := items.num_missing():
                report.lines.append(f"{num_missing} items are in no readable file and count as corrupt")
            signature.restore(_newest_signature(state, events))
            _remember(dedup, state, before, events)
            table.restore(state, items.in_order())
            for event in events:
                table.apply(event)
            report.num_events = len(events)
        report.num_items = table.num_items
        report.seconds = time.monotonic() - started
        log.info("%s: %s", self._directory, report)
        return report

    def _paths(self) -> list[Path]:
        try:
            self._files.make_directory(self._directory)
            for name in self._files.names(self._directory):
                if name.endswith(TEMPORARY_SUFFIX):
                    self._files.delete(self._directory / name)
            return list_segments(self._directory)
        except OSError as error:
            raise UserError(f"cannot keep replay files in {self._directory}: {why(error)}") from None

    def _newest_state(self, paths: list[Path]) -> tuple[TableState | None, Place]:
        """With its place. It is in the newest file, unless that is damaged."""
        for path in reversed(paths):
            states = [
                (part.record, (_number(path), part.offset))
                for part in self._parts(path)
                if isinstance(part, Entry) and isinstance(part.record, TableState)
            ]
            if states:
                return states[-1]
        return None, (0, 0)

    def _collect(
        self, paths: list[Path], state: TableState | None, state_place: Place
    ) -> tuple[FoundItems, list[Event], list[tuple[Life, int]]]:
        """The items of the state, the events after it, and whose sequences the inserts before it are."""
        items = FoundItems(state, self._budget)
        events: list[Event] = []
        before: list[tuple[Life, int]] = []
        next_key = state.next_key if state is not None else 0
        for record, place in self._records(paths):
            if isinstance(record, TableState):
                continue
            if isinstance(record, Inserted):
                if place < state_place:
                    items.add(record)
                    before.append((record.life, record.sequence))
                elif record.first_key >= next_key:
                    next_key = record.first_key + record.num_keys
                    self._budget.add(record.payloads)
                    events.append(record)
                # Else it was written a second time, since nobody knew what had become of the first.
            elif place > state_place:
                events.append(record)
        return items, events, before

    def _records(self, paths: list[Path]) -> Iterator[tuple[Record, Place]]:
        """All of them; counts bytes and damage on the way."""
        segments = []
        for path in paths:
            number, end, min_key, max_key = _number(path), 0, 0, 0
            damages = []
            for part in self._parts(path):
                end = part.offset + part.length
                if isinstance(part, Damage):
                    damages.append(part)
                    continue
                if isinstance(inserted := part.record, Inserted):
                    min_key = min(min_key or inserted.first_key, inserted.first_key)
                    max_key = max(max_key, inserted.first_key + inserted.num_keys - 1)
                yield part.record, (number, part.offset)
            self._note_damage(path, damages)
            self._report.num_bytes += end
            if any(damage.is_unread for damage in damages):
                # Another disk may read it, or this one another time.
                max_key = UNKNOWN_KEY
            segments.append(Segment(number, end, min_key, max_key))
        self._report.segments = tuple(segments)

    def _parts(self, path: Path) -> Iterator[Entry | Damage]:
        try:
            yield from read_segment(path, self._files.pread)
        except OSError as error:
            # Its items are not lost yet: going on without them would make it so.
            raise _unusable("read", path, error) from None

    def _sync(self, paths: list[Path]) -> None:
        """Whoever wrote them may have been killed before it did, and nobody else will."""
        for path in paths:
            try:
                descriptor = self._files.open(path)
                try:
                    self._files.fsync(descriptor)
                finally:
                    self._files.close(descriptor)
            except OSError as error:
                raise _unusable("sync", path, error) from None
        try:
            self._files.fsync_directory(self._directory)
        except OSError as error:
            raise UserError(f"cannot keep replay files in {self._directory}: {why(error)}") from None

    def _note_damage(self, path: Path, damages: list[Damage]) -> None:
        for damage in damages:
            if damage.is_torn:
                self._report.lines.append(
                    f"{path} has an unfinished write at its end, as after a crash: {damage.reason}; "
                    f"{damage.length} bytes were left out"
                )
        real = [damage for damage in damages if not damage.is_torn]
        if real:
            self._report.num_corrupt_frames += len(real)
            self._report.lines.append(
                f"{path} is damaged in {len(real)} places ({sum(damage.length for damage in real)} bytes), "
                f"the first at offset {real[0].offset}: {real[0].reason}; what is whole was used"
            )


def _unusable(what: str, path: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot {what} {path}: {error.strerror or error}; mend that and start again, or move the file away "
        "to go on without what is in it"
    )


def _newest_signature(state: TableState, events: list[Event]) -> tuple[ArraySpec, ...]:
    changes = [event.signature for event in events if isinstance(event, Inserted) and event.signature]
    return changes[-1] if changes else state.signature


def _remember(
    dedup: SeenSequences, state: TableState, before: list[tuple[Life, int]], events: list[Event]
) -> None:
    """Inserts that were on their way to a file when the state was saved may be of lives that it lacks."""
    known = {seen.life for seen in state.lives}
    unknown: dict[Life, set[int]] = {}
    for life, sequence in before:
        if life not in known:
            unknown.setdefault(life, set()).add(sequence)
    # In front: the first of too many lives is the one that is forgotten.
    dedup.restore((*(_seen(life, sequences) for life, sequences in unknown.items()), *state.lives))
    for life, sequence in before:
        if life in known:
            dedup.add(life, sequence)
    for event in events:
        if isinstance(event, Inserted):
            dedup.add(event.life, event.sequence)


def _seen(life: Life, sequences: set[int]) -> SeenLife:
    highest = max(sequences)
    ages = (highest - sequence for sequence in sequences)
    return SeenLife(life, highest, sum(1 << age for age in ages if age < SEQUENCE_WINDOW))


def _empty_state(kind: str, events: list[Event]) -> TableState:
    next_key = next((event.first_key for event in events if isinstance(event, Inserted)), 1)
    none = np.empty(0)
    return TableState(kind, (), next_key, none.astype(np.uint64), none, none.astype(np.uint32), {})


def _number(path: Path) -> int:
    number = segment_number(path.name)
    assert number is not None
    return number
