"""Value rescaling by hand, against bisection, and back again."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.algorithms.rescaling import rescaled, unscaled

VALUES = st.floats(-1e6, 1e6, allow_nan=False)


def h(x: float, epsilon: float) -> float:
    return math.copysign(1.0, x) * (math.sqrt(abs(x) + 1.0) - 1.0) + epsilon * x


def by_bisection(y: float, epsilon: float) -> float:
    low, high = -1e13, 1e13
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if h(middle, epsilon) < y else (low, middle)
    return low


def test_by_hand() -> None:
    # sqrt(3 + 1) - 1 + 3/8, sqrt(8 + 1) - 1 + 1
    values = torch.tensor([0.0, 3.0, -3.0, 8.0])
    assert rescaled(values, 0.125).tolist() == [0.0, 1.375, -1.375, 3.0]
    assert unscaled(torch.tensor([0.0, 1.375, -1.375, 3.0]), 0.125).tolist() == pytest.approx([0, 3, -3, 8])


@given(VALUES, st.sampled_from([1e-3, 1e-2, 1.0]))
def test_is_the_formula_and_its_inverse(value: float, epsilon: float) -> None:
    single = torch.tensor(value, dtype=torch.float64)
    small = rescaled(single, epsilon)
    assert small.item() == pytest.approx(h(value, epsilon), rel=1e-9, abs=1e-9)
    assert unscaled(small, epsilon).item() == pytest.approx(value, rel=1e-9, abs=1e-12)


@given(st.floats(-1e3, 1e3), st.sampled_from([1e-3, 1e-2, 1.0]))
def test_inverse_by_bisection(value: float, epsilon: float) -> None:
    found = unscaled(torch.tensor(value, dtype=torch.float64), epsilon).item()
    assert found == pytest.approx(by_bisection(value, epsilon), rel=1e-6, abs=1e-3)


@given(VALUES)
def test_single_precision_goes_there_and_back(value: float) -> None:
    single = torch.tensor(value, dtype=torch.float32)
    assert unscaled(rescaled(single, 1e-3), 1e-3).item() == pytest.approx(single.item(), rel=1e-5)


def test_without_epsilon_values_stay() -> None:
    values = torch.tensor([0.5, -7.0])
    assert rescaled(values, 0.0) is values
    assert unscaled(values, 0.0) is values
