"""Unrolls whose sequences were all sampled for the last time: those stay that a sequence to come can use."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.chains import Chains, Unroll
from tests.unit.replay.payloads import LIFE


def chain(length: int, overlap: int, num_unrolls: int) -> Chains:
    """Of one stream, with keys from 1 on."""
    chains = Chains(64, length, overlap)
    for key in range(1, num_unrolls + 1):
        append(chains, key)
    return chains


def append(chains: Chains, key: int) -> None:
    chains.append(key, Unroll(LIFE, key, stream=0, first_step=2 * key, num_steps=2))


def spend(chains: Chains, *ends: int) -> None:
    for end in ends:
        for key in chains.spend(end):
            chains.drop(key)


def there(chains: Chains) -> list[int]:
    return [key for key in range(1, 64) if key in chains]


def test_what_only_sequences_before_a_gap_could_use_is_gone() -> None:
    chains = chain(2, 1, num_unrolls=4)
    spend(chains, 4, 3, 2)
    assert there(chains) == [4]
    append(chains, 5)
    assert chains._members(5) == [4, 5]


def test_a_stream_that_goes_on_elsewhere_needs_nothing_of_before() -> None:
    chains = chain(2, 1, num_unrolls=2)
    append(chains, 4)
    spend(chains, 2)
    assert there(chains) == [4]


@pytest.mark.parametrize("shape", [(1, 0), (2, 0), (2, 1), (3, 1), (3, 2), (4, 2), (5, 1), (5, 4)])
@given(num_unrolls=st.integers(0, 20), shuffle=st.randoms())
def test_in_whatever_order_they_are_spent_the_same_unrolls_stay(
    shape: tuple[int, int], num_unrolls: int, shuffle: random.Random
) -> None:
    length, overlap = shape
    chains = chain(length, overlap, num_unrolls)
    ends = list(range(length, num_unrolls + 1, length - overlap))
    newest = ends[-1] if ends else overlap
    shuffle.shuffle(ends)
    spend(chains, *ends)
    assert there(chains) == list(range(newest - overlap + 1, num_unrolls + 1))
