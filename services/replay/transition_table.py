"""The `transition` table: single transitions in columns, sampled by priority; the oldest are dropped.

Called by `Shard` and by recovery, on the event loop. Items are rows: n-step transitions made on insert
(`n_step`), kept unpacked (`ColumnRing`) and handed out as the columns of a whole sample.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise
from typing import cast

import numpy as np

from services.replay.column_ring import ColumnRing, RowSpec, row_bytes, row_spec
from services.replay.n_step import build_transitions
from services.replay.object_column import ObjectColumn, SharedLives
from services.replay.ring_table import RingTable
from services.replay.storage.heap import HeapTrimmer
from services.replay.tables import EventSink, Insertion, NoJournal
from shoal.clients.replay_shard import Sampled
from shoal.config.connections import LimitsSection
from shoal.config.tables import TransitionTable as TransitionSettings
from shoal.errors import InvalidArgumentError, LimitError
from shoal.journal.events import Inserted, StoredPayload, TableState
from shoal.metrics import Clock
from shoal.records import Columns, Life, Trajectory, Transitions
from shoal.wire import check_columns, decode_columns, encode_columns

# Of what the table wrote itself, checked when it came and by its CRC: no limit of today makes it unreadable.
OWN_DATA = LimitsSection(max_tensor_bytes=(1 << 31) - 1, max_trajectory_bytes=1 << 34)
# In the answer to a sample, besides the values: key and mass of a row; a column's head without its name.
_ROW_OVERHEAD_BYTES = 20
_COLUMN_OVERHEAD_BYTES = 256


class TransitionTable(RingTable):
    """Items are transitions; a key is a row."""

    def __init__(
        self,
        name: str,
        settings: TransitionSettings,
        sink: EventSink,
        max_sample_bytes: int,
        clock: Clock = time.monotonic,
        rng: np.random.Generator | None = None,
    ) -> None:
        """`max_sample_bytes`: what no answer to a sample is above."""
        super().__init__(name, settings, sink, clock, rng or np.random.default_rng())
        self._max_sample_bytes = max_sample_bytes
        self._n_step = settings.n_step
        self._discount = settings.discount
        # From the first insert on.
        self._rows: ColumnRing | None = None
        # Columns of trajectories that were found to make rows as they are here.
        self._known: RowSpec | None = None
        # By slot, key % max_items: which append a row came with.
        self._lives: ObjectColumn[Life | None] = ObjectColumn(settings.max_items)
        self._sequences = np.zeros(settings.max_items, np.uint64)
        self._shared = SharedLives()
        self._heap = HeapTrimmer()

    @property
    def num_bytes(self) -> int:
        return self._ring.num_items * self._rows.row_bytes if self._rows else 0

    def check(self, insertion: Insertion) -> None:
        spec = self._rows.spec if self._rows else self._row_spec(insertion.trajectories[0])
        for trajectory in insertion.trajectories:
            self._check_columns(trajectory, spec)
        num_steps = sum(t.unroll_length * t.num_envs for t in insertion.trajectories)
        self._check_priorities(insertion.priorities, num_steps, "steps")
        num_rows = sum(t.num_transitions for t in insertion.trajectories)
        self._check_size(num_rows, num_rows * row_bytes(spec))

    async def sample(self, num_items: int, max_bytes: int, timeout_s: float) -> Sampled:
        taken = None
        if num_items:
            taken = await self._gate.sample(lambda: self._take(num_items, max_bytes), timeout_s)
        return taken or self._state(None)

    def items_from(self, key: int, below: int | None = None) -> list[Inserted]:
        keys = self._keys_from(key, below)
        if self._rows is None or not len(keys):
            return []
        slots = self._slots(keys)
        sequences, lives = self._sequences[slots], cast(list[Life], self._lives.take(slots))
        is_other_life = np.array([life is not before for before, life in pairwise(lives)], np.bool_)
        # An event is of one append, and of consecutive keys.
        begins = np.flatnonzero((np.diff(keys) != 1) | (np.diff(sequences) != 0) | is_other_life) + 1
        columns = self._rows.read(keys)
        events = []
        for begin, end in pairwise((0, *begins.tolist(), len(keys))):
            payload = _packed({name: column[begin:end] for name, column in columns.items()})
            origin = lives[begin], int(sequences[begin])
            priorities = self._ring.priorities_of(keys[begin:end])
            events.append(Inserted(int(keys[begin]), end - begin, *origin, (payload,), priorities))
        return events

    def restore(self, state: TableState, items: list[Inserted]) -> None:
        found = np.zeros(len(state.keys), np.bool_)
        for item in sorted(items, key=lambda item: item.first_key):
            # Of the same type as the keys, or NumPy would convert all of those each time.
            bounds = np.array([item.first_key, item.first_key + item.num_keys], np.uint64)
            part = slice(*np.searchsorted(state.keys, bounds))
            if part.start == part.stop or (columns := self._columns_of(item)) is None:
                continue
            if self._rows is None:
                self._begin(columns, int(state.keys[0]), state.next_key)
            assert self._rows is not None
            keys = state.keys[part]
            # Older ones do not fit any more.
            keys = keys[keys >= self._rows.first_key]
            index = (keys - np.uint64(item.first_key)).astype(np.intp)
            self._rows.write(keys, {name: column[index] for name, column in columns.items()})
            self._came_with(keys, item.life, item.sequence)
            found[part] = True
        spent = state.times_sampled >= (self._settings.max_times_sampled or np.inf)
        sampleable = ~spent[found] if len(spent) else np.ones(np.count_nonzero(found), np.bool_)
        self._restore_ring(state, found, state.priorities[found], sampleable)
        self._make_room(0)

    @property
    def _ram_bytes(self) -> int:
        return self._rows.used_bytes if self._rows else 0

    def _check_columns(self, trajectory: Trajectory, spec: RowSpec) -> None:
        columns = {name: array[0] for name, array in trajectory.columns.items()}
        if self._rows is not None and row_spec(columns) == self._known:
            return
        if (received := self._row_spec(trajectory)) != spec:
            raise InvalidArgumentError(
                f"trajectory makes rows of {_describe(received)}, but table {self._name!r} has rows of "
                f"{_describe(spec)}: send the same columns, or use another table"
            )
        if self._rows is not None:
            self._known = row_spec(columns)

    def _row_spec(self, trajectory: Trajectory) -> RowSpec:
        """Of the rows made of it. Raises InvalidArgumentError if none can be made, kept or handed out."""
        one_step = Trajectory({name: array[:2] for name, array in trajectory.columns.items()})
        spec = row_spec(self._build(one_step, None)[0])
        try:
            check_columns(spec, self._max_rows(spec))
        except LimitError as error:
            raise LimitError(
                f"table {self._name!r} cannot keep transitions of these columns, with each observation "
                f"twice: {error}"
            ) from None
        needed = _head_bytes(spec) + row_bytes(spec) + _ROW_OVERHEAD_BYTES
        if needed > self._max_sample_bytes:
            raise LimitError(
                f"a transition of these columns takes {needed} bytes of an answer, which has "
                f"{self._max_sample_bytes} (limits.max_message_bytes less headers): raise it, or send less"
            )
        return spec

    def _build(
        self, trajectory: Trajectory, priorities: np.ndarray | None
    ) -> tuple[Columns, np.ndarray | None]:
        return build_transitions(trajectory, self._n_step, self._discount, priorities)

    def _store(self, insertion: Insertion) -> None:
        parts = []
        for trajectory, priorities in zip(insertion.trajectories, _split(insertion), strict=True):
            parts.append(self._build(trajectory, priorities))
        columns = {name: np.concatenate([part[name] for part, _ in parts]) for name in parts[0][0]}
        given = [priorities for _, priorities in parts if priorities is not None]
        num_rows = sum(t.num_transitions for t in insertion.trajectories)
        first_key = self._ring.next_key
        if num_rows == 0:
            insertion.first_key = first_key
            return
        priorities = np.concatenate(given) if given else np.full(num_rows, self._ring.max_priority)
        # Before anything is stored, should it ever fail.
        payload = None if isinstance(self._sink, NoJournal) else _packed(columns)
        origin = insertion.life, insertion.sequence
        self._add(*origin, columns, priorities)
        insertion.first_key = first_key
        if payload is not None:
            event = Inserted(first_key, num_rows, *origin, (payload,), priorities)
            insertion.durable = self._sink.record(event)

    def _apply_inserted(self, event: Inserted) -> bool:
        columns = self._columns_of(event)
        if columns is None:
            self.ledger.num_corrupt += event.num_keys
            return False
        if event.num_keys > self._max_rows(row_spec(columns)):
            return False
        self._add(event.life, event.sequence, columns, event.priorities)
        return True

    def _add(self, life: Life, sequence: int, columns: Columns, priorities: np.ndarray) -> None:
        first_key = self._ring.next_key
        if self._rows is None:
            self._begin(columns, first_key, first_key)
        assert self._rows is not None
        self._make_room(len(priorities))
        keys = np.arange(first_key, first_key + len(priorities), dtype=np.uint64)
        self._rows.write(keys, columns)
        self._came_with(keys, life, sequence)
        self._append_to_ring(priorities)

    def _came_with(self, keys: np.ndarray, life: Life, sequence: int) -> None:
        slots = self._slots(keys)
        self._lives.fill(slots, self._shared(life))
        self._sequences[slots] = sequence

    def _slots(self, keys: np.ndarray) -> np.ndarray:
        return (keys % np.uint64(len(self._sequences))).astype(np.intp)

    def _begin(self, columns: Columns, oldest_key: int, next_key: int) -> None:
        spec = row_spec(columns)
        max_rows = self._max_rows(spec)
        self._rows = ColumnRing(spec, max_rows, max(oldest_key, next_key - max_rows))

    def _max_rows(self, spec: RowSpec) -> int:
        return min(self._settings.max_items, self._settings.max_bytes // row_bytes(spec))

    def _make_room(self, num_rows: int) -> None:
        """Evict the oldest until so many more fit."""
        if self._rows is None:
            return
        oldest = self._ring.oldest_key
        first_kept = max(oldest, self._ring.next_key + num_rows - self._rows.max_rows)
        keys = np.arange(oldest, min(first_kept, self._ring.next_key), dtype=np.uint64)
        self._evict(keys[self._ring.contains(keys)])

    def _drop(self, keys: np.ndarray) -> None:
        self._ring.remove(keys)

    def _spend(self, keys: np.ndarray) -> np.ndarray:
        return keys

    def _has_priority(self, keys: np.ndarray) -> np.ndarray:
        return self._ring.contains(keys)

    def _take(self, num_items: int, max_bytes: int) -> Sampled:
        assert self._rows is not None
        most = (max_bytes - _head_bytes(self._rows.spec)) // (self._rows.row_bytes + _ROW_OVERHEAD_BYTES)
        keys, masses = self._draw(min(num_items, max(1, most)))
        sampled = self._state(Transitions(keys, masses, self._rows.read(keys)))
        self.ledger.sampled_bytes += len(keys) * self._rows.row_bytes
        self._handed_out(keys)
        return sampled

    def _state(self, transitions: Transitions | None) -> Sampled:
        num_items, mass = self._on_offer
        return Sampled((), transitions, num_items, self.num_bytes, mass)

    def _columns_of(self, event: Inserted) -> Columns | None:
        """The rows of an event; None if they are damaged or not such as this table takes (any more).

        The payload loses its data: many of them and all rows at once may be more than fits into memory.
        """
        if not event.payloads:
            return None
        payload = event.payloads[0]
        data, payload.data = payload.data, None
        self._heap.freed(payload.size)
        try:
            columns = decode_columns(data or b"", OWN_DATA)
        except InvalidArgumentError:
            return None
        spec = row_spec(columns)
        if not columns or any(len(rows) != event.num_keys for rows in columns.values()):
            return None
        if self._max_rows(spec) < 1 or (self._rows is not None and spec != self._rows.spec):
            return None
        return columns


def _split(insertion: Insertion) -> Iterable[np.ndarray | None]:
    """The priorities of each trajectory: one per step and environment."""
    if insertion.priorities is None:
        return [None] * len(insertion.trajectories)
    sizes = [t.unroll_length * t.num_envs for t in insertion.trajectories]
    return np.split(insertion.priorities, np.cumsum(sizes)[:-1])


def _packed(columns: Columns) -> StoredPayload:
    return StoredPayload.of(encode_columns(columns))


def _head_bytes(spec: RowSpec) -> int:
    """Of the columns in an answer, without their values."""
    return sum(len(name.encode()) + _COLUMN_OVERHEAD_BYTES for name, _, _ in spec)


def _describe(spec: RowSpec) -> str:
    return ", ".join(f"{name} {dtype}{list(shape)}" for name, dtype, shape in spec)
