"""Duplicate suppression against an obvious model, and its memory."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.dedup import Claim, Dedup
from shoal.records import Life
from tests.unit.replay.virtual_time import run, settle

LIFE = Life("actor", "run")


async def store(dedup: Dedup, sequence: int, life: Life = LIFE) -> bool:
    """Whether the item was taken as new; it is then stored."""
    claim = await dedup.claim(life, sequence, 0.0)
    if claim is Claim.GRANTED:
        settle_as(dedup, sequence, life, stored=True)
    return claim is Claim.GRANTED


def settle_as(dedup: Dedup, sequence: int, life: Life = LIFE, *, stored: bool) -> None:
    if stored:
        dedup.add(life, sequence)
    dedup.settle(life, sequence)


def test_each_sequence_is_new_once_in_any_order_and_with_gaps() -> None:
    async def main() -> None:
        dedup = Dedup(max_lives=1)
        for sequence in (7, 3, 100, 0, 99):
            assert await store(dedup, sequence)
        for sequence in (0, 3, 7, 99, 100):
            assert not await store(dedup, sequence)
        for sequence in (1, 8, 101):
            assert await store(dedup, sequence)

    run(main())


def test_what_was_claimed_and_not_stored_is_new_again() -> None:
    async def main() -> None:
        dedup = Dedup(max_lives=1)
        assert await dedup.claim(LIFE, 5, 0.0) is Claim.GRANTED
        settle_as(dedup, 5, stored=False)
        assert await store(dedup, 5)

    run(main())


@pytest.mark.parametrize("stored", [True, False])
def test_a_resend_waits_for_the_outcome_of_the_first(stored: bool) -> None:
    async def main() -> None:
        dedup = Dedup(max_lives=1)
        assert await dedup.claim(LIFE, 5, 0.0) is Claim.GRANTED
        resends = [asyncio.ensure_future(dedup.claim(LIFE, 5, 60.0)) for _ in range(2)]
        await settle()
        assert not any(task.done() for task in resends)
        assert await store(dedup, 6), "other sequences do not wait"
        settle_as(dedup, 5, stored=stored)
        await settle()
        if stored:
            assert [task.result() for task in resends] == [Claim.DUPLICATE] * 2
        else:
            assert resends[0].result() is Claim.GRANTED
            settle_as(dedup, 5, stored=True)
            assert await resends[1] is Claim.DUPLICATE

    run(main())


def test_what_is_stored_and_not_safe_yet_is_no_repeat_yet_but_is_saved() -> None:
    """An ack must not say more than the journal has: the resend waits for the disk, too."""

    async def main() -> None:
        dedup = Dedup(max_lives=1)
        assert await dedup.claim(LIFE, 5, 0.0) is Claim.GRANTED
        dedup.add(LIFE, 5)
        assert await dedup.claim(LIFE, 5, 3.0) is Claim.BUSY
        (saved,) = dedup.save()
        assert (saved.life, saved.highest, saved.bits) == (LIFE, 5, 1)
        dedup.settle(LIFE, 5)
        assert await dedup.claim(LIFE, 5, 0.0) is Claim.DUPLICATE

    run(main())


def test_a_resend_gives_up_at_its_deadline_or_when_cancelled() -> None:
    async def main() -> None:
        dedup = Dedup(max_lives=1)
        assert await dedup.claim(LIFE, 5, 0.0) is Claim.GRANTED
        assert await dedup.claim(LIFE, 5, 3.0) is Claim.BUSY
        assert asyncio.get_running_loop().time() == pytest.approx(3.0)
        cancelled = asyncio.ensure_future(dedup.claim(LIFE, 5, 60.0))
        await settle()
        cancelled.cancel()
        await settle()
        settle_as(dedup, 5, stored=True)
        assert await dedup.claim(LIFE, 5, 0.0) is Claim.DUPLICATE

    run(main())


def test_the_longest_silent_life_is_forgotten_first() -> None:
    async def main() -> None:
        dedup = Dedup(max_lives=2)
        lives = [Life("actor", f"run{number}") for number in range(3)]
        await store(dedup, 1, lives[0])
        await store(dedup, 1, lives[1])
        assert not await store(dedup, 1, lives[0]), "a repeat is a sign of life, too"
        await store(dedup, 1, lives[2])
        assert len(dedup.save()) == 2
        assert not await store(dedup, 1, lives[0])
        assert not await store(dedup, 1, lives[2])
        assert await store(dedup, 1, lives[1]), "forgotten"

    run(main())


def test_numbers_from_a_stranger_cost_no_memory() -> None:
    async def main() -> None:
        dedup = Dedup(max_lives=1, window=64)
        assert await store(dedup, 0)
        assert await dedup.claim(LIFE, 1, 0.0) is Claim.GRANTED
        assert await store(dedup, (1 << 64) - 1)
        # The claim of 1 was granted before the jump; settling it must not shift by 2^64 either.
        settle_as(dedup, 1, stored=True)
        assert not await store(dedup, 1)
        assert not await store(dedup, 0)
        assert await store(dedup, (1 << 64) - 2)

    run(main())


@given(
    st.integers(1, 20),
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(-25, 6), st.sampled_from(["store", "give up"])), max_size=120
    ),
)
def test_agrees_with_a_set_of_all_sequences(window: int, steps: list[tuple[int, int, str]]) -> None:
    """Within the window the answer is exact; below it, it is always `duplicate`."""

    async def main() -> None:
        dedup = Dedup(max_lives=3, window=window)
        stored: dict[Life, set[int]] = {}
        for number, offset, outcome in steps:
            life = Life("actor", str(number))
            seen = stored.setdefault(life, set())
            highest = max(seen, default=0)
            sequence = max(highest + offset, 0)
            claim = await dedup.claim(life, sequence, 0.0)
            expected = sequence in seen or (bool(seen) and sequence <= highest - window)
            assert claim is (Claim.DUPLICATE if expected else Claim.GRANTED)
            if claim is Claim.GRANTED:
                settle_as(dedup, sequence, life, stored=outcome == "store")
                if outcome == "store":
                    seen.add(sequence)

    run(main())


@given(
    st.integers(1, 20),
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=60),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=60),
)
def test_a_restored_memory_answers_as_the_saved_one(
    window: int, max_lives: int, stored: list[tuple[int, int]], asked: list[tuple[int, int]]
) -> None:
    """The order in which lives are forgotten included."""

    async def main() -> None:
        saved = Dedup(max_lives, window)
        for life, sequence in stored:
            await store(saved, sequence, Life("actor", str(life)))
        restored = Dedup(max_lives, window)
        restored.restore(saved.save())
        assert restored.save() == saved.save()
        for life, sequence in asked:
            assert await store(restored, sequence, Life("actor", str(life))) == await store(
                saved, sequence, Life("actor", str(life))
            )
        assert restored.save() == saved.save()

    run(main())


def test_a_restart_with_less_memory_keeps_the_lives_and_sequences_that_are_newest() -> None:
    async def main() -> None:
        large = Dedup(max_lives=3)
        for number in range(3):
            for sequence in range(100):
                await store(large, sequence, Life("actor", str(number)))
        small = Dedup(max_lives=2, window=10)
        small.restore(large.save())
        assert [seen.life.run_id for seen in small.save()] == ["1", "2"]
        assert all(seen.bits.bit_length() <= 10 for seen in small.save())
        assert not await store(small, 50, Life("actor", "2")), "below the window: acked before"
        assert await store(small, 100, Life("actor", "2"))

    run(main())


@given(st.data(), st.integers(2, 12), st.integers(2, 3))
def test_a_writer_that_keeps_to_the_window_is_never_wronged(
    data: st.DataObject, window: int, num_shards: int
) -> None:
    """Two or three shards, items moved and resent at will: each new item is stored somewhere, none twice."""

    async def main() -> None:
        shards = [Dedup(max_lives=1, window=window) for _ in range(num_shards)]
        unacked: list[int] = []
        next_sequence = 0
        held: list[set[int]] = [set() for _ in shards]
        for _ in range(40):
            action = data.draw(st.sampled_from(["new", "send", "reply lost"]))
            if action == "new" and (not unacked or next_sequence - unacked[0] < window):
                unacked.append(next_sequence)
                next_sequence += 1
            elif unacked:
                sequence = data.draw(st.sampled_from(unacked))
                shard = data.draw(st.integers(0, num_shards - 1))
                taken = await store(shards[shard], sequence)
                assert taken == (sequence not in held[shard])
                held[shard].add(sequence)
                if action == "send":
                    unacked.remove(sequence)
        assert set(range(next_sequence)) - set(unacked) <= set().union(*held)

    run(main())
