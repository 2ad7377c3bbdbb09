"""Which of the inserts that recovery finds count."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from services.replay.storage.found_items import Budget, FoundItems
from shoal.journal.events import Inserted
from tests.unit.replay.storage.table_double import LIFE, TableDouble, stored

Keys = tuple[int, int]


def found_of(written: list[Keys], num_keys: int = 20) -> tuple[list[tuple[Keys, int]], int]:
    """First and last keys of inserts, in the order in which they were written: which of them count."""
    keys = np.arange(1, num_keys + 1, dtype=np.uint64)
    items = FoundItems(replace(TableDouble().save(), keys=keys), Budget(None))
    for number, (first, last) in enumerate(written):
        payloads = tuple(stored(b"%d" % key) for key in range(first, last + 1))
        size = len(payloads)
        items.add(Inserted(first, size, LIFE, number, payloads, np.ones(size)))
    found = [((i.first_key, i.first_key + i.num_keys - 1), i.sequence) for i in items.in_order()]
    return found, items.num_missing()


@pytest.mark.parametrize(
    ("written", "counts"),
    [
        ([(1, 10), (11, 20)], [0, 1]),
        # Written again.
        ([(1, 10), (11, 20), (1, 10)], [2, 1]),
        # Keys that were used again, after the inserts that had them could not be read.
        ([(1, 10), (5, 12)], [1]),
        ([(5, 12), (1, 10)], [1]),
        ([(5, 7), (4, 5)], [1]),
        ([(1, 3), (4, 6), (7, 9), (5, 7)], [0, 3]),
        ([(1, 3), (4, 6), (7, 9), (2, 8)], [3]),
        ([(1, 20), (8, 9)], [1]),
        ([(8, 9), (1, 20)], [1]),
        # The second knew better than the first what its keys are, whatever became of it.
        ([(1, 10), (5, 15), (12, 20)], [2]),
    ],
)
def test_of_inserts_that_share_keys_the_last_one_counts(written: list[Keys], counts: list[int]) -> None:
    found, num_missing = found_of(written)
    assert [number for _, number in found] == counts
    assert num_missing == 20 - sum(last - first + 1 for (first, last), _ in found)


def test_no_two_overlap_and_none_is_older_than_another_with_its_keys() -> None:
    rng = random.Random(1)
    for _ in range(300):
        written = [(first, first + rng.randrange(4)) for first in rng.choices(range(1, 17), k=12)]
        last_write = {key: i for i, (first, last) in enumerate(written) for key in range(first, last + 1)}
        found, _ = found_of(written)
        keys = [key for (first, last), _ in found for key in range(first, last + 1)]
        assert keys == sorted(set(keys))
        for (first, last), number in found:
            assert all(last_write[key] == number for key in range(first, last + 1))
