"""Arrays of any dtype as floats."""

from __future__ import annotations

import pytest
import torch

from shoal.errors import UserError
from shoal.policy.array_input import EMBEDDING_SIZE, MAX_ONE_HOT, EmbeddedInput, array_input
from shoal.records import ArraySpec


def test_bytes_are_scaled_and_categories_are_one_hot() -> None:
    frame = array_input(ArraySpec("f", "uint8", (2,)))
    assert torch.equal(frame(torch.tensor([[0, 255]], dtype=torch.uint8)), torch.tensor([[0.0, 1.0]]))
    kind = array_input(ArraySpec("k", "uint8", (2,), num_categories=3))
    one_hot = kind(torch.tensor([[2, 0]], dtype=torch.uint8))
    assert torch.equal(one_hot, torch.tensor([[0.0, 0, 1, 1, 0, 0]]))


def test_a_category_out_of_range_is_zeros_not_a_crash() -> None:
    kind = array_input(ArraySpec("k", "int64", (), num_categories=3))
    assert torch.equal(kind(torch.tensor([3, -1])), torch.zeros(2, 3))


@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (2, 1, 3)])
def test_every_rank_is_flattened(shape: tuple[int, ...]) -> None:
    given = torch.randn(4, *shape)
    assert torch.equal(array_input(ArraySpec("x", "float32", shape))(given), given.reshape(4, -1))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float16"])
def test_every_dtype_of_the_wire_becomes_floats(dtype: str) -> None:
    array = array_input(ArraySpec("x", dtype, (2,)))
    given = torch.ones(3, 2).to(getattr(torch, dtype))
    assert torch.equal(array(given), torch.ones(3, 2))


def test_many_categories_are_embedded() -> None:
    num = MAX_ONE_HOT + 1
    assert array_input(ArraySpec("k", "int64", (), num - 1)).width == MAX_ONE_HOT
    kind = array_input(ArraySpec("k", "int64", (), num))
    assert isinstance(kind, EmbeddedInput)
    assert kind.width == EMBEDDING_SIZE
    shown = kind(torch.tensor([0, num - 1, num, -1, 1 << 40]))
    assert torch.equal(shown[:2], kind.table.weight[[0, num - 1]])
    assert torch.equal(shown[2:], torch.zeros(3, EMBEDDING_SIZE)), "out of range"


def test_each_element_has_its_own_embeddings() -> None:
    num = 2000
    pair = array_input(ArraySpec("k", "int64", (2, 1), num))
    assert isinstance(pair, EmbeddedInput)
    shown = pair(torch.tensor([[[5], [5]]]))
    assert torch.equal(shown, pair.table.weight[[5, num + 5]].reshape(1, -1))
    shown.sum().backward()
    grad = pair.table.weight.grad
    assert grad is not None
    assert grad.abs().sum(-1).nonzero().flatten().tolist() == [5, num + 5]


def test_too_many_categories_are_refused() -> None:
    with pytest.raises(UserError, match=r"k has 2000000 inputs for the network \(limit 1048576\)"):
        array_input(ArraySpec("k", "int64", (2,), 1_000_000))
