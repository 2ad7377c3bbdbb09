"""Objects by slot: as a list of them, whatever the blocks, and equal lives as one object."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay import object_column
from services.replay.object_column import ObjectColumn, SharedLives
from shoal.records import Life

NUM_SLOTS = 21
SLOTS = st.lists(st.integers(0, NUM_SLOTS - 1), min_size=1, max_size=30)


@pytest.mark.parametrize("shift", [2, 20])
@given(st.lists(st.tuples(SLOTS, st.binary())))
def test_it_holds_what_a_list_would(shift: int, writes: list[tuple[list[int], bytes]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_column, "_SHIFT", shift)
        patch.setattr(object_column, "_BLOCK", 1 << shift)
        patch.setattr(object_column, "_MASK", (1 << shift) - 1)
        column: ObjectColumn[bytes | None] = ObjectColumn(NUM_SLOTS)
        model: list[bytes | None] = [None] * NUM_SLOTS
        for slots, value in writes:
            first, *others = slots
            column[first] = model[first] = value
            column.fill(np.array(others, np.intp), value[:1])
            for slot in others:
                model[slot] = value[:1]
            assert column[first] == model[first]
            assert column.take(np.array(slots)) == [model[slot] for slot in slots]
        assert column.take(np.arange(NUM_SLOTS)) == model


def test_equal_lives_are_one_object_and_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_column, "_MAX_SHARED_LIVES", 3)
    shared = SharedLives()
    first = shared(Life("actor", "0"))
    assert shared(Life("actor", "0")) is first
    for number in range(1, 10):
        assert shared(Life("actor", str(number))) == Life("actor", str(number))
        assert len(shared._lives) <= 3
