"""The sum tree against plain arrays: values, sums and where points land, also under the worst rounding."""

from __future__ import annotations

import math

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.sum_tree import FAN_OUT, SumTree, distinct

# One, two and three levels, full and ragged.
CAPACITIES = st.sampled_from(
    [1, 2, FAN_OUT - 1, FAN_OUT, FAN_OUT + 1, 100, FAN_OUT**2, FAN_OUT**2 + 1, 3 * FAN_OUT**2 + 7]
)
# Whole numbers add up exactly, so that what is found can be compared exactly.
WHOLE = st.integers(0, 1000).map(float)
# Sums of these lose most of what is added.
EXTREME = st.one_of(
    st.just(0.0), st.floats(1e-100, 1e100), st.sampled_from([5e-324, 1e-300, 0.1, 1 / 3, 1.0, 1e16])
)


@st.composite
def batches(draw: st.DrawFn, values: st.SearchStrategy[float]) -> tuple[int, list[list[tuple[int, float]]]]:
    """A capacity and batches of (slot, value), slots repeated or not."""
    capacity = draw(CAPACITIES)
    batch = st.lists(st.tuples(st.integers(0, capacity - 1), values), max_size=40)
    return capacity, draw(st.lists(batch, max_size=8))


def grown(capacity: int, steps: list[list[tuple[int, float]]]) -> tuple[SumTree, np.ndarray]:
    """A tree after these batches, and the values that it should have."""
    tree, model = SumTree(capacity), np.zeros(capacity)
    for batch in steps:
        tree.set(np.array([slot for slot, _ in batch], np.intp), np.array([value for _, value in batch]))
        for slot, value in batch:
            model[slot] = value
    return tree, model


def made_at_once(values: np.ndarray) -> SumTree:
    tree = SumTree(len(values))
    tree.set(np.arange(len(values)), values)
    return tree


@given(batches(EXTREME))
def test_holds_the_last_value_of_each_slot(case: tuple[int, list[list[tuple[int, float]]]]) -> None:
    tree, model = grown(*case)
    assert np.array_equal(tree.get(np.arange(len(model))), model)
    assert tree.num_positive == np.count_nonzero(model)
    assert tree.total == pytest.approx(math.fsum(model), rel=1e-12)
    assert (tree.total > 0) == (tree.num_positive > 0)


@given(batches(EXTREME))
def test_sums_do_not_depend_on_what_was_there_before(
    case: tuple[int, list[list[tuple[int, float]]]],
) -> None:
    tree, model = grown(*case)
    fresh = made_at_once(model)
    # Every sum is equal to the last bit: nothing of former values is left in any node.
    for nodes, fresh_nodes in zip(tree._nodes, fresh._nodes, strict=True):
        assert np.array_equal(nodes, fresh_nodes)
    assert tree.total == fresh.total


@given(batches(WHOLE), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=50))
def test_finds_what_a_running_sum_finds(
    case: tuple[int, list[list[tuple[int, float]]]], fractions: list[float]
) -> None:
    tree, model = grown(*case)
    ends = np.cumsum(model)
    if ends[-1] == 0:
        return
    # Both ends of every slot, besides the drawn points.
    points = np.concatenate((np.array(fractions) * ends[-1], ends[:-1], np.nextafter(ends, 0)))
    points = points[points < ends[-1]]
    assert np.array_equal(tree.find(points), np.searchsorted(ends, points, side="right"))


@given(batches(EXTREME))
def test_never_finds_a_slot_of_zero(case: tuple[int, list[list[tuple[int, float]]]]) -> None:
    tree, model = grown(*case)
    if not model.any():
        return
    total = tree.total
    ends = np.cumsum(model)
    hostile = [0.0, -0.0, -1.0, total, np.nextafter(total, 0), np.nextafter(total, np.inf), 2 * total, np.inf]
    points = np.concatenate((hostile, ends, np.nextafter(ends, 0), np.nextafter(ends, np.inf)))
    slots = tree.find(points)
    assert (model[slots] > 0).all()


@given(batches(WHOLE))
def test_points_beyond_the_ends_are_of_the_first_and_last_slot(
    case: tuple[int, list[list[tuple[int, float]]]],
) -> None:
    tree, model = grown(*case)
    if not model.any():
        return
    positive = np.flatnonzero(model)
    assert tree.find(np.array([0.0, -0.0, -1.0])).tolist() == 3 * [positive[0]]
    assert tree.find(np.array([tree.total, 2 * tree.total, np.inf])).tolist() == 3 * [positive[-1]]


def test_rounding_at_the_very_end_falls_on_the_last_slot_that_counts() -> None:
    """0.1 ten times is below 1 by one rounding: the last point must not fall through to the zeros behind."""
    values = np.zeros(1000)
    values[:10] = 0.1
    tree = made_at_once(values)
    assert (tree.find(np.array([1.0, tree.total, np.nextafter(1.0, 0)])) == 9).all()


def test_many_updates_leave_no_error_behind() -> None:
    """The control, a total kept by differences, ends up wrong by more than all that is left."""
    rng = np.random.default_rng(0)
    tree, kept, model = SumTree(64), 0.0, np.zeros(64)
    for _ in range(500):
        slots, values = rng.permutation(64)[:8], 10.0 ** rng.uniform(-3, 15, 8)
        tree.set(slots, values)
        kept += float((values - model[slots]).sum())
        model[slots] = values
    tree.set(np.arange(64), 1e-6)
    kept += float((1e-6 - model).sum())
    print(f"true total 6.4e-05, tree {tree.total:.6e}, kept by differences {kept:.3e}")
    assert tree.total == pytest.approx(64e-6, rel=1e-15)
    assert abs(kept - 64e-6) > 1e-3


def test_a_scalar_sets_all_named_slots() -> None:
    tree = made_at_once(np.ones(40))
    tree.set(np.array([3, 3, 39]), 0.0)
    assert tree.total == 38
    assert tree.num_positive == 38


def test_nothing_to_set_and_nothing_to_find() -> None:
    tree = SumTree(10)
    tree.set(np.zeros(0, np.intp), np.zeros(0))
    assert tree.total == 0
    with pytest.raises(ValueError, match="all 0"):
        tree.find(np.array([0.0]))
    tree.set(np.array([4]), np.array([2.0]))
    assert tree.find(np.zeros(0)).shape == (0,)
    with pytest.raises(ValueError, match="capacity of a sum tree is 0"):
        SumTree(0)


def test_memory_is_used_only_where_something_is() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    tree = SumTree(1 << 28)
    tree.set(np.arange(1000), 1.0)
    tree.set(np.array([(1 << 28) - 1]), 1.0)
    assert tree.find(np.array([1000.5])) == [(1 << 28) - 1]
    grown_bytes = process.memory_info().rss - before
    print(f"2^28 slots, 1001 of them used: {grown_bytes / 2**20:.1f} MiB resident")
    assert grown_bytes < 64 << 20


@given(st.lists(st.integers(0, 20)))
def test_distinct_is_what_a_set_holds(values: list[int]) -> None:
    assert distinct(np.array(sorted(values), np.intp)).tolist() == sorted(set(values))
