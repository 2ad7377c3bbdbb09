"""The batch sampler against shards in memory; connections break, fall silent, come and go."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from shoal.clients.replay_batch_link import SAMPLE_TIMEOUT_S, SILENT_AFTER_S
from shoal.clients.replay_batches import EXPLAIN_AFTER_S
from shoal.clients.replay_draw import SampledBatch
from shoal.clients.replay_weights import anneal
from shoal.errors import NotFoundError, UnavailableError, UserError
from shoal.records import Episode
from tests.unit.clients.directories import ChangingDirectory
from tests.unit.clients.memory_shards import MemoryShard
from tests.unit.clients.sampling import sampling, take, three
from tests.unit.replay.virtual_time import run


def sources(batches: Sequence[SampledBatch]) -> Counter[str]:
    return Counter(item.life.actor_id for batch in batches for item in batch.items)


def test_a_batch_is_taken_from_all_shards_and_each_is_asked_once() -> None:
    async def main() -> None:
        shards = three()
        async with sampling(ChangingDirectory(*shards), 32, prefetch_batches=1) as sampler:
            batches = await take(sampler, 20)
            await asyncio.sleep(1.0)
            for shard in shards:
                # Its state when it was connected, 20 batches, and one that waits here.
                assert len(shard.requests) == 22
            assert all(sum(shard.requests[number] for shard in shards) == 32 for number in range(1, 22))
            assert sources(batches).keys() == {"a", "b", "c"}
            for batch in batches:
                assert (len(batch), len(batch.items), batch.weights.shape) == (32, 32, (32,))

    run(main())


def test_transitions_of_several_shards_are_one_set_of_columns() -> None:
    async def main() -> None:
        shards = [MemoryShard("a", {1: 1.0}, transitions=True), MemoryShard("b", {7: 1.0}, transitions=True)]
        async with sampling(ChangingDirectory(*shards), 50) as sampler:
            transitions = (await sampler.next()).transitions
            assert transitions is not None
            assert len(transitions) == 50
            assert set(transitions.columns["number"].tolist()) == {1, 7}

    run(main())


def test_what_came_into_the_shards_is_told_with_the_next_batch_and_once() -> None:
    async def main() -> None:
        shards = three()
        async with sampling(ChangingDirectory(*shards), 32, prefetch_batches=1) as sampler:
            await take(sampler, 1)
            # One has been taken ahead already.
            await asyncio.sleep(0.1)
            for number, shard in enumerate(shards, 1):
                shard.steps_inserted, shard.episodes = 10 * number, (Episode(number, number),)
            batches = await take(sampler, 3)
            assert [batch.steps_inserted for batch in batches] == [0, 60, 0]
            told = [sorted(episode.num_steps for episode in batch.episodes) for batch in batches]
            assert told == [[], [1, 2, 3], []]

    run(main())


def test_what_came_while_there_was_nothing_to_sample_is_told_with_the_first_batch() -> None:
    async def main() -> None:
        shard = MemoryShard("a", {})
        async with sampling(ChangingDirectory(shard), 4) as sampler:
            for _ in range(3):
                shard.steps_inserted, shard.episodes = 5, (Episode(1.0, 1),)
                await asyncio.sleep(1.0)
            shard.masses[1] = 1.0
            batch = await sampler.next()
            assert (batch.steps_inserted, len(batch.episodes)) == (15, 3)

    run(main())


def test_the_same_generator_draws_the_same_batches() -> None:
    async def main(seed: int) -> list[list[int]]:
        shards = three()
        async with sampling(ChangingDirectory(*shards), 32, prefetch_batches=1, seed=seed) as sampler:
            await take(sampler, 5)
            return [shard.requests for shard in shards]

    assert run(main(1)) == run(main(1)) != run(main(2))


@pytest.mark.parametrize("prefetch_batches", [1, 3])
def test_a_few_batches_are_taken_ahead_and_no_more(prefetch_batches: int) -> None:
    async def main() -> None:
        shards = three()
        async with sampling(ChangingDirectory(*shards), prefetch_batches=prefetch_batches) as sampler:
            await asyncio.sleep(10.0)
            assert len(shards[0].requests) == 1 + prefetch_batches
            await sampler.next()
            await asyncio.sleep(10.0)
            assert len(shards[0].requests) == 2 + prefetch_batches

    run(main())


def test_the_first_batch_waits_until_every_shard_has_answered_or_is_known_to_be_away() -> None:
    async def main() -> None:
        a, b, c = three()
        b.silent, c.down = True, True
        async with sampling(ChangingDirectory(a, b, c)) as sampler:
            first = asyncio.ensure_future(sampler.next())
            await asyncio.sleep(5.0)
            assert not first.done()
            b.silent = False
            assert sources([await first]).keys() <= {"a", "b"}
            assert b.requests[1] > 0

    run(main())


def test_beta_follows_the_number_of_the_batch() -> None:
    async def main() -> None:
        shard = MemoryShard("a", {1: 1.0, 2: 4.0})
        async with sampling(ChangingDirectory(shard), 100, beta=anneal(0.0, 1.0, 4)) as sampler:
            lightest = [float(batch.weights.min()) for batch in await take(sampler, 6)]
            assert lightest == pytest.approx([4**-beta for beta in (0.0, 0.25, 0.5, 0.75, 1.0, 1.0)])

    run(main())


def test_a_shard_that_goes_away_leaves_its_share_to_the_others_and_is_welcome_back() -> None:
    async def main() -> None:
        a, b, c = three()
        async with sampling(ChangingDirectory(a, b, c), 32) as sampler:
            await take(sampler, 3)
            c.silent = True
            waiting = asyncio.ensure_future(take(sampler, 5))
            await asyncio.sleep(1.0)
            assert not waiting.done()
            c.kill()
            batches = await waiting
            assert [len(batch) for batch in batches] == [32] * 5
            assert sources(batches[-2:]).keys() == {"a", "b"}
            assert sampler.stats.num_redrawn > 0
            c.silent = c.down = False
            await asyncio.sleep(1.0)
            await take(sampler, 2)
            assert "c" in sources(await take(sampler, 5))

    run(main())


def test_the_only_shard_is_waited_for_and_its_batch_made_anew() -> None:
    async def main() -> None:
        shard = MemoryShard("a", {1: 1.0})
        async with sampling(ChangingDirectory(shard)) as sampler:
            await take(sampler, 3)
            shard.kill()
            waiting = asyncio.ensure_future(take(sampler, 5))
            await asyncio.sleep(3600.0)
            assert not waiting.done()
            shard.down = False
            shard.masses = {5: 1.0, 6: 1.0}
            batches = await waiting
            assert {item.key for item in batches[-1].items} == {5, 6}

    run(main())


def test_a_shard_that_keeps_samples_waiting_is_asked_again_for_as_many() -> None:
    async def main() -> None:
        a, b, _ = three()
        a.held = True
        async with sampling(ChangingDirectory(a, b), 100, prefetch_batches=1) as sampler:
            waiting = asyncio.ensure_future(sampler.next())
            await asyncio.sleep(10 * SAMPLE_TIMEOUT_S)
            assert not waiting.done()
            asked = a.requests[1]
            assert a.requests == [0] + [asked] * len(a.requests[1:])
            assert len(b.requests) == 2
            a.held = False
            a.max_per_answer = 2
            batch = await waiting
            assert sources([batch])["a"] == asked > 2
            assert a.num_dials == 1, "to wait is an answer"

    run(main())


@pytest.mark.parametrize("prefetch_batches", [1, 3])
def test_a_shard_that_runs_dry_leaves_the_rest_to_the_others_at_once(prefetch_batches: int) -> None:
    async def main() -> None:
        a = MemoryShard("a", dict.fromkeys(range(1, 21), 1000.0))
        b = MemoryShard("b", dict.fromkeys(range(1, 401), 1.0))
        a.once = b.once = True
        async with sampling(ChangingDirectory(a, b), 60, prefetch_batches=prefetch_batches) as sampler:
            started = asyncio.get_running_loop().time()
            batches = await take(sampler, 4)
            took_s = asyncio.get_running_loop().time() - started
            assert sources(batches)["a"] == 20
            assert [len(batch) for batch in batches] == [60] * 4
            print(f"{prefetch_batches} ahead: {took_s:.3f} s")
            assert took_s < SAMPLE_TIMEOUT_S / 4

    run(main())


def test_a_shard_that_has_items_and_none_to_sample_is_explained() -> None:
    async def main() -> None:
        shard = MemoryShard("a", {1: 1.0})
        shard.claimed_mass, shard.held = 0.0, True
        async with sampling(ChangingDirectory(shard)) as sampler:
            with pytest.raises(UnavailableError, match=r"shard a holds 100 bytes and nothing .*min_items"):
                await sampler.next(timeout_s=1.0)

    run(main())


def test_shards_without_items_are_asked_until_one_has_some() -> None:
    async def main() -> None:
        a, b = MemoryShard("a", {}), MemoryShard("b", {})
        async with sampling(ChangingDirectory(a, b)) as sampler:
            waiting = asyncio.ensure_future(sampler.next())
            await asyncio.sleep(30.0)
            assert not waiting.done()
            assert set(a.requests) == {0}
            b.masses = {1: 1.0}
            assert sources([await waiting]) == {"b": 10}
            a.masses = {1: 1e9}
            await take(sampler, 3)
            assert sources([await sampler.next()]) == {"a": 10}
            a.masses.clear()
            assert sources((await take(sampler, 4))[-1:]) == {"b": 10}

    run(main())


def test_a_silent_shard_is_given_up_and_dialled_again() -> None:
    async def main() -> None:
        a, b, _ = three()
        async with sampling(ChangingDirectory(a, b)) as sampler:
            await take(sampler, 3)
            a.silent = True
            waiting = asyncio.ensure_future(take(sampler, 5))
            await asyncio.sleep(SILENT_AFTER_S - 1.0)
            assert not waiting.done()
            await asyncio.sleep(SILENT_AFTER_S / 2)
            assert len(await waiting) == 5
            assert a.num_dials >= 2

    run(main())


def test_a_slow_consumer_is_not_taken_for_silent_shards() -> None:
    async def main() -> None:
        shards = three()
        async with sampling(ChangingDirectory(*shards)) as sampler:
            await asyncio.sleep(3600.0)
            await take(sampler, 3)
            assert [shard.num_dials for shard in shards] == [1, 1, 1]

    run(main())


def test_shards_come_and_go() -> None:
    async def main() -> None:
        a, b, c = three()
        directory = ChangingDirectory(a, b)
        async with sampling(directory, 32) as sampler:
            await take(sampler, 3)
            directory.list(b, c)
            await asyncio.sleep(1.0)
            batches = await take(sampler, 5)
            assert sources(batches[2:]).keys() == {"a", "b", "c"}, "one that drains is sampled until it ends"
            a.break_streams()
            await asyncio.sleep(60.0)
            batches = await take(sampler, 5)
            assert sources(batches[2:]).keys() == {"b", "c"}
            assert (a.num_dials, a.num_closed) == (1, 1)

    run(main())


def test_who_waits_learns_once_why(caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        return [text for name, _, text in caplog.record_tuples if name == "shoal.clients.replay_batches"]

    async def main() -> None:
        a, b, c, d = *three(), MemoryShard("d", {})
        c.down = True
        a.held = True
        async with sampling(ChangingDirectory(a, b, c, d), 100, prefetch_batches=1) as sampler:
            with pytest.raises(UnavailableError) as raised:
                await sampler.next(timeout_s=1.0)
            text = str(raised.value)
            assert text.startswith("no batch of 100 items within 1.0 s: ")
            assert "shard a lets" in text
            assert "of 2 items that can be sampled" in text
            assert "shard c is away (connection refused)" in text
            assert "shard d has nothing to sample" in text
            assert not told()
            waiting = asyncio.ensure_future(sampler.next(timeout_s=None))
            await asyncio.sleep(100 * EXPLAIN_AFTER_S)
            assert len(told()) == 1
            assert "waiting for a batch of 100 items: shard a lets" in told()[0]
            a.held = False
            await waiting
            a.held = True
            with pytest.raises(UnavailableError):
                await sampler.next(timeout_s=0.0)
            for _ in range(3):
                with pytest.raises(UnavailableError):
                    await sampler.next(timeout_s=2 * EXPLAIN_AFTER_S)
            assert len(told()) == 2, "once until there is a batch again"

    run(main())


def test_without_any_shard_the_error_says_so() -> None:
    async def main() -> None:
        async with sampling(ChangingDirectory()) as sampler:
            with pytest.raises(UnavailableError, match="no shard is known"):
                await sampler.next(timeout_s=1.0)

    run(main())


def test_a_cancelled_next_loses_nothing() -> None:
    async def main() -> None:
        shard = MemoryShard("a", {})
        async with sampling(ChangingDirectory(shard), prefetch_batches=1) as sampler:
            first, second = (asyncio.ensure_future(sampler.next()) for _ in range(2))
            await asyncio.sleep(0.1)
            shard.masses = {1: 1.0}
            first.cancel()
            assert len(await second) == 10
            assert first.cancelled()

    run(main())


def test_refusals_surface_from_next() -> None:
    async def main() -> None:
        shard = MemoryShard("a", {1: 1.0})
        shard.refusal = NotFoundError("no replay table 'train' here")
        async with sampling(ChangingDirectory(shard)) as sampler:
            waiting = [asyncio.ensure_future(sampler.next()) for _ in range(2)]
            for task in waiting:
                with pytest.raises(NotFoundError, match="no replay table"):
                    await task
            with pytest.raises(NotFoundError):
                await sampler.next()

    run(main())


@pytest.mark.parametrize("claimed", [float("nan"), float("inf"), -1.0])
def test_an_answer_that_makes_no_sense_ends_the_connection(claimed: float) -> None:
    async def main() -> None:
        shard = MemoryShard("a", {1: 1.0})
        async with sampling(ChangingDirectory(shard), prefetch_batches=1) as sampler:
            await take(sampler, 2)
            shard.claimed_mass = claimed
            waiting = asyncio.ensure_future(take(sampler, 2))
            await asyncio.sleep(10.0)
            assert not waiting.done()
            assert shard.num_dials > 2
            shard.claimed_mass = None
            await waiting

    run(main())


def test_a_beta_that_is_none_ends_it() -> None:
    async def main() -> None:
        async with sampling(ChangingDirectory(*three()), beta=lambda number: 1.0 + number) as sampler:
            await sampler.next()
            with pytest.raises(UserError, match=r"beta is 2\.0 for batch 1"):
                await take(sampler, 2)

    run(main())


@pytest.mark.parametrize(("batch_size", "prefetch_batches"), [(0, 1), (1, 0)])
def test_sizes_below_one_are_refused(batch_size: int, prefetch_batches: int) -> None:
    async def main() -> None:
        with pytest.raises(UserError, match="must be at least 1"):
            async with sampling(ChangingDirectory(), batch_size, prefetch_batches=prefetch_batches):
                pass

    run(main())


def test_close_refuses_those_who_wait_and_lets_go_of_the_shards() -> None:
    async def main() -> None:
        before = len(asyncio.all_tasks())
        async with sampling(ChangingDirectory(MemoryShard("a", {}))) as sampler:
            waiting = asyncio.ensure_future(sampler.next())
            await asyncio.sleep(1.0)
            await sampler.close()
            with pytest.raises(UnavailableError, match="closed"):
                await waiting
        await asyncio.sleep(1.0)
        assert len(asyncio.all_tasks()) == before

    run(main())
