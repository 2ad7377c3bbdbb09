"""What stands in the files of replay tables: `shoal replay dump` and `shoal replay verify`. Reads only.

Works on a table's directory, or on any directory above some: a shard's, or a run's. A shard may be writing
meanwhile, and may delete a file that nobody needs any more: such a file is passed over.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shoal.config.connections import LimitsSection
from shoal.errors import InvalidArgumentError, UserError
from shoal.journal.events import Inserted, PrioritiesSet, TableState
from shoal.journal.framing import Damage
from shoal.journal.reader import Entry, list_segments, read_segment
from shoal.wire import check_payload

# What a run allows is not known here, and what was stored was within it.
LIMITS = LimitsSection(max_tensor_bytes=(1 << 31) - 1, max_trajectory_bytes=1 << 34)

HEADER = (
    f"{'table':<16} {'key':>10} {'actor':<16} {'run':<16} {'sequence':>10} {'bytes':>10} {'priority':>12}"
)


@dataclass(frozen=True)
class StoredItem:
    """One line of `dump`. The rows of a transition table share a payload: `bytes` is an item's part of it."""

    table: str
    key: int
    actor: str
    run: str
    sequence: int
    bytes: int
    priority: float | None

    def as_line(self) -> str:
        priority = "-" if self.priority is None else f"{self.priority:.6g}"
        return (
            f"{self.table:<16} {self.key:>10} {self.actor:<16} {self.run:<16} {self.sequence:>10} "
            f"{self.bytes:>10} {priority:>12}"
        )

    def as_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class FileReport:
    """What `verify` found in one file. `torn_bytes`: of a frame that was not finished, which is no damage."""

    file: str
    num_frames: int
    num_items: int
    num_bytes: int
    torn_bytes: int
    damage: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        verdict = f"{len(self.damage)} DAMAGED" if self.damage else "sound"
        torn = f", ends within a frame of {self.torn_bytes:,} bytes or more" if self.torn_bytes else ""
        yield (
            f"{self.file}: {verdict}; {self.num_frames:,} frames, {self.num_items:,} items, "
            f"{self.num_bytes:,} bytes{torn}"
        )
        for text in self.damage:
            yield f"    {text}"


@dataclass(frozen=True)
class Report:
    """What `verify` found."""

    files: tuple[FileReport, ...]

    @property
    def is_sound(self) -> bool:
        return not any(file.damage for file in self.files)

    def lines(self) -> Iterator[str]:
        for file in self.files:
            yield from file.lines()
        num_damaged = sum(bool(file.damage) for file in self.files)
        frames, items = sum(f.num_frames for f in self.files), sum(f.num_items for f in self.files)
        verdict = f"{num_damaged} of them DAMAGED" if num_damaged else "sound"
        yield f"{len(self.files)} files, {verdict}: {frames:,} frames, {items:,} items"

    def record(self) -> dict[str, Any]:
        return {"files": [asdict(file) for file in self.files], "sound": self.is_sound}


def items(directory: Path, limit: int | None = None) -> Iterator[StoredItem]:
    """Every item in the files, table by table in order of keys. Raises UserError if there are no files."""
    tables = find_tables(directory)
    found = (item for name, path in tables.items() for item in _items_of_table(name, path))
    return itertools.islice(found, limit)


def check(directory: Path) -> Report:
    """Reads everything and compares every CRC. Raises UserError if there is nothing to read."""
    tables = find_tables(directory)
    files = (
        _check_file(f"{name}/{path.name}", path)
        for name, table in tables.items()
        for path in _segments(table)
    )
    return Report(tuple(file for file in files if file is not None))


def find_tables(directory: Path) -> dict[str, Path]:
    """Directories with segment files, by name: this one or those below it. Raises UserError."""
    if not directory.is_dir():
        raise UserError(
            f"no directory {directory}: give the directory of a replay shard or of one of its tables"
        )
    candidates = [directory, *sorted(path for path in directory.rglob("*") if path.is_dir())]
    tables = {_name(path, directory): path for path in candidates if _segments(path)}
    if not tables:
        raise UserError(
            f"{directory} holds no segment files of a replay table: a table has some if its durability is "
            "`wal` or `fsync`, or if it makes snapshots"
        )
    return tables


def _name(path: Path, directory: Path) -> str:
    return directory.resolve().name if path == directory else str(path.relative_to(directory))


def _items_of_table(name: str, directory: Path) -> Iterator[StoredItem]:
    newest = _newest_priorities(directory)
    for entry in _entries(directory):
        record = entry.record
        if not isinstance(record, Inserted):
            continue
        for i in range(record.num_keys):
            key = record.first_key + i
            given = float(record.priorities[i]) if record.priorities.size else math.nan
            priority = newest.get(key, given)
            yield StoredItem(
                table=name,
                key=key,
                actor=record.life.actor_id,
                run=record.life.run_id,
                sequence=record.sequence,
                bytes=_part(record, i),
                # An unroll that ends no sequence has none.
                priority=None if math.isnan(priority) else priority,
            )


def _part(record: Inserted, i: int) -> int:
    if len(record.payloads) == record.num_keys:
        return record.payloads[i].size
    return record.payloads[0].size // record.num_keys


def _newest_priorities(directory: Path) -> dict[int, float]:
    """Of items whose priority was changed after they were stored, or was saved with the table's state."""
    newest: dict[int, float] = {}
    for entry in _entries(directory):
        if isinstance(entry.record, PrioritiesSet | TableState) and entry.record.priorities.size:
            newest.update(zip(entry.record.keys.tolist(), entry.record.priorities.tolist(), strict=True))
    return newest


def _entries(directory: Path) -> Iterator[Entry]:
    for path in _segments(directory):
        with contextlib.suppress(FileNotFoundError):
            yield from (part for part in _parts(path) if isinstance(part, Entry))


def _segments(directory: Path) -> list[Path]:
    try:
        return list_segments(directory)
    except OSError as error:
        raise UserError(f"cannot read the directory {directory}: {error.strerror}") from None


def _parts(path: Path) -> Iterator[Entry | Damage]:
    """Raises FileNotFoundError if the shard has deleted it since it was listed."""
    try:
        yield from read_segment(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"cannot read the file {path}: {error.strerror}") from None


def _check_file(name: str, path: Path) -> FileReport | None:
    """None: the shard has deleted it since it was listed."""
    num_frames = num_items = num_bytes = torn_bytes = 0
    damage: list[str] = []
    try:
        for part in _parts(path):
            num_bytes += part.length
            if isinstance(part, Damage):
                if part.is_torn:
                    torn_bytes += part.length
                else:
                    damage.append(f"at byte {part.offset:,}, {part.length:,} bytes: {part.reason}")
                continue
            num_frames += 1
            if isinstance(part.record, Inserted):
                num_items += part.record.num_keys
                damage += _damaged_payloads(part.record)
    except FileNotFoundError:
        return None
    return FileReport(name, num_frames, num_items, num_bytes, torn_bytes, tuple(damage))


def _damaged_payloads(record: Inserted) -> Iterator[str]:
    """The arrays in a payload have CRCs of their own, from before it was first sent."""
    last = record.first_key + record.num_keys - 1
    is_one_each = len(record.payloads) == record.num_keys
    for i, payload in enumerate(record.payloads):
        assert payload.data is not None
        try:
            check_payload(payload.data, LIMITS)
        except InvalidArgumentError as error:
            keys = f"key {record.first_key + i}" if is_one_each else f"keys {record.first_key} to {last}"
            yield f"payload of {keys}: {error}"
