"""Proportional prioritised replay (Schaul et al. 2016, sections 3.3 and 3.4)."""

from __future__ import annotations

from collections.abc import Sequence


def probabilities(priorities: Sequence[float], alpha: float) -> list[float]:
    """P(i) = p_i^alpha / sum of p_k^alpha, equation 1."""
    total = sum(priority**alpha for priority in priorities)
    return [priority**alpha / total for priority in priorities]


def importance_weights(probability: Sequence[float], num_items: int, beta: float) -> list[float]:
    """w_i = (1 / (N P(i)))^beta, divided by the largest of the batch."""
    weights = [(1.0 / (num_items * p)) ** beta for p in probability]
    return [weight / max(weights) for weight in weights]
