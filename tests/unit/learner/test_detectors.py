"""What guards look for, on made-up values: found when it is there, and not when all is well."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from services.learner.detectors import BLOCK, MIN_BLOCKS, Collapse, Explosion, Growth, Stall
from shoal.config.guards import EntropyCollapse, ExplosionGuard, MemoryGrowth, ThroughputStall
from shoal.records import BoxAction, DiscreteAction, MultiDiscreteAction

MIB = 1 << 20


def explosion(**changes: float) -> Explosion:
    return Explosion(ExplosionGuard(**changes), "value loss")  # type: ignore[arg-type]


def feed(detector: Explosion, values: list[float], start: int = 0) -> list[int]:
    """The steps after which something was found."""
    found = []
    for step, value in enumerate(values, start + 1):
        detector.add(step, value)
        if detector.finding is not None:
            found.append(step)
    return found


def test_a_value_that_explodes_is_found_within_two_blocks() -> None:
    detector = explosion()
    rng = random.Random(1)
    usual = [rng.lognormvariate(0.0, 1.0) for _ in range(500)]
    assert feed(detector, usual) == []
    found = feed(detector, [200.0 * 1.2**n for n in range(2 * BLOCK)], start=500)
    assert found[0] <= 500 + 2 * BLOCK
    assert detector.finding is not None
    assert "the value loss is" in detector.finding.text
    assert detector.finding.before_step <= 500, "it was well at that step"


def test_single_wild_batches_are_not_an_explosion() -> None:
    values = [1e6 if n % 5 == 0 else 1.0 for n in range(1000)]
    assert feed(explosion(), values) == []


def test_small_values_may_grow_a_lot() -> None:
    """The first rewards of a sparse task: from next to nothing to something, and no explosion."""
    values = [1e-7] * 300 + [0.5] * 300
    assert feed(explosion(), values) == []
    assert feed(explosion(at_least=0.1), values)


def test_nothing_is_judged_before_there_is_something_usual() -> None:
    assert feed(explosion(), [1e-3] * (MIN_BLOCKS - 1) * BLOCK + [1e9] * BLOCK) == []


def test_a_level_that_stays_becomes_the_usual_one() -> None:
    detector = explosion()
    assert feed(detector, [1.0] * 1000 + [1e4] * BLOCK)
    assert detector.finding is not None
    feed(detector, [1e4] * 2000, start=2000)
    assert detector.finding is None


def test_the_sign_of_a_loss_does_not_matter() -> None:
    assert feed(explosion(), [-1.0] * 500 + [-1e6] * 2 * BLOCK)


@pytest.mark.parametrize(
    ("action", "healthy", "collapsed"),
    [
        (DiscreteAction(4), 0.05, 0.005),
        (MultiDiscreteAction((2, 3)), 0.05, 0.005),
        # Gaussians of width 1 that become those of width 0.1, and of width 0.001.
        (BoxAction((3,), (-1.0,) * 3, (1.0,) * 3), 3 * math.log(0.1), 3 * math.log(0.001)),
    ],
)
def test_entropy_that_has_been_next_to_nothing_for_many_steps(
    action: DiscreteAction | MultiDiscreteAction | BoxAction, healthy: float, collapsed: float
) -> None:
    detector = Collapse(EntropyCollapse(for_steps=50), action)
    detector.add(1, 0.0 if isinstance(action, BoxAction) else 1.0)
    for step in range(2, 200):
        detector.add(step, healthy)
        assert detector.finding is None
    for step in range(200, 250):
        detector.add(step, collapsed)
        assert detector.finding is None, "not for long enough"
    detector.add(250, collapsed)
    assert detector.finding is not None
    assert "for 50 learner steps (limit 50)" in detector.finding.text
    assert detector.finding.before_step == 199
    detector.add(251, healthy)
    assert detector.finding is None


def test_a_learner_that_comes_back_after_the_collapse_sees_it() -> None:
    detector = Collapse(EntropyCollapse(for_steps=10), DiscreteAction(4))
    for step in range(1000, 1011):
        detector.add(step, 1e-4)
    assert detector.finding is not None


def test_an_action_without_a_choice_cannot_collapse() -> None:
    detector = Collapse(EntropyCollapse(for_steps=1), DiscreteAction(1))
    for step in range(10):
        detector.add(step, 0.0)
    assert detector.finding is None


def test_no_batch_for_long_is_found_while_waiting_and_goes_with_the_next() -> None:
    detector = Stall(ThroughputStall(no_batch_s=60.0))
    detector.look(0, 1000.0)
    assert detector.finding is None, "before the first batch a run starts, it does not stall"
    detector.batch(0, 999.0)
    detector.batch(1, 1000.0)
    detector.look(1, 1059.0)
    assert detector.finding is None
    detector.look(1, 1061.0)
    assert detector.finding is not None
    assert detector.finding.text == "no batch has come for 61 s (limit 60 s)"
    detector.batch(2, 1062.0)
    assert detector.finding is None


def test_batches_that_always_take_minutes_are_no_stall() -> None:
    detector = Stall(ThroughputStall())
    now = 0.0
    for step in range(20):
        detector.batch(step, now)
        for _ in range(400):
            now += 0.5
            detector.look(step, now)
            assert detector.finding is None
    for _ in range(2 * 900):
        now += 0.5
        detector.look(20, now)
    assert detector.finding is not None
    assert "no batch has come for 1100 s (limit 1000 s)" in detector.finding.text


def test_a_speed_far_below_the_best_is_found_and_forgiven() -> None:
    detector = Stall(ThroughputStall(window_s=10.0, fraction=0.1))
    step, now = 0, 0.0

    def go(seconds: float, per_second: float) -> None:
        nonlocal step, now
        for _ in range(int(seconds * per_second)):
            step += 1
            now += 1 / per_second
            detector.batch(step, now)

    go(60.0, 50.0)
    assert detector.finding is None
    go(40.0, 10.0)
    assert detector.finding is None, "slower, but not by as much"
    go(25.0, 2.0)
    assert detector.finding is not None
    assert "learner steps/s, it made up to 50" in detector.finding.text
    go(25.0, 20.0)
    assert detector.finding is None


def grow(detector: Growth, megabytes: list[float], every_s: float = 10.0) -> list[float]:
    """Look every second while memory goes through the values, `every_s` each. Returns when it was found."""
    found = []
    for second in range(int(len(megabytes) * every_s)):
        now = float(second)
        if detector.is_due(now):
            detector.add(7, now, int(megabytes[int(second / every_s)] * MIB))
        if detector.finding is not None:
            found.append(now)
    return found


def test_memory_that_keeps_growing_is_found() -> None:
    detector = Growth(MemoryGrowth(mib_per_minute=50.0, warmup_s=60.0, window_s=300.0))
    found = grow(detector, [500 + 10 * n for n in range(60)])
    assert 360 <= found[0] <= 380
    assert detector.finding is not None
    assert "grows by 60 MiB/min" in detector.finding.text


@pytest.mark.parametrize(
    "megabytes",
    [
        [500 + 5 * n for n in range(60)],
        # A warm-up, a jump, and ups and downs.
        [100.0 * n for n in range(6)] + [600.0] * 60,
        [500.0] * 30 + [1500.0] * 40,
        [500.0 + 50 * (n % 4) for n in range(80)],
    ],
)
def test_memory_of_a_healthy_process(megabytes: list[float]) -> None:
    assert grow(Growth(MemoryGrowth(mib_per_minute=50.0, warmup_s=60.0, window_s=300.0)), megabytes) == []


def test_more_memory_than_the_limit_is_found_at_once() -> None:
    detector = Growth(MemoryGrowth(warmup_s=0.0, max_mib=600.0))
    assert grow(detector, [500.0, 601.0])[0] == 10.0
    assert detector.finding is not None
    assert "601 MiB of memory (limit 600 MiB)" in detector.finding.text


def test_a_hundred_healthy_runs_of_noise_raise_nothing() -> None:
    """Heavy-tailed losses that drift by a factor of ten over the run."""
    rng = np.random.default_rng(3)
    for _ in range(100):
        drift = np.exp(np.linspace(0.0, math.log(10.0), 2000))
        values = 20.0 * drift * rng.lognormal(0.0, 1.5, 2000)
        assert feed(explosion(), values.tolist()) == []
