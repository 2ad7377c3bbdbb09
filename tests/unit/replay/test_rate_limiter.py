"""The rate limiter against an obvious model: who may go, how far the ratio strays, and restarts."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.rate_limiter import UNLIMITED, RateLimiter

# Exact in floating point, so that the model can be followed to the letter.
EXACT_RATIOS = st.sampled_from([1 / 64, 0.5, 1.0, 4.0, 7.75, 256.0])
RATIOS = st.one_of(EXACT_RATIOS, st.sampled_from([0.1, 1 / 3, 7.7]))
TOLERANCES = st.sampled_from([1 / 1024, 0.5, 1.0, 8.0, 1000.0])


class Model:
    """Every insert past the minimum adds `ratio` to what is owed, every sample takes 1 off; exactly.

    But no insert adds to what is owed beyond the tolerance.
    """

    def __init__(self, ratio: float, tolerance: float, min_items: int) -> None:
        self.ratio, self.tolerance, self.min_items = Fraction(ratio), Fraction(tolerance), min_items
        self.owed = -self.ratio * min_items

    def may_insert(self, num_items: int) -> bool:
        return num_items < self.min_items or self.owed < self.tolerance

    def inserted(self, num_items: int) -> None:
        if self.owed < self.tolerance:
            self.owed += self.ratio * num_items

    def may_sample(self, num_items: int) -> int:
        """Samples one by one until the next one has to wait."""
        if num_items < self.min_items:
            return 0
        owed, count = self.owed, 0
        while owed > -self.tolerance:
            owed -= 1
            count += 1
        return count


# An append of that many items, a request for that many samples, or so many items that are gone.
MOVES = st.lists(st.tuples(st.sampled_from(["insert", "sample", "lose"]), st.integers(1, 40)), max_size=60)


@given(EXACT_RATIOS, TOLERANCES, st.integers(1, 20), MOVES, st.sets(st.integers(0, 60)))
def test_goes_with_the_model_and_keeps_the_ratio(
    ratio: float, tolerance: float, min_items: int, moves: Sequence[tuple[str, int]], restarts: set[int]
) -> None:
    limiter, model = RateLimiter(ratio, tolerance, min_items), Model(ratio, tolerance, min_items)
    num_items = largest = 0
    for number, (move, wanted) in enumerate(moves):
        if number in restarts:
            counters = {"num_inserted": 7.0, **limiter.counters()}
            limiter = RateLimiter(ratio, tolerance, min_items)
            limiter.restore(counters)
        may_insert, may_sample = limiter.may_insert(num_items), limiter.may_sample(num_items)
        assert may_insert or may_sample, "both sides wait for each other"
        assert may_insert == model.may_insert(num_items)
        assert may_sample == model.may_sample(num_items)
        if move == "insert" and may_insert:
            limiter.inserted(wanted)
            model.inserted(wanted)
            num_items += wanted
            largest = max(largest, wanted)
        elif move == "sample" and may_sample:
            taken = min(wanted, may_sample)
            limiter.sampled(taken)
            model.owed -= taken
        elif move == "lose":
            num_items = max(0, num_items - wanted)
        assert limiter.surplus == model.owed
        assert limiter.surplus < tolerance + ratio * largest
        if num_items >= min_items:
            assert limiter.surplus > -tolerance - 1


@given(RATIOS, TOLERANCES, st.integers(1, 20), st.integers(1, 50), st.integers(1, 50))
def test_two_eager_sides_settle_at_the_ratio(
    ratio: float, tolerance: float, min_items: int, lump: int, request: int
) -> None:
    """Each side goes whenever it may: in the long run one insert is sampled `ratio` times."""
    limiter = RateLimiter(ratio, tolerance, min_items)
    inserts = samples = 0
    for _ in range(300):
        if limiter.may_insert(inserts):
            limiter.inserted(lump)
            inserts += lump
        if count := min(request, limiter.may_sample(inserts)):
            limiter.sampled(count)
            samples += count
    assert abs(samples - ratio * (inserts - min_items)) <= tolerance + ratio * lump + 1


def test_by_hand() -> None:
    """4 samples per insert, 8 either way, 10 items first."""
    limiter = RateLimiter(4.0, 8.0, 10)
    assert limiter.may_insert(0)
    assert limiter.may_sample(9) == 0
    limiter.inserted(10)
    # Level: both may go, samples 8 deep.
    assert limiter.surplus == 0
    assert limiter.may_insert(10)
    assert limiter.may_sample(10) == 8
    limiter.sampled(8)
    assert limiter.may_sample(10) == 0
    limiter.inserted(1)
    assert limiter.may_sample(11) == 4
    limiter.inserted(3)
    assert limiter.surplus == 8
    assert not limiter.may_insert(14)
    assert limiter.may_sample(14) == 16
    limiter.sampled(1)
    assert limiter.may_insert(14)


def test_both_may_go_the_moment_the_minimum_is_reached_however_small_the_tolerance() -> None:
    limiter = RateLimiter(1000.0, 1e-6, 500)
    limiter.inserted(500)
    assert limiter.may_insert(500)
    assert limiter.may_sample(500) == 1


def test_a_lump_overshoots_once() -> None:
    limiter = RateLimiter(1.0, 5.0, 1)
    limiter.inserted(100)
    assert limiter.surplus == 99
    assert not limiter.may_insert(100)
    assert limiter.may_sample(100) == 104


def test_a_table_that_lost_its_items_is_filled_again() -> None:
    """Items are gone after enough samples; below the minimum an insert never waits."""
    limiter = RateLimiter(1.0, 5.0, 10)
    limiter.inserted(100)
    assert not limiter.may_insert(100)
    assert limiter.may_insert(9)
    assert limiter.may_sample(9) == 0


def test_a_table_that_never_holds_enough_owes_no_more_than_any_other() -> None:
    """As many items as its bytes allow are below the minimum: inserts go on and nothing is sampled."""
    limiter = RateLimiter(4.0, 100.0, 10)
    for _ in range(10_000):
        assert limiter.may_insert(9)
        limiter.inserted(1)
    assert limiter.surplus == 100.0
    # Once there are enough, the learner owes no more than the tolerance and all goes on.
    assert not limiter.may_insert(10)
    limiter.sampled(1)
    assert limiter.may_insert(10)


def test_without_a_ratio_only_the_minimum_counts() -> None:
    limiter = RateLimiter(None, 1.0, 3)
    limiter.inserted(1_000_000)
    assert limiter.surplus == 0
    assert limiter.may_insert(1_000_000)
    assert limiter.may_sample(2) == 0
    assert limiter.may_sample(3) == UNLIMITED
    limiter.sampled(10**12)
    assert limiter.may_sample(3) == UNLIMITED


@pytest.mark.parametrize("now", [RateLimiter(8.0, 10.0, 100), RateLimiter(1.0, 10.0, 50)])
def test_another_ratio_or_minimum_begins_level(now: RateLimiter) -> None:
    """What was sampled under the old ratio would stall one side for millions of steps under the new one."""
    before = RateLimiter(1.0, 10.0, 100)
    before.inserted(1_000_000)
    before.sampled(1_000_000)
    now.restore(before.counters())
    assert now.surplus == 0
    assert now.may_insert(200)
    assert now.may_sample(200) == 10


def test_a_ratio_that_is_new_or_was_given_up() -> None:
    without = RateLimiter(None, 10.0, 5)
    without.inserted(1000)
    limiter = RateLimiter(2.0, 10.0, 5)
    limiter.restore(without.counters())
    assert limiter.surplus == 0
    limiter.restore({})
    assert limiter.surplus == 0
    without.restore(limiter.counters())
    assert without.may_sample(5) == UNLIMITED


def test_what_is_shown_begins_when_sampling_may() -> None:
    limiter = RateLimiter(samples_per_insert=4.0, tolerance=8.0, min_items=3)
    limiter.inserted(2)
    assert (limiter.surplus, limiter.imbalance) == (-4.0, 0.0)
    limiter.inserted(2)
    limiter.sampled(1)
    assert limiter.imbalance == limiter.surplus == 3.0
    assert RateLimiter(None, 8.0, 1).imbalance == 0.0
