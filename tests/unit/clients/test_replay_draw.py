"""One batch from several shards: its distribution, its weights, and the share of a shard that is lost."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.clients.replay_draw import PendingBatch, SampledBatch, Source
from shoal.clients.replay_shard import Sampled
from shoal.errors import SpecMismatchError
from shoal.records import Transitions
from shoal.rpc.addresses import Address
from tests.unit.clients.memory_shards import MemoryShard

A, B, C = (Source(Address(name), 1) for name in "abc")
# Two items in a, three in b, one in c.
TABLES = {A: {1: 1.0, 2: 2.0}, B: {1: 4.0, 2: 8.0, 3: 1.0}, C: {1: 16.0}}


def shards(tables: Mapping[Source, Mapping[int, float]] = TABLES) -> dict[Source, MemoryShard]:
    return {source: MemoryShard(source.address.target, table) for source, table in tables.items()}


def masses(known: Mapping[Source, MemoryShard]) -> dict[Source, float]:
    return {source: shard.mass for source, shard in known.items()}


def fill(
    batch: PendingBatch, known: Mapping[Source, MemoryShard], rng: np.random.Generator, beta: float = 1.0
) -> SampledBatch:
    asked = batch.draw(masses(known), rng)
    for source, number in asked.items():
        assert batch.answered(source, number, known[source].sample(number)) == 0
    assert batch.complete
    return batch.finish(beta)


def expected_weights(batch: SampledBatch, tables: Mapping[Source, Mapping[int, float]]) -> np.ndarray:
    """Of one table that holds the items of all."""
    total = sum(sum(table.values()) for table in tables.values())
    number = sum(len(table) for table in tables.values())
    places = zip(*where_and_keys(batch), strict=True)
    weights = (number * np.array([tables[batch.refs.sources[at]][key] for at, key in places]) / total) ** -1.0
    return weights / weights.max()


def where_and_keys(batch: SampledBatch) -> tuple[list[int], list[int]]:
    return batch.refs.where.tolist(), batch.refs.keys.tolist()


def test_every_shard_is_asked_in_proportion_to_its_mass() -> None:
    rng = np.random.default_rng(1)
    total = dict.fromkeys(TABLES, 0)
    for _ in range(200):
        asked = PendingBatch(100).draw(masses(shards()), rng)
        assert asked.keys() == TABLES.keys(), "also those that are to give nothing"
        assert sum(asked.values()) == 100
        for source, number in asked.items():
            total[source] += number
    shares = np.array(list(total.values())) / 20_000
    np.testing.assert_allclose(shares, np.array([3, 13, 16]) / 32, atol=0.01)


def test_weights_are_those_of_one_big_table() -> None:
    batch = fill(PendingBatch(64), shards(), np.random.default_rng(1))
    assert len(batch) == len(batch.items) == len(batch.weights) == 64
    np.testing.assert_allclose(batch.weights, expected_weights(batch, TABLES), rtol=1e-12)


def test_items_weigh_what_they_were_drawn_with_although_masses_have_changed_since() -> None:
    """a was drawn with half of the mass; when it sampled, its items had other masses."""
    batch = PendingBatch(20)
    asked = batch.draw({A: 1.0, B: 1.0}, np.random.default_rng(0))
    assert all(asked.values())
    batch.answered(A, asked[A], MemoryShard("a", {1: 7.0}).sample(asked[A]))
    batch.answered(B, asked[B], MemoryShard("b", {1: 5.0, 2: 5.0}).sample(asked[B]))
    # P: a's only item 1/2, each of b's 1/4.
    np.testing.assert_allclose(batch.finish(1.0).weights, [0.5] * asked[A] + [1.0] * asked[B])


def test_the_share_of_a_lost_shard_is_drawn_again_among_the_others() -> None:
    rng = np.random.default_rng(1)
    known = shards()
    rest = {A: known[A], B: known[B]}
    batch = PendingBatch(200)
    asked = batch.draw(masses(known), rng)
    assert batch.answered(A, asked[A], known[A].sample(asked[A])) == 0
    batch.lost(C, asked[C])
    assert batch.missing == asked[C] > 0
    again = batch.draw(masses(rest), rng)
    assert again.keys() == {A, B}
    assert sum(again.values()) == asked[C]
    assert batch.answered(B, asked[B], known[B].sample(asked[B])) == 0
    for source, number in again.items():
        assert batch.answered(source, number, known[source].sample(number)) == 0
    finished = batch.finish(1.0)
    assert len(finished) == 200
    tables = {source: TABLES[source] for source in rest}
    np.testing.assert_allclose(finished.weights, expected_weights(finished, tables), rtol=1e-12)


def test_a_shard_that_has_nothing_any_more_is_left_out() -> None:
    rng = np.random.default_rng(1)
    known = shards()
    batch = PendingBatch(100)
    asked = batch.draw(masses(known), rng)
    known[C].masses.clear()
    assert batch.answered(C, asked[C], known[C].sample(asked[C])) == 0
    for source in (A, B):
        batch.answered(source, asked[source], known[source].sample(asked[source]))
    assert not batch.complete
    again = batch.draw(masses(known), rng)
    assert sum(again.values()) == asked[C]
    assert C not in again
    for source, number in again.items():
        batch.answered(source, number, known[source].sample(number))
    finished = batch.finish(1.0)
    tables = {source: TABLES[source] for source in (A, B)}
    np.testing.assert_allclose(finished.weights, expected_weights(finished, tables), rtol=1e-12)


def test_a_shard_that_gives_some_or_none_is_asked_for_the_rest() -> None:
    batch = PendingBatch(10)
    shard = MemoryShard("a", {1: 1.0})
    assert batch.draw({A: 1.0}, np.random.default_rng(0)) == {A: 10}
    shard.held = True
    assert batch.answered(A, 10, shard.sample(10)) == 10
    shard.held, shard.max_per_answer = False, 7
    assert batch.answered(A, 10, shard.sample(10)) == 3
    assert not batch.complete
    assert batch.answered(A, 3, shard.sample(3)) == 0
    assert len(batch.finish(1.0)) == 10


def test_what_a_shard_gave_before_it_was_empty_counts_and_the_rest_comes_from_elsewhere() -> None:
    batch = PendingBatch(10)
    rng = np.random.default_rng(0)
    a, b = MemoryShard("a", {1: 1.0}), MemoryShard("b", {1: 3.0})
    assert batch.draw({A: 1.0, B: 0.0}, rng) == {A: 10, B: 0}
    assert batch.answered(B, 0, MemoryShard("b", {}).sample(0)) == 0
    a.max_per_answer = 4
    assert batch.answered(A, 10, a.sample(10)) == 6
    a.masses.clear()
    assert batch.answered(A, 6, a.sample(6)) == 0
    assert batch.draw({A: 0.0, B: 3.0}, rng) == {B: 6}
    assert batch.answered(B, 6, b.sample(6)) == 0
    finished = batch.finish(1.0)
    # Drawn with masses of 1 and 3, each from a table of one item.
    np.testing.assert_allclose(finished.weights, [1.0] * 4 + [1 / 3] * 6)


def test_without_any_mass_there_is_nothing_to_draw() -> None:
    batch = PendingBatch(10)
    rng = np.random.default_rng(0)
    assert batch.draw({}, rng) == {}
    assert batch.draw({A: 0.0, B: 0.0}, rng) == {}
    assert not batch.drawn
    assert batch.draw({A: 0.0, B: 2.0}, rng) == {A: 0, B: 10}
    assert batch.drawn


def rows(values: np.ndarray, name: str = "number") -> Sampled:
    keys = np.arange(1, len(values) + 1, dtype=np.uint64)
    return Sampled((), Transitions(keys, np.ones(len(values)), {name: values}), 10, 100, 10.0)


def test_transitions_are_joined_column_by_column() -> None:
    batch = PendingBatch(3)
    batch.draw({A: 1.0, B: 0.0}, np.random.default_rng(0))
    batch.answered(B, 0, rows(np.zeros((0, 2), np.float32)))
    assert batch.answered(A, 3, rows(np.full((2, 2), 1.0, np.float32))) == 1
    batch.answered(A, 1, rows(np.full((1, 2), 2.0, np.float32)))
    transitions = batch.finish(1.0).transitions
    assert transitions is not None
    assert transitions.keys.tolist() == [1, 2, 1]
    np.testing.assert_array_equal(transitions.columns["number"], np.float32([[1, 1], [1, 1], [2, 2]]))


@pytest.mark.parametrize(
    "other",
    [rows(np.zeros((1, 2), np.float64)), rows(np.zeros((1, 3), np.float32)), rows(np.zeros((1, 2)), "b")],
)
def test_shards_with_different_columns_are_refused_with_both(other: Sampled) -> None:
    batch = PendingBatch(2)
    batch.draw({A: 1.0}, np.random.default_rng(0))
    batch.answered(A, 2, rows(np.zeros((1, 2), np.float32)))
    batch.answered(A, 1, other)
    with pytest.raises(SpecMismatchError, match=r"number float32\[2\].*empty it") as raised:
        batch.finish(1.0)
    assert " and " in str(raised.value)


@settings(max_examples=200)
@given(st.data())
def test_whatever_happens_a_complete_batch_has_its_size_and_finite_weights(data: st.DataObject) -> None:
    """Shards give some, none or all, empty, vanish and come back, in any order."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    known = shards()
    sessions = 1
    size = data.draw(st.integers(1, 20))
    batch = PendingBatch(size)
    due: list[tuple[Source, int]] = []
    for number in range(300):
        if batch.complete:
            break
        calm = number > 100 or data.draw(st.booleans())
        if not due:
            if not any(masses(known).values()):
                sessions += 1
                known[Source(A.address, sessions)] = MemoryShard("a", TABLES[A])
            due = list(batch.draw(masses(known), rng).items())
            assert due
            continue
        source, asked = due.pop(data.draw(st.integers(0, len(due) - 1)))
        event = "all" if calm else data.draw(st.sampled_from(["all", "some", "none", "empty", "lost"]))
        if event == "lost":
            known.pop(source)
            batch.lost(source, asked)
            for other, number in [request for request in due if request[0] == source]:
                batch.lost(other, number)
            due = [request for request in due if request[0] != source]
        else:
            shard = known[source]
            if event == "empty":
                shard.masses.clear()
            shard.held, shard.max_per_answer = event == "none", 1 if event == "some" else None
            again = batch.answered(source, asked, shard.sample(asked))
            if again:
                due.append((source, again))
        if batch.missing and any(masses(known).values()):
            due += batch.draw(masses(known), rng).items()
    assert batch.complete
    finished = batch.finish(1.0)
    assert len(finished) == len(finished.items) == size
    assert np.isfinite(finished.weights).all()
    assert finished.weights.max() == 1.0
    assert (finished.weights > 0).all()
