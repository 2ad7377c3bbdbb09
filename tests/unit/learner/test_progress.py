"""Counters, stop conditions and policy lag."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from services.learner.metrics import LAG_BUCKETS, LagHistogram
from services.learner.progress import MAX_LAG, Lag, Progress
from services.learner.returns import Returns
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
    progress = filled([1.5, 2.5] * 60)
    progress.policy_version, progress.seconds = 7, 1.25
    progress.untrained_version = 4096
    progress.untrained.add(3.5)
    assert progress.best is not None
    tree = json.loads(json.dumps(progress.to_json()))
    assert Progress.from_json(tree) == progress


def test_checkpoints_without_a_baseline_load() -> None:
    tree = filled([1.5, 2.5]).to_json()
    for key in ("untrained_version", "untrained", "best"):
        del tree[key]
    progress = Progress.from_json(tree)
    assert (progress.untrained_return, progress.best) == (None, None)
    progress.count_data(10, [Episode(1.0, 3, -1), Episode(1.0, 3, 0)])
    assert progress.untrained_return is None, "nobody knows which version was untrained"
    assert progress.has_learned(3.0) is None


def test_the_baseline_is_of_episodes_that_began_with_the_untrained_version() -> None:
    progress = Progress(untrained_version=0)
    progress.count_data(10, [Episode(20.0, 3, 0), Episode(500.0, 3, 1)])
    # A long one that began untrained and ended under a later version; one of a sender that does not tell.
    progress.count_data(10, [Episode(30.0, 3, 0), Episode(400.0, 3)])
    assert progress.untrained_return == 25.0
    assert progress.untrained.num == 2
    assert progress.num_episodes == 4


def test_a_baseline_of_random_play_stays_as_it_is() -> None:
    progress = Progress(untrained=Returns.of([1.0, 2.0, 3.0, 2.0]))
    assert progress.knows_untrained
    progress.count_data(10, [Episode(9.0, 3, 0), Episode(9.0, 3, -1)])
    assert (progress.untrained_return, progress.untrained.num) == (2.0, 4)
    assert progress.num_trained_episodes == 2
    assert Progress.from_json(progress.to_json()).knows_untrained
    assert not Progress(untrained=Returns.of([1.0] * 4), untrained_version=0).knows_untrained
    assert not Progress().knows_untrained


def test_learned_is_what_is_above_the_untrained_by_more_than_chance() -> None:
    progress = Progress(untrained_version=0)
    progress.count_data(10, [Episode(20.0 + number % 3, 3, 0) for number in range(30)])
    assert progress.has_learned(3.0) is None, "there are only untrained ones"
    progress.count_data(10, [Episode(20.1 + number % 3, 3, 1) for number in range(100)])
    assert progress.has_learned(3.0) is False
    progress.count_data(10, [Episode(22.0 + number % 3, 3, 1) for number in range(100)])
    assert progress.has_learned(3.0) is True


def test_a_run_of_few_episodes_is_judged_by_the_newer_half() -> None:
    """SAC on Pendulum: thirty episodes are enough to learn, and most are from before."""
    progress = Progress(untrained_version=0)
    progress.count_data(10, [Episode(-1100.0 + 20 * number, 200, 0) for number in range(4)])
    progress.count_data(10, [Episode(-1100.0 + 20 * number, 200, 1) for number in range(13)])
    progress.count_data(10, [Episode(-300.0 + 20 * number, 200, 9) for number in range(13)])
    assert progress.newest.num == 13
    assert progress.newest.mean == pytest.approx(-180.0)
    assert progress.has_learned(3.0) is True


def blackjack(wins: int, num: int, version: int) -> list[Episode]:
    """So many of 20 hands won."""
    return [Episode(1.0 if number % 20 < wins else -1.0, 1, version) for number in range(num)]


def test_a_gain_that_drowns_in_chance_is_seen_over_many_episodes() -> None:
    """Blackjack-v1: a hand is won or lost whatever the policy, -0.4 at first and -0.1 at best."""
    progress = Progress(untrained_version=0)
    progress.count_data(10, blackjack(6, 1000, version=0))
    progress.count_data(10, blackjack(9, 200, version=1))
    assert progress.has_learned(3.0) is False, "a hundred hands say nothing"
    progress.count_data(10, blackjack(9, 3000, version=1))
    assert progress.newest.num == 1000
    assert progress.has_learned(3.0) is True
    assert Progress.from_json(progress.to_json()).has_learned(3.0) is True
    before = progress.to_json()
    del before["compared"]
    assert Progress.from_json(before).newest.num == 100


def test_the_best_mean_is_kept_with_its_step() -> None:
    progress = filled([9.0] * 99)
    assert progress.best is None, "99 episodes are not enough"
    progress.learner_steps = 5
    progress.count_data(10, [Episode(9.0, 3)])
    progress.learner_steps = 6
    progress.count_data(10, [Episode(1.0, 3)] * 100)
    assert progress.best is not None
    assert (progress.best.returns.mean, progress.best.learner_step) == (9.0, 5)


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
