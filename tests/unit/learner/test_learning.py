"""What the guards of learning look for, on made-up series: found where it is, and nowhere else."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from services.learner.learning import Clipped, Fallen, Idle, Unexplained
from services.learner.progress import Progress
from shoal.config.guards import GradientsClipped, NoProgress, ReturnCollapse, ValueUnexplained
from shoal.records import Episode

# Of short series, so that hundreds of steps are enough.
STEPS = 64


def unexplained(series: list[tuple[float, float]]) -> tuple[Unexplained, list[int]]:
    """`series` of explained variances and value losses; the steps after which something was found."""
    detector, found = Unexplained(ValueUnexplained(for_steps=STEPS)), []
    for step, values in enumerate(series, 1):
        detector.add(step, *values)
        found += [step] if detector.finding else []
    return detector, found


class TestUnexplained:
    def test_large_targets_that_nothing_follows(self) -> None:
        """As IMPALA on Acrobot without normalised returns: loss 46, explained -0.27 to 0.03."""
        rng = random.Random(1)
        detector, found = unexplained([(rng.uniform(-0.3, 0.03), rng.uniform(30, 60)) for _ in range(200)])
        assert STEPS <= found[0] <= 2 * STEPS
        assert detector.finding is not None
        print(detector.finding.text)
        assert "explain 0 % of the variance of their targets (limit 5 %)" in detector.finding.text

    @pytest.mark.parametrize(
        ("case", "series"),
        [
            # PPO on HalfCheetah with normalised returns: it learns all the same.
            ("small targets", [(-0.7, 0.02)] * 500),
            # CartPole at 500: all targets are alike.
            ("no variance", [(-56.0, 1e-5)] * 500),
            ("explained", [(0.8, 400.0)] * 500),
            ("the first steps", [(0.0, 100.0)] * (STEPS - 1) + [(0.5, 50.0)] * 500),
            ("comes and goes", ([(0.0, 100.0)] * 32 + [(0.3, 100.0)] * 32) * 8),
        ],
    )
    def test_not(self, case: str, series: list[tuple[float, float]]) -> None:
        assert unexplained(series)[1] == [], case

    def test_between_the_limits_what_is_raised_stays(self) -> None:
        bad, between, well = [(0.0, 100.0)] * 160, [(0.07, 100.0)] * 160, [(0.2, 100.0)] * 32
        assert unexplained(bad + between)[0].finding is not None
        assert unexplained(between + between)[0].finding is None
        assert unexplained(bad + between + well)[0].finding is None


def clipped(norms: list[float]) -> tuple[Clipped, list[int]]:
    detector, found = Clipped(GradientsClipped(for_steps=STEPS, factor=10.0), max_grad_norm=0.5), []
    for step, norm in enumerate(norms, 1):
        detector.add(step, norm)
        found += [step] if detector.finding else []
    return detector, found


class TestClipped:
    def test_gradients_that_are_all_cut_down(self) -> None:
        """Hopper without normalised returns: norms of 30 to 50."""
        rng = random.Random(1)
        detector, found = clipped([rng.uniform(30, 50) for _ in range(200)])
        assert STEPS <= found[0] <= 2 * STEPS
        assert detector.finding is not None
        print(detector.finding.text)
        assert "algorithm.max_grad_norm 0.5" in detector.finding.text

    @pytest.mark.parametrize(
        ("case", "norms"),
        [
            ("PPO that clips most steps", [0.4, 1.2, 2.0, 3.5] * 100),
            ("single wild batches", [100.0, 1.0] * 200),
            ("the first steps", [50.0] * (STEPS - 1) + [1.0] * 300),
        ],
    )
    def test_not(self, case: str, norms: list[float]) -> None:
        assert clipped(norms)[1] == [], case

    def test_let_go_when_most_are_within_the_limit(self) -> None:
        bad = [50.0] * 160
        assert clipped(bad + [50.0, 50.0, 50.0, 1.0] * 40)[0].finding is not None, "most are still cut down"
        assert clipped(bad + [1.0] * 16)[0].finding is None


def played(progress: Progress, returns: Callable[[int], float], episodes: int, steps: int = 100) -> None:
    """A batch with each episode of `steps` environment steps."""
    for index in range(episodes):
        progress.count_data(steps, [Episode(returns(index), steps, progress.policy_version)])
        progress.count_step(steps)


def begun(returns: Callable[[int], float], episodes: int = 32) -> Progress:
    """A run whose untrained policy has played."""
    progress = Progress(policy_version=0, untrained_version=0)
    played(progress, returns, episodes)
    progress.policy_version = 1
    return progress


def noise(mean: float, spread: float, seed: int = 1) -> Callable[[int], float]:
    rng = random.Random(seed)
    return lambda _: rng.gauss(mean, spread)


class TestIdle:
    def look(self, progress: Progress) -> Idle:
        detector = Idle(NoProgress(after_env_steps=20_000))
        detector.look(progress)
        return detector

    def test_noise_is_not_learning(self) -> None:
        progress = begun(noise(-497.0, 10.0))
        played(progress, noise(-496.0, 10.0, seed=2), 300)
        finding = self.look(progress).finding
        assert finding is not None
        print(finding.text)
        assert "the untrained policy's was -49" in finding.text

    def test_noise_does_not_hide_learning(self) -> None:
        """A gain of half the spread: single episodes overlap, their means do not."""
        progress = begun(noise(20.0, 10.0), episodes=100)
        played(progress, noise(27.0, 10.0, seed=2), 300)
        assert self.look(progress).finding is None

    def test_nothing_is_judged_before_the_stated_steps(self) -> None:
        progress = begun(noise(-500.0, 1.0))
        played(progress, noise(-500.0, 1.0), 160)
        assert progress.env_steps < 20_000
        assert self.look(progress).finding is None

    def test_an_unknown_baseline_is_no_finding(self) -> None:
        """A run that goes on from a checkpoint of an earlier version."""
        progress = Progress(policy_version=7)
        played(progress, noise(-500.0, 1.0), 300)
        assert self.look(progress).finding is None

    def test_let_go_when_it_is_clearly_above(self) -> None:
        progress = begun(noise(20.0, 10.0), episodes=100)
        played(progress, noise(20.0, 10.0, seed=2), 300)
        detector = self.look(progress)
        assert detector.finding is not None
        played(progress, noise(28.0, 10.0, seed=2), 100)
        detector.look(progress)
        assert detector.finding is not None, "above the limit, and not by twice as much"
        assert self.look(progress).finding is None, "not raised there"
        played(progress, noise(40.0, 10.0, seed=2), 100)
        detector.look(progress)
        assert detector.finding is None


class TestFallen:
    def watch(self, progress: Progress, *parts: tuple[Callable[[int], float], int]) -> Fallen:
        """Looks after every ten episodes."""
        detector = Fallen(ReturnCollapse(for_env_steps=5000))
        for returns, episodes in parts:
            for _ in range(episodes // 10):
                played(progress, returns, 10)
                detector.look(progress)
        return detector

    def test_a_return_that_falls_and_stays_low(self) -> None:
        progress = begun(noise(22.0, 8.0))
        detector = self.watch(progress, (noise(480.0, 20.0), 200), (noise(81.0, 30.0), 200))
        assert detector.finding is not None
        print(detector.finding.text)
        assert progress.best is not None
        assert 450 < progress.best.returns.mean < 500
        assert detector.finding.before_step <= 32 + 230, "near its best at that step"
        assert detector.finding.before_step >= 32 + 200

    def test_a_restarted_learner_knows_the_best(self) -> None:
        progress = begun(noise(22.0, 8.0))
        self.watch(progress, (noise(480.0, 20.0), 200))
        again = Progress.from_json(progress.to_json())
        detector = self.watch(again, (noise(81.0, 30.0), 300))
        assert detector.finding is not None
        assert again.best is not None

    def test_not_for_a_dip(self) -> None:
        """Fifty bad episodes: the mean of a hundred falls below the limit only for a few."""
        progress = begun(noise(22.0, 8.0))
        parts = ((noise(480.0, 20.0), 200), (noise(20.0, 5.0), 60), (noise(480.0, 20.0), 200))
        assert self.watch(progress, *parts).finding is None

    def test_not_for_noise_that_was_never_learnt(self) -> None:
        progress = begun(noise(0.015, 0.1))
        for seed in range(20):
            assert self.watch(progress, (noise(0.015, 0.1, seed), 100)).finding is None

    def test_not_for_a_part_of_what_was_gained(self) -> None:
        progress = begun(noise(22.0, 8.0))
        assert self.watch(progress, (noise(480.0, 20.0), 200), (noise(350.0, 60.0), 300)).finding is None

    def test_let_go_when_it_is_near_its_best_again(self) -> None:
        progress = begun(noise(22.0, 8.0))
        detector = self.watch(progress, (noise(480.0, 20.0), 200), (noise(81.0, 30.0), 200))
        assert detector.finding is not None
        played(progress, noise(300.0, 20.0), 100)
        detector.look(progress)
        assert detector.finding is not None, "above the limit, and far from its best"
        played(progress, noise(470.0, 20.0), 100)
        detector.look(progress)
        assert detector.finding is None
