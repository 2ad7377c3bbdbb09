"""The index of the sampled tables against a dictionary, and what it samples against exact proportions."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.replay.priority_ring import MAX_MASS, MIN_MASS, PriorityRing
from shoal.errors import InvalidArgumentError

PRIORITIES = st.one_of(st.just(0.0), st.integers(0, 64).map(float), st.floats(1e-6, 1e6))


def keys_of(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


def make_ring(
    max_items: int = 8, alpha: float = 1.0, max_times_sampled: int | None = None, seed: int = 0
) -> PriorityRing:
    return PriorityRing(max_items, alpha, max_times_sampled, np.random.default_rng(seed))


def evict_oldest(ring: PriorityRing) -> int:
    key = ring.oldest_key
    assert ring.remove(keys_of(key)) == 1
    return key


def make_room(ring: PriorityRing, num_items: int, max_items: int) -> list[int]:
    """Evict the oldest until so many fit; returns the keys that went."""
    keys = np.arange(
        ring.oldest_key, max(ring.oldest_key, ring.next_key + num_items - max_items), dtype=np.uint64
    )
    gone = keys[ring.contains(keys)]
    ring.remove(gone)
    return gone.tolist()


def sample(ring: PriorityRing, num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """As a table does it that counts how often its items are sampled."""
    keys, masses = ring.draw(num_samples)
    ring.count_samples(keys)
    return keys, masses


@dataclass
class ModelItem:
    priority: float
    sampleable: bool
    times_sampled: int = 0


class RingMachine(RuleBasedStateMachine):
    """Every operation on the ring and on a dictionary; all that can be seen must agree."""

    @initialize(
        max_items=st.integers(1, 20),
        alpha=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
        max_times_sampled=st.sampled_from([None, 1, 3]),
    )
    def start(self, max_items: int, alpha: float, max_times_sampled: int | None) -> None:
        self.settings = (max_items, alpha, max_times_sampled)
        self.ring = make_ring(*self.settings)
        self.items: dict[int, ModelItem] = {}
        self.next_key = 1
        self.max_priority = 1.0

    def mass_of(self, item: ModelItem) -> float:
        if not item.sampleable:
            return 0.0
        alpha = self.settings[1]
        return 1.0 if alpha == 0 else item.priority**alpha

    def oldest(self) -> int:
        return min(self.items, default=self.next_key)

    def pick(self, data: st.DataObject) -> list[int]:
        """Keys that are there, that were, that will be and that never are; some of them twice."""
        live = st.sampled_from(sorted(self.items)) if self.items else st.nothing()
        other = st.one_of(st.integers(0, self.next_key + 30), st.just(2**64 - 1))
        keys = data.draw(st.lists(st.one_of(live, other), max_size=8))
        return keys + keys[: data.draw(st.integers(0, 2))]

    @rule(data=st.data(), with_mask=st.booleans(), with_priorities=st.booleans())
    def append(self, data: st.DataObject, with_mask: bool, with_priorities: bool) -> None:
        given = data.draw(st.lists(PRIORITIES, max_size=self.settings[0]))
        mask = data.draw(st.lists(st.booleans(), min_size=len(given), max_size=len(given)))
        gone = make_room(self.ring, len(given), self.settings[0])
        assert gone == [
            key for key in sorted(self.items) if key <= self.next_key + len(given) - 1 - self.settings[0]
        ]
        for key in gone:
            del self.items[key]
        if not with_priorities:
            given = [self.max_priority] * len(given)
        first = self.ring.append(
            np.array(given),
            np.array(mask, np.bool_) if with_mask else True,
        )
        assert first == self.next_key
        for priority, sampleable in zip(given, mask, strict=True):
            self.items[self.next_key] = ModelItem(priority, sampleable or not with_mask)
            self.next_key += 1
        self.max_priority = max(self.max_priority, *given, 0.0)

    @precondition(lambda self: self.items)
    @rule()
    def evict_oldest(self) -> None:
        key = evict_oldest(self.ring)
        assert key == self.oldest()
        del self.items[key]

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        keys = self.pick(data)
        there = set(keys) & set(self.items)
        assert self.ring.remove(keys_of(*keys)) == len(there)
        for key in there:
            del self.items[key]

    @rule(data=st.data())
    def set_priorities(self, data: st.DataObject) -> None:
        keys = self.pick(data)
        priorities = data.draw(st.lists(PRIORITIES, min_size=len(keys), max_size=len(keys)))
        there = [key in self.items for key in keys]
        expected = (sum(there), len(keys) - sum(there))
        assert self.ring.set_priorities(keys_of(*keys), np.array(priorities)) == expected
        for key, priority in zip(keys, priorities, strict=True):
            if key in self.items:
                self.items[key].priority = priority
                self.max_priority = max(self.max_priority, priority)

    @rule(data=st.data(), sampleable=st.booleans())
    def set_sampleable(self, data: st.DataObject, sampleable: bool) -> None:
        keys = self.pick(data)
        self.ring.set_sampleable(keys_of(*keys), sampleable)
        for key in set(keys) & set(self.items):
            self.items[key].sampleable = sampleable

    @rule(num_samples=st.integers(0, 12))
    def sample(self, num_samples: int) -> None:
        limit = self.settings[2]
        keys, masses = sample(self.ring, num_samples)
        for key, mass in zip(keys.tolist(), masses.tolist(), strict=True):
            assert mass == pytest.approx(self.mass_of(self.items[key]))
            assert mass > 0
            self.items[key].times_sampled += 1
        any_mass = any(map(self.mass_of, self.items.values()))
        assert len(keys) <= num_samples
        assert (len(keys) > 0) == (num_samples > 0 and any_mass)
        if limit is None:
            assert len(keys) == (num_samples if any_mass else 0)
            assert self.ring.spent(keys).tolist() == []
            return
        assert all(item.times_sampled <= limit for item in self.items.values())
        spent = [key for key in sorted(self.items) if self.items[key].times_sampled == limit]
        assert self.ring.spent(keys).tolist() == spent
        self.ring.remove(self.ring.spent(keys))
        for key in spent:
            del self.items[key]

    @rule(smaller=st.integers(0, 5))
    def restart(self, smaller: int) -> None:
        """From what was saved, perhaps into a smaller ring."""
        keys, priorities, counts = self.ring.state()
        max_items = max(1, self.settings[0] - smaller)
        self.settings = (max_items, *self.settings[1:])
        self.ring = make_ring(*self.settings)
        mask = np.array([self.items[key].sampleable for key in keys.tolist()], np.bool_)
        gone = self.ring.restore(self.next_key, keys, priorities, counts, mask, self.max_priority)
        assert gone.tolist() == [key for key in sorted(self.items) if key < self.next_key - max_items]
        for key in gone.tolist():
            del self.items[key]

    @invariant()
    def agrees(self) -> None:
        ring, items = self.ring, self.items
        masses = [self.mass_of(items[key]) for key in sorted(items)]
        assert ring.num_items == len(items)
        assert ring.next_key == self.next_key
        assert ring.oldest_key == self.oldest()
        assert ring.room == self.settings[0] - (self.next_key - self.oldest())
        assert ring.num_sampleable == sum(mass > 0 for mass in masses)
        assert ring.mass == pytest.approx(math.fsum(masses))
        assert (ring.mass > 0) == (ring.num_sampleable > 0)
        assert ring.max_priority == self.max_priority
        keys, priorities, counts = ring.state()
        assert keys.tolist() == sorted(items)
        assert priorities.tolist() == [items[key].priority for key in sorted(items)]
        assert counts.tolist() == [items[key].times_sampled for key in sorted(items)]
        every = np.arange(0, self.next_key + 3, dtype=np.uint64)
        assert ring.contains(every).tolist() == [key in items for key in every.tolist()]
        shown = ring.priorities_of(every)
        assert np.isnan(shown).tolist() == [key not in items for key in every.tolist()]
        assert shown[~np.isnan(shown)].tolist() == priorities.tolist()


RingMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestRing = RingMachine.TestCase


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def chi_square_limit(degrees: int, z: float = 3.09) -> float:
    """Exceeded once in a thousand by chance (Wilson and Hilferty's approximation)."""
    return float(degrees * (1 - 2 / (9 * degrees) + z * math.sqrt(2 / (9 * degrees))) ** 3)


def times_drawn(ring: PriorityRing, num_batches: int, batch: int, num_keys: int) -> np.ndarray:
    drawn = np.concatenate([sample(ring, batch)[0] for _ in range(num_batches)])
    return np.bincount(drawn.astype(np.intp), minlength=num_keys + 1)[1:]


@pytest.mark.parametrize(("batch", "num_batches"), [(1, 5000), (32, 600)])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_items_come_up_in_proportion_to_their_mass(alpha: float, batch: int, num_batches: int) -> None:
    """Before and after updates and removals; the control, each other's proportions, must be told apart."""
    rng = np.random.default_rng(1)
    ring = make_ring(50, alpha)
    before = rng.uniform(0.1, 10, 50)
    ring.append(before)
    counts = times_drawn(ring, num_batches, batch, 50)
    p_before = before**alpha / (before**alpha).sum()
    statistic = chi_square(counts, p_before)

    after = rng.permutation(before)
    ring.set_priorities(np.arange(1, 51, dtype=np.uint64), after)
    ring.remove(np.arange(2, 51, 7, dtype=np.uint64))
    present = ring.contains(np.arange(1, 51, dtype=np.uint64))
    counts_after = times_drawn(ring, num_batches, batch, 50)
    assert (counts_after[~present] == 0).all()
    mass = (after**alpha)[present]
    statistic_after = chi_square(counts_after[present], mass / mass.sum())

    limit, limit_after = chi_square_limit(49), chi_square_limit(int(present.sum()) - 1)
    print(
        f"alpha {alpha}, batch {batch}: chi-square {statistic:.1f} (limit {limit:.1f}), "
        f"after updates and removals {statistic_after:.1f} (limit {limit_after:.1f})"
    )
    assert statistic < limit
    assert statistic_after < limit_after
    if alpha:
        wrong = (before**alpha)[present]
        assert chi_square(counts_after[present], wrong / wrong.sum()) > limit_after


def test_a_sample_takes_one_from_each_stratum_in_random_order() -> None:
    """As many draws as items of equal mass: each comes up exactly once; plain draws would miss a third."""
    ring = make_ring(256, alpha=0.0)
    ring.append(np.ones(256))
    orders = [sample(ring, 256)[0].tolist() for _ in range(5)]
    for order in orders:
        assert sorted(order) == list(range(1, 257))
        assert order != sorted(order)
    assert len({tuple(order) for order in orders}) == 5
    # An item of a quarter of the mass makes a quarter of every batch, give or take a border.
    ring = make_ring(256)
    ring.append(np.r_[85.0, np.ones(255)])
    for _ in range(20):
        assert abs(Counter(sample(ring, 64)[0].tolist())[1] - 16) <= 1


def test_what_is_drawn_is_counted_only_if_taken() -> None:
    ring = make_ring(max_times_sampled=2)
    ring.append(np.ones(1))
    keys, masses = ring.draw(5)
    assert keys.tolist() == [1, 1]
    assert masses.tolist() == [1.0, 1.0]
    assert ring.state()[2].tolist() == [0]
    ring.count_samples(keys[:1])
    assert ring.state()[2].tolist() == [1]
    assert ring.spent(keys).tolist() == []
    assert sample(ring, 5)[0].tolist() == [1]
    assert ring.spent(keys).tolist() == [1]


def test_items_without_mass_are_never_sampled() -> None:
    ring = make_ring(4)
    ring.append(np.array([0.0, 3.0, 0.0]))
    assert (ring.num_items, ring.num_sampleable, ring.mass) == (3, 1, 3.0)
    assert set(sample(ring, 100)[0].tolist()) == {2}
    ring.set_priorities(keys_of(2), np.array([0.0]))
    assert (ring.num_items, ring.num_sampleable, ring.mass) == (3, 0, 0.0)
    keys, masses = sample(ring, 5)
    assert (keys.dtype, len(keys), len(masses)) == (np.uint64, 0, 0)


def test_a_sampleable_item_keeps_its_priority_meanwhile() -> None:
    ring = make_ring(4, alpha=2.0)
    ring.append(np.array([3.0, 4.0]), np.array([False, True]))
    assert ring.mass == 16
    ring.set_priorities(keys_of(1), np.array([5.0]))
    assert ring.mass == 16
    ring.set_sampleable(keys_of(1), True)
    assert ring.mass == 41
    ring.set_sampleable(keys_of(1, 2), np.array([True, False]))
    assert ring.mass == 25


def test_a_reused_slot_is_another_item() -> None:
    ring = make_ring(4)
    ring.append(np.full(4, 2.0))
    assert ring.room == 0
    with pytest.raises(ValueError, match="room for 0"):
        ring.append(np.ones(1))
    assert evict_oldest(ring) == 1
    assert ring.append(np.array([7.0])) == 5
    assert ring.contains(keys_of(1, 5, 9)).tolist() == [False, True, False]
    assert ring.set_priorities(keys_of(1, 9), np.array([100.0, 100.0])) == (0, 2)
    assert ring.remove(keys_of(1)) == 0
    assert ring.priorities_of(keys_of(5)).tolist() == [7.0]
    assert ring.max_priority == 7.0


def test_extreme_priorities_stay_finite_and_positive() -> None:
    ring = make_ring(4, alpha=10.0)
    ring.append(np.array([1e308, 1e-308]))
    assert ring.mass == MAX_MASS
    ring.remove(keys_of(1))
    assert ring.mass == MIN_MASS
    assert sample(ring, 3)[0].tolist() == [2, 2, 2]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1e-9])
def test_bad_priorities_change_nothing(bad: float) -> None:
    ring = make_ring()
    ring.append(np.array([2.0]))
    with pytest.raises(InvalidArgumentError, match=r"\(1 of 2\): priorities must be finite and at least 0"):
        ring.append(np.array([3.0, bad]))
    with pytest.raises(InvalidArgumentError, match="must be finite"):
        ring.set_priorities(keys_of(1), np.array([bad]))
    with pytest.raises(InvalidArgumentError, match="1 keys but 2 priorities"):
        ring.set_priorities(keys_of(1), np.array([1.0, 2.0]))
    assert (ring.num_items, ring.mass, ring.next_key, ring.max_priority) == (1, 2.0, 2, 2.0)


def test_refuses_what_it_cannot_hold() -> None:
    ring = make_ring(4)
    with pytest.raises(ValueError, match="5 items do not fit into a ring with room for 4"):
        ring.append(np.ones(5))
    for keys in ([0], [3], [2, 1], [1, 1]):
        with pytest.raises(ValueError, match="must ascend, above 0 and below 3"):
            make_ring(4).restore(3, keys_of(*keys), np.zeros(0), np.zeros(0, np.uint32))


def test_restores_without_priorities_and_under_a_lower_limit() -> None:
    ring = make_ring(4, max_times_sampled=2)
    gone = ring.restore(9, keys_of(6, 8), np.zeros(0), np.array([5, 1], np.uint32), max_priority=3.0)
    assert len(gone) == 0
    assert (ring.oldest_key, ring.next_key, ring.mass, ring.room) == (6, 9, 6.0, 1)
    # Key 6 was sampled more often than is allowed now: it comes up once more at most, and is then spent.
    keys, _ = sample(ring, 10)
    assert Counter(keys.tolist()) == {6: 1, 8: 1}
    assert ring.spent(keys).tolist() == [6, 8]


def test_the_oldest_is_found_beyond_a_long_gap() -> None:
    ring = make_ring(20_000, alpha=0.0)
    ring.append(np.ones(20_000))
    ring.remove(np.arange(2, 19_000, dtype=np.uint64))
    assert ring.oldest_key == 1
    assert evict_oldest(ring) == 1
    assert (ring.oldest_key, ring.num_items, ring.room) == (19_000, 1001, 18_999)
