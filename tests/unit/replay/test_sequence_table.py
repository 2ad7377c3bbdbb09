"""The sequence table: which sequences there are, what evicts them, what a sample brings, and restarts."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.sequence_table import SequenceTable
from services.replay.tables import EventSink, Insertion, NoJournal
from shoal.clients.replay_shard import ITEM_OVERHEAD_BYTES, PrioritiesUpdated
from shoal.config.tables import SequenceTable as SequenceSettings
from shoal.errors import FailedPreconditionError, InvalidArgumentError, LimitError
from shoal.journal.events import Inserted, PrioritiesSet, Removed, SampledOnce
from tests.unit.replay.payloads import LIFE, insertion, payload, trajectory
from tests.unit.replay.restarts import MemoryStore, Recorder, assert_adds_up
from tests.unit.replay.virtual_time import run, settle

PLENTY = 1 << 24
SIZE = len(payload(0, envs=1))
# Steps of an unroll.
T = 2


def make_table(
    sink: EventSink | None = None, store: MemoryStore | None = None, **settings: Any
) -> SequenceTable:
    return SequenceTable(
        "train",
        SequenceSettings(**{"max_items": 8, **settings}),
        sink or NoJournal(),
        store or MemoryStore(),
        asyncio.get_running_loop().time,
        np.random.default_rng(0),
    )


def unrolls(sequence: int, *places: tuple[int, int], priorities: list[float] | None = None) -> Insertion:
    """An append of one unroll per (stream, how many unrolls of it came before)."""
    return insertion(
        sequence,
        *(
            trajectory(sequence, rows=T + 1, envs=1, stream=stream, first_step=T * number)
            for stream, number in places
        ),
        priorities=priorities,
    )


def keys(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


async def fill(table: SequenceTable, num_unrolls: int) -> None:
    """Of one stream."""
    for number in range(num_unrolls):
        assert await table.insert(unrolls(number, (0, number)), 0.0)


async def sampleable(table: SequenceTable) -> dict[int, int]:
    """The sequences that can be sampled, by key, with the number of their unrolls."""
    state = await table.sample(0, PLENTY, 0.0)
    found = {}
    while len(found) < state.num_items:
        for item in (await table.sample(64, PLENTY, 0.0)).items:
            found[item.key] = len(item.payloads)
    return dict(sorted(found.items()))


def test_a_sample_brings_the_bytes_that_came_and_the_table_they_are_from() -> None:
    async def main() -> None:
        table = make_table(alpha=1.0)
        first = unrolls(5, (0, 0), (1, 0), priorities=[1.0, 3.0])
        table.check(first)
        assert await table.insert(first, 1.0)
        assert first.first_key == 1
        sampled = await table.sample(40, PLENTY, 1.0)
        assert len(sampled.items) == 40
        assert sampled.transitions is None
        assert (sampled.num_items, sampled.num_bytes, sampled.priority_mass) == (2, first.num_bytes, 4.0)
        by_key = {item.key: item for item in sampled.items}
        assert [(by_key[key].payloads, by_key[key].mass) for key in (1, 2)] == [
            ((first.payloads[0],), 1.0),
            ((first.payloads[1],), 3.0),
        ]
        assert (by_key[1].life, by_key[1].sequence) == (LIFE, 5)
        # Stratified: 3 of 4 strata are wholly those of the second.
        assert sum(item.key == 2 for item in sampled.items) == 30
        assert table.ledger.num_samples == 40
        assert table.ledger.sampled_bytes == sum(item.num_bytes for item in sampled.items)
        assert_adds_up(table)

    run(main())


def test_what_can_never_be_stored_is_refused() -> None:
    async def main() -> None:
        table = make_table(max_items=2, max_bytes=3 * SIZE)
        with pytest.raises(InvalidArgumentError, match=r"2 environments: .* append a trajectory for each"):
            table.check(insertion(0, trajectory(envs=2)))
        with pytest.raises(LimitError, match=r"3 items is above max_items of table 'train' \(2\)"):
            table.check(unrolls(0, (0, 0), (0, 1), (0, 2)))
        with pytest.raises(LimitError, match="bytes is above max_bytes"):
            table.check(insertion(0, trajectory(envs=1, width=400)))
        with pytest.raises(InvalidArgumentError, match="1 priorities for 2 trajectories"):
            table.check(unrolls(0, (0, 0), (0, 1), priorities=[1.0]))
        with pytest.raises(InvalidArgumentError, match="finite"):
            table.check(unrolls(0, (0, 0), priorities=[float("nan")]))

    run(main())


def test_answers_stay_below_max_bytes_whatever_is_drawn_but_bring_one() -> None:
    async def main() -> None:
        table = make_table(unrolls=2)
        await fill(table, 6)
        largest = max(item.payloads[0].size for item in table.items_from(0))
        for wanted in (1, 2, 3):
            sampled = await table.sample(9, wanted * (2 * largest + ITEM_OVERHEAD_BYTES), 1.0)
            assert len(sampled.items) == wanted
        assert len((await table.sample(9, 1, 1.0)).items) == 1

    run(main())


@given(
    st.sampled_from([(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (4, 1)]),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 0, 0, 1])), max_size=40),
)
def test_sequences_are_those_of_the_definition(
    shape: tuple[int, int], arrivals: list[tuple[int, int]]
) -> None:
    """First at the m-th unroll of an unbroken chain, then at every (m - overlap)-th; a gap begins anew."""

    async def main() -> None:
        length, overlap = shape
        table = make_table(max_items=64, unrolls=length, overlap_unrolls=overlap)
        place = dict.fromkeys(range(3), 0)
        chains: dict[int, list[int]] = {0: [], 1: [], 2: []}
        wanted = {}
        for key, (stream, gap) in enumerate(arrivals, 1):
            if gap:
                chains[stream] = []
            place[stream] += 1 + gap
            chains[stream].append(key)
            await table.insert(unrolls(key, (stream, place[stream])), 0.0)
            since_first = len(chains[stream]) - length
            if since_first >= 0 and since_first % (length - overlap) == 0:
                wanted[key] = chains[stream][-length:]
        state = await table.sample(0, PLENTY, 0.0)
        assert state.num_items == state.priority_mass == len(wanted)
        assert state.num_bytes == sum(item.payloads[0].size for item in table.items_from(0))
        assert await sampleable(table) == dict.fromkeys(wanted, length)
        payloads = {item.first_key: item.payloads[0].data for item in table.items_from(0)}
        if wanted:
            for item in (await table.sample(64, PLENTY, 0.0)).items:
                assert list(item.payloads) == [payloads[key] for key in wanted[item.key]]
                assert item.sequence == item.key
        assert_adds_up(table)

    run(main())


def test_lives_and_steps_that_do_not_follow_make_no_sequence() -> None:
    async def main() -> None:
        table = make_table(unrolls=2)
        await table.insert(unrolls(0, (0, 0)), 0.0)
        other_life = unrolls(1, (0, 1))
        other_life.life = type(LIFE)("actor", "another run")
        await table.insert(other_life, 0.0)
        # Again the same steps.
        await table.insert(unrolls(2, (0, 0)), 0.0)
        assert (await table.sample(1, PLENTY, 0.0)).items == ()
        await table.insert(unrolls(3, (0, 1)), 0.0)
        assert await sampleable(table) == {4: 2}

    run(main())


@pytest.mark.parametrize("bound", [{"max_items": 4}, {"max_bytes": 5 * SIZE - 1}])
def test_the_oldest_go_and_with_them_the_sequences_they_are_part_of(bound: dict[str, int]) -> None:
    async def main() -> None:
        table = make_table(**{"max_items": 64, "unrolls": 3, "overlap_unrolls": 2, **bound})
        await fill(table, 7)
        assert table.num_items == 4
        assert table.oldest_key == 4
        assert table.ledger.num_evicted == 3
        assert await sampleable(table) == {6: 3, 7: 3}
        assert table.stats().ram_bytes == table.num_bytes
        assert_adds_up(table)

    run(main())


def test_priorities_are_set_where_there_is_a_sequence() -> None:
    async def main() -> None:
        sink = Recorder()
        table = make_table(sink, alpha=0.5, unrolls=2, overlap_unrolls=1, max_items=4)
        await fill(table, 5)
        sink.events.clear()
        # 1 is evicted, 2 lost the first unroll of its sequence, 9 never was; the last of equal keys counts.
        done = table.update_priorities(keys(1, 2, 3, 4, 3, 9), np.array([9.0, 9.0, 1.0, 4.0, 16.0, 9.0]))
        assert done == PrioritiesUpdated(num_updated=3, num_gone=3)
        (event,) = sink.events
        assert isinstance(event, PrioritiesSet)
        assert (event.keys.tolist(), event.priorities.tolist()) == ([3, 4, 3], [1.0, 4.0, 16.0])
        state = await table.sample(0, PLENTY, 0.0)
        assert (state.num_items, state.priority_mass) == (3, 4.0 + 2.0 + 1.0)
        # The highest priority seen is what the next one gets.
        await table.insert(unrolls(5, (0, 5)), 0.0)
        assert table.save().priorities[-1] == 16.0
        assert (table.ledger.num_priorities_updated, table.ledger.num_priorities_gone) == (3, 3)
        with pytest.raises(FailedPreconditionError, match="'train' is sampled uniformly"):
            make_table().update_priorities(keys(1), np.array([1.0]))
        with pytest.raises(InvalidArgumentError, match="2 keys with 1 priorities"):
            table.update_priorities(keys(1, 2), np.array([1.0]))

    run(main())


def test_a_waiting_sampler_goes_when_a_priority_makes_it_possible() -> None:
    async def main() -> None:
        table = make_table(alpha=1.0)
        await table.insert(unrolls(0, (0, 0), priorities=[0.0]), 0.0)
        waiting = asyncio.create_task(table.sample(1, PLENTY, 60.0))
        await settle()
        assert not waiting.done()
        table.update_priorities(keys(1), np.array([2.0]))
        assert [item.mass for item in (await waiting).items] == [2.0]
        assert asyncio.get_running_loop().time() == 0.0

    run(main())


def test_sampled_often_enough_an_unroll_goes_once_no_sequence_needs_it() -> None:
    async def main() -> None:
        sink = Recorder()
        table = make_table(sink, unrolls=3, overlap_unrolls=1, max_times_sampled=2)
        await fill(table, 5)
        sink.events.clear()
        seen: list[int] = []
        while (items := (await table.sample(1, PLENTY, 0.0)).items) and table.num_items:
            seen += [item.key for item in items]
        seen += [item.key for item in items]
        # Sequences 1-3 and 3-5; what comes next needs 5 again.
        assert sorted(seen) == [3, 3, 5, 5]
        assert sorted(k for e in sink.events if isinstance(e, Removed) for k in e.keys.tolist()) == [
            1,
            2,
            3,
            4,
        ]
        assert [e.keys.tolist() for e in sink.events if isinstance(e, SampledOnce)] == [[key] for key in seen]
        assert table.save().keys.tolist() == [5]
        assert table.ledger.num_sampled_out == 4
        for number in (5, 6):
            await table.insert(unrolls(number, (0, number)), 0.0)
        assert (await table.sample(1, PLENTY, 0.0)).items[0].key == 7
        assert_adds_up(table)

    run(main())


def test_damaged_payloads_are_dropped_counted_and_the_others_served() -> None:
    async def main() -> None:
        store = MemoryStore()
        table = make_table(store=store, unrolls=2, overlap_unrolls=1)
        await fill(table, 5)
        store.damaged.add(table.items_from(3)[0].payloads[0].data)
        found = set()
        for _ in range(20):
            found |= {item.key for item in (await table.sample(8, PLENTY, 0.0)).items}
        # Of the sequences 2, 3, 4 and 5 those with the third unroll are gone.
        assert found == {2, 5}
        assert (table.ledger.num_corrupt, table.ledger.num_evicted) == (1, 1)
        store.damaged |= {item.payloads[0].data for item in table.items_from(0)}
        late = asyncio.create_task(table.sample(4, PLENTY, 10.0))
        await settle()
        assert not late.done()
        await table.insert(unrolls(100, (1, 0), (1, 1)), 0.0)
        assert {item.key for item in (await late).items} == {7}
        assert_adds_up(table)

    run(main())


def test_an_insert_that_waits_goes_when_damage_leaves_too_few() -> None:
    async def main() -> None:
        store = MemoryStore()
        table = make_table(store=store, min_items=2, samples_per_insert=100.0, ratio_tolerance=1.0)
        await fill(table, 3)
        store.damaged |= {item.payloads[0].data for item in table.items_from(2)}
        blocked = asyncio.create_task(table.insert(unrolls(3, (0, 3)), 60.0))
        await settle()
        assert not blocked.done()
        await table.sample(20, PLENTY, 0.0)
        assert await blocked
        assert asyncio.get_running_loop().time() == 0.0
        assert table.save().keys.tolist() == [1, 4]

    run(main())


def test_the_limiter_makes_either_side_wait_for_the_other() -> None:
    async def main() -> None:
        table = make_table(max_items=64, min_items=2, samples_per_insert=2.0, ratio_tolerance=2.0)
        early = asyncio.create_task(table.sample(64, PLENTY, 60.0))
        await settle()
        await fill(table, 2)
        # As many as are allowed, at once.
        assert len((await early).items) == 2
        assert (await table.sample(1, PLENTY, 1.0)).items == ()
        inserted = 2
        while await table.insert(unrolls(inserted, (0, inserted)), 0.0):
            inserted += 1
        assert inserted == 4
        blocked = asyncio.create_task(table.insert(unrolls(4, (0, 4)), 60.0))
        await asyncio.sleep(3.0)
        assert len((await table.sample(1, PLENTY, 0.0)).items) == 1
        assert await blocked
        assert table.ledger.insert_wait_s == pytest.approx(3.0)
        assert (table.ledger.num_insert_waits, table.ledger.num_sample_waits) == (1, 2)

    run(main())


def test_events_of_inserts_say_all_that_a_restart_needs() -> None:
    async def main() -> None:
        sink = Recorder()
        table = make_table(sink, unrolls=2)
        await table.insert(unrolls(7, (3, 0), (3, 1), priorities=[5.0, 6.0]), 0.0)
        (event,) = sink.events
        assert isinstance(event, Inserted)
        assert (event.first_key, event.num_keys, event.life, event.sequence) == (1, 2, LIFE, 7)
        assert (event.streams, event.first_steps, event.unroll_length) == ((3, 3), (0, T), T)
        np.testing.assert_array_equal(event.priorities, [np.nan, 6.0])
        await table.sample(1, PLENTY, 0.0)
        sampled = sink.events[-1]
        assert isinstance(sampled, SampledOnce)
        assert (sampled.num_samples, sampled.keys.size) == (1, 0)

    run(main())


@pytest.mark.parametrize("shape", [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (4, 2), (7, 0)])
def test_as_many_items_can_be_waited_for_as_there_can_ever_be(shape: tuple[int, int]) -> None:
    async def main() -> None:
        length, overlap = shape
        limits = {"max_items": 7, "unrolls": length, "overlap_unrolls": overlap}
        table = make_table(**limits)
        most = 0
        for number in range(30):
            await table.insert(unrolls(number, (0, number)), 0.0)
            most = max(most, (await table.sample(0, PLENTY, 0.0)).num_items)
        assert SequenceSettings(**limits, min_items=most).min_items == most
        with pytest.raises(ValueError, match="nothing would ever be sampled"):
            SequenceSettings(**limits, min_items=most + 1)

    run(main())
