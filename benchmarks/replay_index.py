"""P9: sampling and priority updates, as they run inside a shard: of the index alone, and of whole tables.

Part of `make bench-replay`; alone with `python -m benchmarks.replay_index`. The tables are called as a shard
calls them, without the network: a sample of a sequence table ends with its items, one of a transition table
with its columns. While they fill up, and beyond, the longest single call is kept: nothing may stop a shard
for long, neither memory that grows nor the garbage collector, which is on.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import numpy as np

from benchmarks.machine import describe_machine
from services.replay.priority_ring import PriorityRing
from services.replay.ring_table import RingTable
from services.replay.sequence_table import SequenceTable
from services.replay.storage.payload_store import PayloadStore
from services.replay.tables import Insertion, NoJournal
from services.replay.transition_table import TransitionTable
from shoal.clients.replay_shard import Sampled
from shoal.config.tables import SequenceTable as SequenceSettings
from shoal.config.tables import TransitionTable as TransitionSettings
from shoal.records import (
    ACTION,
    FIRST,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Columns,
    Life,
    Trajectory,
)

TARGET_MS = 1.0
TARGET_PAUSE_MS = 100.0

# Of the trajectories that are inserted: environments per append, steps, observations, bytes once packed.
_NUM_ENVS = 64
_UNROLL_LENGTH = 20
_OBSERVATION_SHAPE = (16,)
_PAYLOAD_BYTES = 500
_ANSWER_BYTES = 64 << 20
# Appends between two samples while the table fills up.
_APPENDS_PER_SAMPLE = 8
_LIFE = Life("actor", "run")

T = TypeVar("T")


def main() -> None:
    measure()


def measure(num_items: int = 1_000_000, batch: int = 256, repeats: int = 2000) -> dict[str, float]:
    """Prints P9 and returns the medians in ms.

    What is sampled gets new priorities, as with a learner.
    """
    print(f"P9  {num_items:,} items, batch {batch} (target: medians <= {TARGET_MS:g} ms)")
    medians = _print("index", _index_times_ms(num_items, batch, repeats))
    for table in (_sequence_table(num_items), _transition_table(num_items)):
        kind = table.stats().kind
        longest = _fill(table, _unrolls if kind == "sequence" else _steps, num_items, batch)
        medians |= _print(kind, _table_times_ms(table, batch, repeats))
        print(f"    {kind:<11} longest while it filled up: {longest} (target: <= {TARGET_PAUSE_MS:g} ms)")
        [collect_ms] = _times_ms(gc.collect, [()])
        print(f"    {kind:<11} a full pass of the garbage collector: {collect_ms:.1f} ms")
    return medians


def _index_times_ms(num_items: int, batch: int, repeats: int) -> dict[str, list[float]]:
    rng = np.random.default_rng(0)
    ring = PriorityRing(num_items, alpha=0.6, max_times_sampled=None, rng=rng)
    ring.append(rng.uniform(0.01, 10.0, num_items))
    # Drawn beforehand: only the index is measured.
    priorities = rng.uniform(0.01, 10.0, (repeats, batch))
    sampled = [ring.draw(batch)[0] for _ in range(repeats)]
    return {
        "sample": _times_ms(ring.draw, ((batch,) for _ in range(repeats))),
        "update": _times_ms(ring.set_priorities, zip(sampled, priorities, strict=True)),
        "replace": _times_ms(_replace, ((ring, new) for new in priorities)),
    }


def _table_times_ms(table: RingTable, batch: int, repeats: int) -> dict[str, list[float]]:
    rng = np.random.default_rng(0)
    priorities = rng.uniform(0.01, 10.0, (repeats, batch))
    sampled = [_keys(_sample(table, batch)) for _ in range(repeats)]
    return {
        "sample": _times_ms(_sample, ((table, batch) for _ in range(repeats))),
        "update": _times_ms(table.update_priorities, zip(sampled, priorities, strict=True)),
    }


def _fill(table: RingTable, make: Callable[[int], Insertion], num_items: int, batch: int) -> str:
    """Until a tenth of it was evicted again; says how long the longest insert and sample took."""
    inserts, samples = _Longest(), _Longest()
    number = 0
    while table.ledger.num_inserted < 1.1 * num_items:
        insertion = make(number)
        with inserts:
            _insert(table, insertion)
        number += 1
        if number % _APPENDS_PER_SAMPLE == 0:
            with samples:
                _sample(table, batch)
    return f"insert {inserts}, sample {samples}"


class _Longest:
    """The longest of many passages: by the clock, and without what other processes took of it."""

    def __init__(self) -> None:
        self._wall_ms = self._cpu_ms = 0.0

    def __enter__(self) -> None:
        self._cpu_started, self._started = time.thread_time(), time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._wall_ms = max(self._wall_ms, 1e3 * (time.perf_counter() - self._started))
        self._cpu_ms = max(self._cpu_ms, 1e3 * (time.thread_time() - self._cpu_started))

    def __str__(self) -> str:
        return f"{self._wall_ms:.1f} ms ({self._cpu_ms:.1f} ms of CPU)"


def _sequence_table(max_items: int) -> SequenceTable:
    settings = SequenceSettings(max_items=max_items, alpha=0.6, max_bytes=1 << 40)
    store = PayloadStore(max_items, None, None, None)
    return SequenceTable("p9", settings, NoJournal(), store, rng=np.random.default_rng(0))


def _transition_table(max_items: int) -> TransitionTable:
    settings = TransitionSettings(max_items=max_items, alpha=0.6, max_bytes=1 << 40)
    return TransitionTable("p9", settings, NoJournal(), 1 << 26, rng=np.random.default_rng(0))


def _unrolls(number: int) -> Insertion:
    """As a shard hands them over: of the columns only one is left."""
    first = np.zeros((_UNROLL_LENGTH + 1, 1), np.bool_)
    trajectories = [
        Trajectory({FIRST: first}, stream=env, first_step=number * _UNROLL_LENGTH) for env in range(_NUM_ENVS)
    ]
    payloads = [(b"%d of %d " % (env, number)).ljust(_PAYLOAD_BYTES) for env in range(_NUM_ENVS)]
    return Insertion(_LIFE, number, tuple(payloads), tuple(trajectories))


def _steps(number: int) -> Insertion:
    rows = (_UNROLL_LENGTH + 1, _NUM_ENVS)
    columns: Columns = {
        OBSERVATION: np.full((*rows, *_OBSERVATION_SHAPE), number, np.float32),
        ACTION: np.zeros(rows, np.int64),
        REWARD: np.zeros(rows, np.float32),
        TERMINATED: np.zeros(rows, np.bool_),
        TRUNCATED: np.zeros(rows, np.bool_),
        FIRST: np.zeros(rows, np.bool_),
    }
    return Insertion(_LIFE, number, (b"",), (Trajectory(columns),))


def _insert(table: RingTable, insertion: Insertion) -> None:
    if not _at_once(table.insert(insertion, 0.0)):
        raise RuntimeError("the table takes no insert")


def _sample(table: RingTable, batch: int) -> Sampled:
    sampled = _at_once(table.sample(batch, _ANSWER_BYTES, 0.0))
    if sampled.num_sampled != batch:
        raise RuntimeError(f"sampled {sampled.num_sampled} instead of {batch}")
    return sampled


def _keys(sampled: Sampled) -> np.ndarray:
    if sampled.transitions is not None:
        return sampled.transitions.keys
    return np.array([item.key for item in sampled.items], np.uint64)


def _at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What it returns: nothing in it has to wait here, so it needs no event loop."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a call had to wait")


def _replace(ring: PriorityRing, priorities: np.ndarray) -> None:
    ring.remove(np.arange(ring.oldest_key, ring.oldest_key + len(priorities), dtype=np.uint64))
    ring.append(priorities)


def _times_ms(call: Callable[..., object], arguments: Iterable[tuple[Any, ...]]) -> list[float]:
    times_ms = []
    for each in arguments:
        started = time.perf_counter()
        call(*each)
        times_ms.append(1e3 * (time.perf_counter() - started))
    return times_ms


def _print(what: str, times_ms: dict[str, list[float]]) -> dict[str, float]:
    """Returns the medians."""
    medians = {}
    for name, times in times_ms.items():
        medians[f"{what} {name}"] = median = float(np.median(times))
        p99 = np.quantile(times, 0.99)
        print(
            f"    {what:<11} {name:<8} median {median:.3f} ms   p99 {p99:.3f} ms   worst {max(times):.2f} ms"
        )
    return medians


if __name__ == "__main__":
    print(describe_machine())
    main()
