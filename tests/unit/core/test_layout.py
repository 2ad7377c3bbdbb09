"""Where columns lie, against an obvious packer that goes by the words of `trajectory.proto`."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.codec import DTYPES
from shoal.errors import InvalidArgumentError, LimitError
from shoal.layout import ColumnSpec, plan_layout

MAX_BYTES = 1 << 60

columns = st.lists(
    st.builds(
        ColumnSpec,
        st.text(max_size=3),
        st.sampled_from(DTYPES),
        st.lists(st.sampled_from([0, 1, 2, 5, 30, 64, 512, 4096]), max_size=3).map(tuple),
    ),
    max_size=12,
    unique_by=lambda column: column.name,
)


def size(column: ColumnSpec) -> int:
    return math.prod(column.shape) * np.dtype(column.dtype).itemsize


def obvious_blocks(specs: list[ColumnSpec]) -> list[list[str]]:
    small = [spec for spec in specs if size(spec) < 4096]
    by_size: list[ColumnSpec] = []
    for itemsize in (8, 4, 2, 1):
        by_size += [spec for spec in small if np.dtype(spec.dtype).itemsize == itemsize]
    shared = [[spec.name for spec in by_size]] if small else []
    return shared + [[spec.name] for spec in specs if size(spec) >= 4096]


@given(columns)
def test_as_the_protocol_says(specs: list[ColumnSpec]) -> None:
    layout = plan_layout(specs, MAX_BYTES, MAX_BYTES * 20)
    assert [slot.name for slot in layout.slots] == [spec.name for spec in specs]
    assert [[slot.name for slot in block] for block in layout.blocks] == obvious_blocks(specs)
    assert [(slot.dtype.name, slot.shape) for slot in layout.slots] == [spec[1:] for spec in specs]


@given(columns)
def test_every_byte_belongs_to_one_column_and_every_column_is_aligned(specs: list[ColumnSpec]) -> None:
    layout = plan_layout(specs, MAX_BYTES, MAX_BYTES * 20)
    for number, block in enumerate(layout.blocks):
        end = 0
        for slot in block:
            assert (slot.block, slot.offset) == (number, end)
            assert slot.num_bytes == math.prod(slot.shape) * slot.dtype.itemsize
            assert slot.offset % slot.dtype.itemsize == 0
            end += slot.num_bytes
        assert layout.block_bytes[number] == end
    bools = [slot for slot in layout.slots if slot.dtype == np.bool_]
    assert sum(end - begin for _, begin, end in layout.bools) == sum(slot.num_bytes for slot in bools)
    for slot in bools:
        assert any(
            number == slot.block and begin <= slot.offset and slot.offset + slot.num_bytes <= end
            for number, begin, end in layout.bools
        )


def test_limits() -> None:
    specs = [ColumnSpec("a", "uint8", (100,)), ColumnSpec("b", "uint8", (100,))]
    assert plan_layout(specs, 100, 200).block_bytes == (200,)
    with pytest.raises(LimitError, match="of 100 bytes is above the limit of 99"):
        plan_layout(specs, 99, 200)
    with pytest.raises(LimitError, match="max_trajectory_bytes"):
        plan_layout(specs, 100, 199)
    with pytest.raises(LimitError, match="257 columns"):
        plan_layout([ColumnSpec(str(i), "uint8", (1,)) for i in range(257)], 100, 10_000)
    with pytest.raises(InvalidArgumentError, match="'a' appears twice"):
        plan_layout([specs[0]] * 2, 100, 10_000)
    with pytest.raises(InvalidArgumentError, match="unknown dtype"):
        plan_layout([ColumnSpec("a", "object", (1,))], 100, 10_000)
