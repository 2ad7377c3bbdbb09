"""Arrays of any dtype as floats."""

from __future__ import annotations

import pytest
import torch

from shoal.policy.array_input import ArrayInput
from shoal.records import ArraySpec


def test_bytes_are_scaled_and_categories_are_one_hot() -> None:
    frame = ArrayInput(ArraySpec("f", "uint8", (2,)))
    assert torch.equal(frame(torch.tensor([[0, 255]], dtype=torch.uint8)), torch.tensor([[0.0, 1.0]]))
    kind = ArrayInput(ArraySpec("k", "uint8", (2,), num_categories=3))
    one_hot = kind(torch.tensor([[2, 0]], dtype=torch.uint8))
    assert torch.equal(one_hot, torch.tensor([[0.0, 0, 1, 1, 0, 0]]))


def test_a_category_out_of_range_is_zeros_not_a_crash() -> None:
    kind = ArrayInput(ArraySpec("k", "int64", (), num_categories=3))
    assert torch.equal(kind(torch.tensor([3, -1])), torch.zeros(2, 3))


@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (2, 1, 3)])
def test_every_rank_is_flattened(shape: tuple[int, ...]) -> None:
    given = torch.randn(4, *shape)
    assert torch.equal(ArrayInput(ArraySpec("x", "float32", shape))(given), given.reshape(4, -1))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float16"])
def test_every_dtype_of_the_wire_becomes_floats(dtype: str) -> None:
    array = ArrayInput(ArraySpec("x", dtype, (2,)))
    given = torch.ones(3, 2).to(getattr(torch, dtype))
    assert torch.equal(array(given), torch.ones(3, 2))
