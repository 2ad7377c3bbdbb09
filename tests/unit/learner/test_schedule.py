"""The learning rate: schedules and scaling by hand, and that a run steps with it."""

from __future__ import annotations

import math

import pytest

from services.learner.schedule import LearningRate, Scaling, Schedule, effective_batch, scaled, scheduled
from shoal.config import load_config
from shoal.config.trainable import check_trainable


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.75, 0.5, 0.0, 0.0]),
        ("cosine", [1.0, 0.5 + math.sqrt(0.125), 0.5, 0.0, 0.0]),
    ],
)
@pytest.mark.parametrize("end", [0.0, 0.2, 1.0])
def test_schedules_fall_from_one_to_their_end(schedule: Schedule, expected: list[float], end: float) -> None:
    found = [scheduled(schedule, share, end) for share in (0.0, 0.25, 0.5, 1.0, 1.5)]
    assert found == pytest.approx([end + (1.0 - end) * share for share in expected], abs=1e-12)


@pytest.mark.parametrize(("scaling", "expected"), [("none", 1.0), ("sqrt", 2.0), ("linear", 4.0)])
def test_scaling_with_the_batch(scaling: Scaling, expected: float) -> None:
    assert scaled(scaling, 1024, 256) == expected
    assert scaled(scaling, 256, 256) == 1.0
    assert scaled(scaling, 64, 256) == 1.0 / expected


def test_the_effective_batch_is_what_one_optimiser_step_averages_over() -> None:
    """Accumulation splits it, and so do learners; neither makes it larger."""
    config = load_config(None, ["algorithm.name=impala", "learner.batch_envs=64"], {})
    assert effective_batch(config, 20).num_steps == 1280
    config = load_config(None, ["learner.batch_envs=64", "algorithm={name: ppo, minibatches: 4}"], {})
    assert effective_batch(config, 20).num_steps == 320
    assert effective_batch(config, 20).describe() == "320 steps (64 envs x 20 steps / 4 minibatches)"
    config = load_config(None, ["learner.batch_envs=64", "algorithm={name: r2d2, burn_in: 4}"], {})
    assert effective_batch(config, 20).num_steps == 64 * 16, "no loss is computed on the burn-in"


def test_schedule_and_scaling_multiply() -> None:
    settings = (
        "{name: impala, learning_rate: 2e-3, learning_rate_schedule: linear, learning_rate_scaling: sqrt}"
    )
    config = load_config(None, [f"algorithm={settings}", "stop.steps=1000", "learner.batch_envs=32"], {})
    rate = LearningRate(config, 32)
    assert rate.base == 2e-3
    found = [rate.factor(steps) for steps in (0, 500, 1000, 9999)]
    assert found == pytest.approx([2.0, 1.1, 0.2, 0.2])
    assert rate.describe() == (
        "effective batch 1,024 steps (32 envs x 32 steps), learning rate 0.002 x 2.00, "
        "linear to 10% of it at 1,000 steps"
    )


def test_without_either_it_is_what_is_set() -> None:
    constant = ["algorithm={name: impala, learning_rate_schedule: constant}", "learner.batch_envs=64"]
    rate = LearningRate(load_config(None, [*constant, "stop.steps=1000"], {}), 20)
    assert {rate.factor(steps) for steps in (0, 500, 2000)} == {1.0}
    assert rate.describe() == "effective batch 1,280 steps (64 envs x 20 steps), learning rate 0.001 x 1.00"


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize(
    ("settings", "end"),
    [
        ([], 1_000_000),
        (["stop.steps=4000"], 4000),
        (["algorithm.schedule_steps=500"], 500),
        (["algorithm.schedule_steps=500", "stop.steps=4000"], 500),
    ],
)
@pytest.mark.parametrize("left", [0.0, 0.3])
def test_a_schedule_ends_where_it_is_told_to_or_with_the_run_or_after_a_million(
    schedule: str, settings: list[str], end: int, left: float
) -> None:
    falling = [f"algorithm.learning_rate_schedule={schedule}", f"algorithm.learning_rate_end={left}"]
    config = load_config(None, [*falling, *settings], {})
    check_trainable(config)
    rate = LearningRate(config, 20)
    shares = [rate.factor(steps) for steps in (0, end // 2, end, 3 * end)]
    assert shares == pytest.approx([1.0, left + (1.0 - left) / 2, left, left])
    assert rate.factor(end - 1) > left
