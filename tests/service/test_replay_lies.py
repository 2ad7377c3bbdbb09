"""Lying tensors, made up by hypothesis, to a real shard: none is stored, all are counted."""

from __future__ import annotations

import asyncio
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from services.replay.tables import REJECT_REASONS
from shoal.clients.replay_shard import Append, AppendStream, Outcome, ReplayShardClient, TableStats
from shoal.codec import DTYPES
from shoal.records import ACTION, LOG_PROB, OBSERVATION, REWARD, Life, Trajectory
from shoal.v1 import trajectory_pb2
from shoal.wire import decode_trajectory, encode_trajectory
from tests.service.replay_items import DECLARED, NUM_ACTIONS, STEPS, changed, encoded, trajectory
from tests.service.replay_kinds import KINDS
from tests.service.replay_server import LIMITS, ShardProcess

HONEST = trajectory(1)
FLOAT_COLUMNS = (OBSERVATION, LOG_PROB, REWARD)
COLUMNS = sorted(HONEST.columns)


@st.composite
def another_dtype(draw: st.DrawFn) -> bytes:
    name = draw(st.sampled_from(COLUMNS))
    array = HONEST.columns[name]
    dtype = draw(st.sampled_from([dtype for dtype in DTYPES if dtype != array.dtype.name]))
    return changed(HONEST, **{name: array.astype(dtype)})


@st.composite
def another_shape(draw: st.DrawFn) -> bytes:
    name = draw(st.sampled_from(COLUMNS))
    array = HONEST.columns[name]
    shapes = [
        (*array.shape, draw(st.integers(1, 3))),
        (*array.shape[:2], draw(st.integers(4, 9))),
        (array.shape[0] + 1, *array.shape[1:]),
        array.shape[1:],
        (array.shape[0], 2, *array.shape[2:]),
        (0, *array.shape[1:]),
    ]
    return changed(HONEST, **{name: np.zeros(draw(st.sampled_from(shapes)), array.dtype)})


@st.composite
def other_columns(draw: st.DrawFn) -> bytes:
    name = draw(st.sampled_from(COLUMNS))
    if draw(st.booleans()):
        return changed(HONEST, **{name: None})
    extra = draw(st.text(min_size=1, max_size=20).filter(lambda text: text not in COLUMNS))
    return changed(HONEST, **{extra: HONEST.columns[name]})


@st.composite
def not_finite(draw: st.DrawFn) -> bytes:
    name = draw(st.sampled_from(FLOAT_COLUMNS))
    array = HONEST.columns[name].copy()
    array.flat[draw(st.integers(0, array.size - 1))] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    return changed(HONEST, **{name: array})


@st.composite
def no_such_action(draw: st.DrawFn) -> bytes:
    array = HONEST.columns[ACTION].copy()
    value = draw(st.integers(-(2**63), 2**63 - 1).filter(lambda action: not 0 <= action < NUM_ACTIONS))
    array.flat[draw(st.integers(0, array.size - 1))] = value
    return changed(HONEST, **{ACTION: array})


@st.composite
def false_header(draw: st.DrawFn) -> bytes:
    """What it says of a column or of a block is not what is there."""
    message = trajectory_pb2.Trajectory.FromString(encode_trajectory(HONEST))
    layout = trajectory_pb2.Layout.FromString(message.layout)
    column = layout.columns[draw(st.integers(0, len(layout.columns) - 1))]
    (block,) = message.blocks
    lie = draw(st.sampled_from(["shape", "crc", "data", "cut", "dtype", "codec"]))
    if lie == "shape":
        column.shape[draw(st.integers(0, len(column.shape) - 1))] = draw(st.integers(4, 2**62))
    elif lie == "crc":
        block.crc32c ^= draw(st.integers(1, 2**32 - 1))
    elif lie == "data":
        block.data = draw(st.binary(max_size=len(block.data) - 1))
        block.crc32c = crc32c(block.data)
    elif lie == "cut":
        block.data = block.data[: draw(st.integers(0, len(block.data) - 1))]
    elif lie == "dtype":
        column.dtype = 0  # type: ignore[assignment]
    else:
        block.codec = draw(st.sampled_from([0, 3, 17]))  # type: ignore[assignment]
    message.layout = layout.SerializeToString()
    return message.SerializeToString()


@st.composite
def scrambled(draw: st.DrawFn) -> bytes:
    """Some bytes replaced; filtered below if it happens to be whole and honest."""
    data = bytearray(encode_trajectory(HONEST))
    for _ in range(draw(st.integers(1, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


LIES = {
    "dtype": another_dtype(),
    "shape": another_shape(),
    "columns": other_columns(),
    "not finite": not_finite(),
    "action": no_such_action(),
    "header": false_header(),
    "bytes": scrambled(),
}
LIE = st.sampled_from(sorted(LIES)).flatmap(lambda name: st.tuples(st.just(name), LIES[name]))


class Victim:
    """A real shard with a table of every kind, its event loop, and what was sent to it."""

    def __init__(self, directory: Path) -> None:
        self._runner = asyncio.Runner()
        listed = ", ".join(f"{kind}: {{kind: {kind}, max_items: 100000, durability: wal}}" for kind in KINDS)
        self.shard = ShardProcess(directory, "victim", f"replay.tables={{train: {{}}, {listed}}}")
        self.client: ReplayShardClient
        self.streams: dict[str, AppendStream] = {}
        self.sequence = 0
        self.lies: Counter[str] = Counter()
        self.num_refused: Counter[str] = Counter()
        self.num_stored: Counter[str] = Counter()

    def __enter__(self) -> Victim:
        self._runner.run(self._start())
        return self

    def __exit__(self, *exc: object) -> None:
        self._runner.run(self.client.close())
        self._runner.close()
        self.shard.kill()

    async def _start(self) -> None:
        await self.shard.start()
        self.client = self.shard.client()
        for kind in KINDS:
            self.streams[kind] = await self.client.open_append(Life("liar", kind), kind, DECLARED)

    def send(self, kind: str, *payloads: bytes, priorities: np.ndarray | None = None) -> Outcome:
        async def exchange() -> Outcome:
            self.sequence += 1
            await self.streams[kind].send(Append(self.sequence, payloads, priorities, timeout_s=20.0))
            ack = await self.streams[kind].receive()
            assert bool(ack.reason) == (ack.outcome is Outcome.REJECTED)
            (self.num_stored if ack.outcome is Outcome.STORED else self.num_refused)[kind] += len(payloads)
            return ack.outcome

        return self._runner.run(exchange())

    def stats(self) -> dict[str, TableStats]:
        return {stats.table: stats for stats in self._runner.run(self.client.stats())}

    def reasons(self) -> dict[str, dict[str, int]]:
        with urllib.request.urlopen(f"http://{self.shard.announced('metrics')}/metrics") as response:
            families = list(text_string_to_metric_families(response.read().decode()))
        found: dict[str, dict[str, int]] = {}
        for sample in (sample for family in families for sample in family.samples):
            if sample.name == "shoal_replay_rejected_total":
                found.setdefault(sample.labels["table"], {})[sample.labels["reason"]] = int(sample.value)
        return found


def is_a_lie(payload: bytes) -> bool:
    """Not what scrambling happened to leave as it should be."""
    try:
        got = decode_trajectory(payload, LIMITS)
    except Exception:
        return True
    return not _is_honest(got)


def _is_honest(got: Trajectory) -> bool:
    same = {name: (array.dtype, array.shape[2:]) for name, array in HONEST.columns.items()}
    return (
        {name: (array.dtype, array.shape[2:]) for name, array in got.columns.items()} == same
        and got.unroll_length == STEPS
        and got.num_envs == 1
        and all(np.isfinite(got.columns[name]).all() for name in FLOAT_COLUMNS)
        and bool(np.isin(got.columns[ACTION], range(NUM_ACTIONS)).all())
    )


def tell_lies(victim: Victim) -> None:
    @settings(max_examples=400, deadline=None)
    @given(kind=st.sampled_from(sorted(KINDS)), lie=LIE, place=st.integers(0, 2))
    def tell(kind: str, lie: tuple[str, bytes], place: int) -> None:
        name, payload = lie
        if is_a_lie(payload):
            payloads = [encoded(number) for number in range(2)]
            payloads.insert(place, payload)
            assert victim.send(kind, *payloads) is Outcome.REJECTED
            victim.lies[name] += 1

    tell()


def tell_lies_about_priorities(victim: Victim) -> None:
    @settings(max_examples=60, deadline=None)
    @given(
        kind=st.sampled_from(["sequence", "transition"]),
        priorities=st.lists(st.floats(width=32), min_size=1, max_size=8),
    )
    def tell(kind: str, priorities: list[float]) -> None:
        needed = STEPS if kind == "transition" else 1
        array = np.array(priorities, np.float32)
        honest = len(array) == needed and bool((np.isfinite(array) & (array >= 0)).all())
        outcome = victim.send(kind, encoded(0), priorities=array)
        assert outcome is (Outcome.STORED if honest else Outcome.REJECTED)
        victim.lies["priorities"] += not honest

    tell()


def too_large() -> bytes:
    message = trajectory_pb2.Trajectory.FromString(encode_trajectory(HONEST))
    layout = trajectory_pb2.Layout.FromString(message.layout)
    layout.columns[0].shape[0] = 1 << 40
    message.layout = layout.SerializeToString()
    return message.SerializeToString()


def test_lies_are_refused_with_all_that_comes_with_them_and_the_next_honest_append_is_served(
    tmp_path: Path,
) -> None:
    with Victim(tmp_path) as victim:
        for kind in KINDS:
            assert victim.send(kind, encoded(0)) is Outcome.STORED
        tell_lies(victim)
        tell_lies_about_priorities(victim)
        for kind in KINDS:
            assert victim.send(kind, too_large()) is Outcome.REJECTED
        two_envs = {name: np.concatenate([array, array], axis=1) for name, array in HONEST.columns.items()}
        assert victim.send("sequence", encode_trajectory(Trajectory(two_envs))) is Outcome.REJECTED
        assert victim.send("sequence", encoded(0, steps=STEPS + 1)) is Outcome.REJECTED
        stats, reasons = victim.stats(), victim.reasons()
        print(f"lies by kind: {dict(victim.lies)}; crashes 0")
        for kind in KINDS:
            rows = STEPS if kind == "transition" else 1
            bad = stats[kind].num_items - victim.num_stored[kind] * rows
            print(f"{kind}: refused {reasons[kind]}, bad items stored {bad}")
            assert bad == 0
            assert stats[kind].num_rejected == victim.num_refused[kind] == sum(reasons[kind].values())
            assert stats[kind].num_inserted == stats[kind].num_items + stats[kind].num_rejected
            assert {reason for reason, number in reasons[kind].items() if number} == set(REJECT_REASONS)
            assert victim.send(kind, encoded(7)) is Outcome.STORED
        assert "Traceback" not in victim.shard.log
