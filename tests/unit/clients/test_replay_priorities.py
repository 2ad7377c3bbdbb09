"""New priorities on their way back to the shards: beside the samples, merged, counted, never in the way."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import shoal.clients.replay_batch_link
from shoal.clients.replay_batch_link import MAX_KEYS_PER_CALL
from shoal.clients.replay_draw import ItemRefs
from shoal.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from tests.unit.clients.directories import ChangingDirectory
from tests.unit.clients.memory_shards import MemoryShard
from tests.unit.clients.sampling import sampling, take, three
from tests.unit.replay.virtual_time import run


def test_a_batch_of_priorities_is_one_call_for_each_shard() -> None:
    async def main() -> None:
        shards = three()
        async with sampling(ChangingDirectory(*shards), 64) as sampler:
            batch = await sampler.next()
            await sampler.update_priorities(batch, np.full(64, 9.0))
            assert await sampler.flush(1.0) == 0
            keys = {(item.life.actor_id, item.key) for item in batch.items}
            for shard in shards:
                told = {key: 9.0 for name, key in keys if name == shard.address.target}
                assert shard.updates == [told]
            stats = sampler.stats
            assert (stats.num_updated, stats.num_gone, stats.num_updates_dropped) == (len(keys), 0, 0)

    run(main())


def test_references_are_as_good_as_the_batch() -> None:
    async def main() -> None:
        shard = MemoryShard("a", {1: 1.0, 2: 1.0})
        async with sampling(ChangingDirectory(shard), 32) as sampler:
            refs = (await sampler.next()).refs
            some = ItemRefs(refs.sources, np.zeros(4, int), np.array([2, 1, 2, 9], np.uint64))
            await sampler.update_priorities(some, np.array([5.0, 6.0, 7.0, 8.0]))
            assert await sampler.flush(1.0) == 0
            assert shard.updates == [{2: 7.0, 1: 6.0, 9: 8.0}], "of two for one item the last"

    run(main())


def test_items_that_are_gone_are_counted() -> None:
    async def main() -> None:
        shard = MemoryShard("a", {1: 1.0, 2: 1.0})
        async with sampling(ChangingDirectory(shard), 32) as sampler:
            batch = await sampler.next()
            shard.masses = {2: 1.0, 3: 1.0}
            await sampler.update_priorities(batch, np.full(32, 4.0))
            assert await sampler.flush(1.0) == 0
            assert (sampler.stats.num_updated, sampler.stats.num_gone) == (1, 1)
            assert shard.masses == {2: 4.0, 3: 1.0}

    run(main())


def test_what_queues_up_during_a_call_is_one_call_and_the_newest_counts() -> None:
    async def main() -> None:
        shard = MemoryShard("a", {1: 1.0})
        async with sampling(ChangingDirectory(shard), 2, prefetch_batches=30) as sampler:
            batches = await take(sampler, 20)
            shard.silent = True
            for number, batch in enumerate(batches, 1):
                await sampler.update_priorities(batch, np.array([0.0, number]))
                await asyncio.sleep(0.1)
            shard.silent = False
            assert await sampler.flush(1.0) == 0
            assert shard.updates == [{1: 1.0}, {1: 20.0}], "within a batch the last one counts, too"

    run(main())


def test_a_shard_that_left_and_came_back_gets_none_for_its_former_items() -> None:
    async def main() -> None:
        a, b, _ = three()
        directory = ChangingDirectory(a, b)
        async with sampling(directory, 64) as sampler:
            before = await sampler.next()
            directory.list(b)
            a.kill()
            await asyncio.sleep(60.0)
            a.down = False
            directory.list(a, b)
            await asyncio.sleep(60.0)
            # Those that were ready before.
            await take(sampler, 10)
            await sampler.update_priorities(before, np.ones(len(before)))
            assert await sampler.flush(1.0) == 0
            assert a.updates == []
            assert len(b.updates) == 1

    run(main())


@pytest.mark.parametrize("priorities", [["high"] * 2, [[1.0], [1.0, 2.0]]], ids=str)
def test_what_is_no_number_is_the_callers_mistake(priorities: list[object]) -> None:
    async def main() -> None:
        async with sampling(ChangingDirectory(MemoryShard("a", {1: 1.0})), 2) as sampler:
            batch = await sampler.next()
            with pytest.raises(InvalidArgumentError, match="no array of numbers"):
                await sampler.update_priorities(batch, priorities)  # type: ignore[arg-type]

    run(main())


def test_many_keys_go_by_several_calls() -> None:
    async def main() -> None:
        shard = MemoryShard("a", {1: 1.0})
        async with sampling(ChangingDirectory(shard), 2) as sampler:
            source = (await sampler.next()).refs.sources
            half = MAX_KEYS_PER_CALL // 2 + 1
            shard.silent = True
            for part in range(4):
                keys = np.arange(part * half, (part + 1) * half, dtype=np.uint64) + 1
                await sampler.update_priorities(ItemRefs(source, np.zeros(half, int), keys), np.ones(half))
            shard.silent = False
            assert await sampler.flush(1.0) == 0
            assert [len(told) for told in shard.updates] == [half] * 4
            assert (sampler.stats.num_updated, sampler.stats.num_gone) == (1, 4 * half - 1)

    run(main())


def test_a_shard_that_takes_them_too_slowly_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shoal.clients.replay_batch_link, "MAX_KEYS_WAITING", 10)

    async def main() -> None:
        shard = MemoryShard("a", dict.fromkeys(range(1, 100), 1.0))
        async with sampling(ChangingDirectory(shard), 2) as sampler:
            source = (await sampler.next()).refs.sources
            shard.silent = True
            for key in range(1, 16):
                refs = ItemRefs(source, np.zeros(1, int), np.array([key], np.uint64))
                await sampler.update_priorities(refs, np.array([float(key)]))
                await asyncio.sleep(0.01)
            shard.silent = False
            assert await sampler.flush(1.0) == 0
            told = [key for update in shard.updates for key in update]
            # One is under way, ten wait, the others are dropped.
            assert told == [1, *range(7, 16)]
            assert sampler.stats.num_updates_dropped == 5

    run(main())


def test_a_shard_that_is_away_holds_up_nobody_and_what_was_for_it_is_dropped() -> None:
    """Also after it is back: a shard that began anew may have given the same keys to other items."""

    async def main() -> None:
        a, b, _ = three()
        async with sampling(ChangingDirectory(a, b), 64) as sampler:
            first, second = await take(sampler, 2)
            a.kill()
            started = asyncio.get_running_loop().time()
            await sampler.update_priorities(first, np.full(64, 9.0))
            assert asyncio.get_running_loop().time() == started
            assert await sampler.flush(1.0) == 0
            assert not a.updates
            assert len(b.updates) == 1
            of_a = sampler.stats.num_updates_dropped
            assert of_a > 0
            a.down = False
            await asyncio.sleep(2.0)
            await take(sampler, 3)
            await sampler.update_priorities(second, np.full(64, 9.0))
            assert await sampler.flush(1.0) == 0
            assert not a.updates
            assert sampler.stats.num_updates_dropped > of_a
            await sampler.update_priorities((await take(sampler, 3))[-1], np.full(64, 9.0))
            assert await sampler.flush(1.0) == 0
            assert a.updates

    run(main())


def test_a_call_that_fails_is_made_again_with_what_has_come_since() -> None:
    async def main() -> None:
        shard = MemoryShard("a", {1: 1.0})
        async with sampling(ChangingDirectory(shard), 1, prefetch_batches=4) as sampler:
            first, second = await take(sampler, 2)
            shard.silent = True
            await sampler.update_priorities(first, np.array([2.0]))
            await asyncio.sleep(1.0)
            await sampler.update_priorities(second, np.array([3.0]))
            shard.update_error = UnavailableError("deadline exceeded")
            shard.silent = False
            assert await sampler.flush(5.0) == 1, "both are for one item"
            shard.update_error = None
            assert await sampler.flush(5.0) == 0
            assert shard.updates == [{1: 3.0}]

    run(main())


def test_a_refusal_surfaces_from_the_next_call() -> None:
    async def main() -> None:
        shard = MemoryShard("a", {1: 1.0})
        shard.update_error = FailedPreconditionError("table 'train' has alpha 0")
        async with sampling(ChangingDirectory(shard), 1) as sampler:
            batch = await sampler.next()
            await sampler.update_priorities(batch, np.array([2.0]))
            with pytest.raises(FailedPreconditionError, match="alpha 0"):
                await sampler.flush(5.0)
            with pytest.raises(FailedPreconditionError, match="alpha 0"):
                await sampler.update_priorities(batch, np.array([2.0]))
            with pytest.raises(FailedPreconditionError, match="alpha 0"):
                await take(sampler, 3)

    run(main())


@pytest.mark.parametrize(
    ("priorities", "complaint"),
    [
        ([1.0, 2.0, 3.0], r"priorities of shape \[3\] for a batch of 2 items"),
        ([[1.0], [2.0]], r"priorities of shape \[2, 1\] for a batch of 2 items"),
        ([1.0, -2.0], r"priority -2\.0 is not a finite number of at least 0"),
        ([1.0, float("nan")], "priority nan is not"),
        ([1.0, float("inf")], "priority inf is not"),
    ],
)
def test_what_no_shard_would_take_is_refused_at_once(priorities: list[float], complaint: str) -> None:
    async def main() -> None:
        shard = MemoryShard("a", {1: 1.0})
        async with sampling(ChangingDirectory(shard), 2) as sampler:
            batch = await sampler.next()
            with pytest.raises(InvalidArgumentError, match=complaint):
                await sampler.update_priorities(batch, np.array(priorities))
            assert await sampler.flush(1.0) == 0
            assert not shard.updates
            assert len(await sampler.next()) == 2, "the caller's mistake breaks nothing"

    run(main())
