"""Streams keep their order and stay together, and nothing that may be stored goes to a second shard."""

from __future__ import annotations

import asyncio
from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.clients.replay_shard import Outcome
from shoal.clients.replay_writer import ReplayWriter
from shoal.config.tables import QueueTable, SequenceTable
from tests.unit.clients.directories import ChangingDirectory
from tests.unit.clients.faulty_shards import FaultyShard
from tests.unit.clients.writing import FAILOVER_S, PAYLOADS, writing
from tests.unit.replay.payloads import payload
from tests.unit.replay.virtual_time import run, settle

T = 2
NUM_UNROLLS = 150
UNROLLS = [payload(number, rows=T + 1, envs=1, first_step=T * number) for number in range(NUM_UNROLLS)]
PAIRS = SequenceTable(
    unrolls=2, overlap_unrolls=1, samples_per_insert=1.0, ratio_tolerance=8.0, min_items=2, max_items=1000
)


@pytest.mark.parametrize("fault", ["away", "leaving", "quiet", "full", "unsafe"])
def test_a_stream_leaves_a_shard_that_is_not_there_for_it_and_stays_with_the_next(fault: str) -> None:
    async def main() -> None:
        a, b = shards = [FaultyShard(name, QueueTable(max_items=2)) for name in "ab"]
        directory = ChangingDirectory(a, b)
        async with writing(directory, failover_after_s=60.0) as writer:
            await asyncio.sleep(0.1)
            await writer.append(PAYLOADS[0], stream=0)
            assert await writer.flush(1.0) == 0
            home, other = shards if a.stats.num_inserted else reversed(shards)
            if fault == "away":
                home.kill()
            elif fault == "unsafe":
                home.unsafe = Outcome.PENDING
            elif fault != "full":
                home.silent = True
            await settle()
            for number in (1, 2):
                await writer.append(PAYLOADS[number], stream=0)
            if fault == "leaving":
                directory.list(other)
            await asyncio.sleep(2.0)
            if fault in ("leaving", "quiet"):
                assert other.stats.num_inserted == 0, "none overtakes the one that was sent"
                home.silent = False
                await asyncio.sleep(1.0)
            assert other.stats.num_inserted == (2 if fault == "away" else 1)
            home.unsafe = None
            home.down = False
            await home.stored()
            await other.stored()
            await asyncio.sleep(5.0)
            before = other.stats.num_inserted
            await writer.append(PAYLOADS[3], stream=0)
            assert await writer.flush(1.0) == 0
            assert other.stats.num_inserted == before + 1, "it has moved"

    run(main())


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_stream_under_back_pressure_is_stored_in_order_and_makes_all_its_sequences(num_shards: int) -> None:
    """Its shards let it in only as fast as a slow sampler samples: many appends time out."""

    async def main() -> None:
        shards = [FaultyShard(name, PAIRS) for name in "ab"[:num_shards]]

        async def sample_slowly() -> None:
            while True:
                for shard in shards:
                    await shard.shard.sample("train", 1, 0.001)
                await asyncio.sleep(1.3)

        async with writing(ChangingDirectory(*shards), max_items=64) as writer:
            await asyncio.sleep(0.1)
            sampling = asyncio.ensure_future(sample_slowly())
            for unroll in UNROLLS:
                await writer.append(unroll, stream=0)
            assert await writer.flush(1000.0) == 0
            sampling.cancel()
            assert writer.stats.num_timed_out > 50
        stored = [
            [event.sequence for event in shard.shard.tables["train"].table.items_from(1)] for shard in shards
        ]
        expected = [sum(after == before + 1 for before, after in pairwise(one)) for one in stored]
        found = [round(shard.stats.priority_mass) for shard in shards]
        print(f"{num_shards} shards: stored {[len(one) for one in stored]}, sequences {found} of {expected}")
        assert sorted(chain(*stored)) == list(range(NUM_UNROLLS))
        assert all(one == sorted(one) for one in stored)
        assert found == expected
        if num_shards == 1:
            assert found == [NUM_UNROLLS - 1]

    run(main())


FAULTS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from(["silent", "unsafe", "break", "kill", "full", "lose"]),
        st.floats(0.01, 2 * FAILOVER_S),
    ),
    max_size=8,
)


@given(FAULTS)
def test_whatever_happens_the_order_within_a_stream_is_kept(faults: list[tuple[str, str, float]]) -> None:
    """Only the copy of what was pending at a shard that fell silent comes late, as the stream went on."""

    async def main() -> None:
        shards = {name: FaultyShard(name, QueueTable(max_items=20)) for name in "ab"}
        stored: dict[str, list[int]] = {"a": [], "b": []}

        async def drain() -> None:
            for name, shard in shards.items():
                stored[name] += await shard.stored()

        async with writing(ChangingDirectory(*shards.values()), max_items=8) as writer:
            await asyncio.sleep(0.1)
            appending = asyncio.ensure_future(append_all(writer))
            for name, fault, seconds in faults:
                shard = shards[name]
                shard.silent = fault == "silent"
                shard.unsafe = Outcome.PENDING if fault == "unsafe" else None
                shard.loses = (lambda ack: ack.sequence % 3 == 0) if fault == "lose" else (lambda ack: False)
                if fault == "break":
                    shard.break_streams()
                elif fault == "kill":
                    shard.kill()
                await asyncio.sleep(seconds)
                if fault != "full":
                    await drain()
                shard.down = False
                shard.loses = lambda ack: False
            for shard in shards.values():
                shard.silent = False
                shard.unsafe = None
            while not appending.done() or writer.num_unacked:
                await drain()
                await asyncio.sleep(0.1)
            await appending
            await drain()
        pending = any(fault == "unsafe" for _, fault, _ in faults)
        copies = set(stored["a"]) & set(stored["b"]) if pending else set()
        for sequences in stored.values():
            assert len(sequences) == len(set(sequences))
            for stream in range(2):
                own = [sequence for sequence in sequences if sequence % 2 == stream]
                assert [sequence for sequence in own if sequence not in copies] == sorted({*own} - copies)
        assert set(stored["a"] + stored["b"]) == set(range(60))

    run(main())


async def append_all(writer: ReplayWriter) -> None:
    for number in range(60):
        await writer.append(PAYLOADS[number], stream=number % 2)
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("answer", [Outcome.PENDING, Outcome.TIMED_OUT])
def test_what_a_shard_has_stored_but_not_safely_is_not_stored_by_another(answer: Outcome) -> None:
    """The control answers TIMED_OUT, which tells the writer that it may go elsewhere."""

    async def main() -> None:
        a, b = FaultyShard("a"), FaultyShard("b")
        async with writing(ChangingDirectory(a, b), max_items=16) as writer:
            await asyncio.sleep(0.1)
            a.unsafe = answer
            for number in range(10):
                await writer.append(PAYLOADS[number])
            await asyncio.sleep(3 * FAILOVER_S)
            held = writer.num_unacked
            before = a.stats.num_inserted
            for number in range(10, 20):
                await writer.append(PAYLOADS[number])
            await settle()
            if answer is Outcome.PENDING:
                assert a.stats.num_inserted == before, "new ones go where they are safe"
            a.unsafe = None
            assert await writer.flush(30.0) == 0
            stored = await a.stored() + await b.stored()
            print(f"{answer.name}: held back {held}, appended 20, stored {len(stored)}")
            assert writer.stats.num_moved == 0
            assert set(stored) == set(range(20))
            assert (len(stored) == 20) == (answer is Outcome.PENDING)
            assert writer.stats.num_timed_out > 0

    run(main())


def test_what_is_pending_at_a_shard_that_falls_silent_goes_to_others_in_order() -> None:
    async def main() -> None:
        a, b = FaultyShard("a"), FaultyShard("b")
        directory = ChangingDirectory(a)
        async with writing(directory, max_items=16) as writer:
            await asyncio.sleep(0.1)
            a.unsafe = Outcome.PENDING
            for number in range(5):
                await writer.append(PAYLOADS[number])
            await asyncio.sleep(3.5)
            directory.list(a, b)
            await asyncio.sleep(FAILOVER_S)
            assert writer.num_unacked == 5
            a.kill()
            assert await writer.flush(FAILOVER_S - 1.0) == 5
            assert await writer.flush(4.0) == 0
            assert writer.stats.num_moved == 5
            assert await b.stored() == list(range(5))

    run(main())
