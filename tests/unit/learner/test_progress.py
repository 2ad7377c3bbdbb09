"""Counters, stop conditions and policy lag."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from services.learner.metrics import LAG_BUCKETS, LagHistogram
from services.learner.progress import MAX_LAG, Lag, Progress
from shoal.config.learner import StopSection
from shoal.records import Episode


def filled(returns: list[float]) -> Progress:
    progress = Progress()
    progress.count_data(10, [Episode(value, 3) for value in returns])
    return progress


def test_the_mean_is_over_the_last_hundred() -> None:
    progress = filled([1000.0] * 50 + [1.0] * 60 + [3.0] * 40)
    assert progress.mean_return == pytest.approx(1.8)
    assert progress.mean_length == 3
    assert progress.num_episodes == 150
    assert Progress().mean_return is None


def test_until_return_needs_a_hundred_episodes() -> None:
    stop = StopSection(until_return=475.0)
    assert filled([500.0] * 99).reason_to_stop(stop) is None
    assert filled([500.0] * 100).reason_to_stop(stop) == "until_return"
    assert filled([475.0] * 100).reason_to_stop(stop) == "until_return"
    assert filled([500.0] * 100 + [474.0] * 100).reason_to_stop(stop) is None


def test_steps_are_environment_steps() -> None:
    progress = Progress()
    stop = StopSection(steps=20)
    progress.count_data(19, [])
    progress.count_step(400)
    assert progress.reason_to_stop(stop) is None
    progress.count_data(1, [])
    progress.count_step(400)
    assert progress.reason_to_stop(stop) == "steps"
    assert progress.learner_steps == 2
    assert progress.trained_steps == 800
    assert progress.reason_to_stop(StopSection()) is None


def test_json_round_trip() -> None:
    progress = filled([1.5, 2.5])
    progress.policy_version, progress.seconds = 7, 1.25
    assert Progress.from_json(progress.to_json()) == progress


@given(
    current=st.integers(0, 10_000),
    versions=st.lists(st.integers(0, 10_000), min_size=1, max_size=200),
)
def test_lag_against_numpy(current: int, versions: list[int]) -> None:
    lags = np.clip(current - np.array(versions), 0, MAX_LAG)
    lag = Lag.of(current, np.array(versions))
    assert lag.max == lags.max()
    assert lag.mean == pytest.approx(lags.mean())
    assert lag.p95 == np.percentile(lags, 95, method="inverted_cdf")
    assert lag.counts.sum() == len(versions)


def test_lag_of_wild_versions_is_bounded() -> None:
    lag = Lag.of(5, np.array([-(2**60), 2**60, 5]))
    assert (lag.max, len(lag.counts)) == (MAX_LAG, MAX_LAG + 1)
    assert Lag.of(5, np.array([], np.int64)).max == 0


def test_lag_histogram_equals_one_observation_at_a_time() -> None:
    registry = CollectorRegistry()
    histogram = LagHistogram(registry)
    for policy in ("red", "blue"):
        histogram.add(policy)
    rng = np.random.default_rng(1)
    everything = []
    for _ in range(20):
        lags = rng.integers(0, 400, 300)
        everything.append(lags)
        histogram.observe("red", np.bincount(lags))
        histogram.observe("blue", np.array([7]))
    lags = np.concatenate(everything)
    name = "shoal_learner_policy_lag_versions"
    for bound in LAG_BUCKETS:
        value = registry.get_sample_value(f"{name}_bucket", {"policy": "red", "le": str(float(bound))})
        assert value == np.count_nonzero(lags <= bound)
    assert registry.get_sample_value(f"{name}_bucket", {"policy": "red", "le": "+Inf"}) == lags.size
    assert registry.get_sample_value(f"{name}_count", {"policy": "red"}) == lags.size
    assert registry.get_sample_value(f"{name}_sum", {"policy": "red"}) == lags.sum()
    assert registry.get_sample_value(f"{name}_count", {"policy": "blue"}) == 140
    assert registry.get_sample_value(f"{name}_sum", {"policy": "blue"}) == 0
    assert b"# TYPE shoal_learner_policy_lag_versions histogram" in generate_latest(registry)
