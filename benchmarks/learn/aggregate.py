"""Figures over seeds: the interquartile mean, and how sure it is. Agarwal et al. (2021), "Deep Reinforcement
Learning at the Edge of the Statistical Precipice"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NUM_RESAMPLES = 10_000
SHARE = 0.95
SEED = 0


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of what is left without the lowest and the highest quarter, each rounded down to whole values."""
    return float(_middle_mean(np.sort(np.asarray(values, float))))


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """Percentiles of the interquartile mean over seeds drawn with replacement: 95 % of them lie within."""
    array = np.asarray(values, float)
    drawn = np.random.default_rng(SEED).choice(array, (NUM_RESAMPLES, array.size))
    tail = 50 * (1 - SHARE)
    low, high = np.percentile(_middle_mean(np.sort(drawn, axis=-1)), [tail, 100 - tail])
    return float(low), float(high)


def _middle_mean(ordered: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Over the last axis."""
    size = ordered.shape[-1]
    cut = size // 4
    mean: npt.NDArray[np.float64] = ordered[..., cut : size - cut].mean(axis=-1)
    return mean
