"""Guards in the training loop, each raised by a run that is made to fail that way."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from services.learner.guards import GuardError, Guards, resident_bytes
from services.learner.metrics import LearnerMetrics
from services.learner.saver import CheckpointSaver
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.config.guards import GuardsSection
from shoal.errors import NonFiniteError, UserError
from shoal.records import DiscreteAction, Episode, Trajectory
from tests.unit.learner.test_loop import NUM_ENVS, TRANSITIONS, Rig, trajectory

ALL = (
    *("non_finite", "entropy_collapse", "value_explosion", "gradient_explosion"),
    *("throughput_stall", "memory_growth"),
    *("value_unexplained", "gradients_clipped", "no_progress", "return_collapse"),
)
QUIET = {name: {"action": "off"} for name in ALL[1:]}


def guarded(
    path: Path, *, learner: dict[str, Any] | None = None, algorithm: Any = None, **guards: Any
) -> Rig:
    """Only the given guards look."""
    settings: dict[str, Any] = {"batch_envs": NUM_ENVS, "guards": QUIET | guards} | (learner or {})
    return Rig(path, learner=settings, algorithm=algorithm or {})


def fired(rig: Rig) -> dict[str, float]:
    return {name: count for name in ALL if (count := rig.value("guard_fired_total", guard=name))}


def active(rig: Rig) -> list[str]:
    return [name for name in ALL if rig.value("guard_active", guard=name)]


def greedy(reward: float = 1.0) -> Trajectory:
    """The first action is rewarded, the other one punished."""
    made = trajectory()
    action = made.columns["action"]
    made.columns["reward"][:] = np.where(action == 0, reward, -reward)
    return made


def test_all_are_shown_from_the_start_and_healthy_steps_raise_none(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    result = rig.run(*[trajectory()] * 100)
    assert [rig.value("guard_active", guard=name) for name in ALL] == [0.0] * len(ALL)
    assert [rig.value("guard_fired_total", guard=name) for name in ALL] == [0.0] * len(ALL)
    assert result.guards == {}


@pytest.mark.parametrize("guard", ["gradient_explosion", "value_explosion"])
def test_rewards_that_explode(tmp_path: Path, guard: str, caplog: pytest.LogCaptureFixture) -> None:
    rig = guarded(tmp_path, **{guard: {"action": "warn"}})
    calm, wild = [trajectory()] * 100, [trajectory(reward=1e5)] * 40
    with caplog.at_level(logging.WARNING):
        result = rig.run(*calm, *wild)
    assert result.learner_steps == 140, "a warning does not end the run"
    assert fired(rig) == {guard: 1.0}
    assert active(rig) == [guard]
    assert result.guards == {guard: 1}
    (line,) = [record.getMessage() for record in caplog.records]
    print(line)
    assert line.startswith(f"guard {guard}: the ")
    assert "Lower algorithm.learning_rate" in line


def test_a_policy_that_stops_to_explore(tmp_path: Path) -> None:
    rig = guarded(
        tmp_path,
        algorithm={"entropy_cost": 0.0, "learning_rate": 0.05},
        entropy_collapse={"action": "stop", "for_steps": 20, "fraction": 0.02},
    )
    with pytest.raises(
        GuardError, match=r"guard entropy_collapse: .*Raise algorithm\.entropy_cost"
    ) as caught:
        rig.run(*[greedy()] * 600)
    print(caught.value)
    assert isinstance(caught.value, UserError), "one line and exit code 2"
    assert rig.store.newest() is None, "what has collapsed is not the newest checkpoint"


def test_data_that_stop_coming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop itself notices, while it waits; what was learnt is saved."""
    monkeypatch.setattr("services.learner.loop._WAIT_SLICE_S", 0.001)
    rig = guarded(tmp_path, throughput_stall={"action": "stop", "no_batch_s": 5.0})
    ticks = iter(range(10_000))
    rig.loop._guards._clock = lambda: 2.0 * next(ticks)
    for _ in range(2):
        rig.packer.add(trajectory())
    expected = r"guard throughput_stall: no batch has come for 12 s \(limit 10 s\)"
    with pytest.raises(GuardError, match=expected):
        rig.loop.run()
    rig.summaries.close()
    saved = rig.store.newest()
    assert saved is not None
    assert saved.progress.learner_steps == 2


def test_data_that_are_all_too_old(tmp_path: Path) -> None:
    """Batches come and none is trained on: that is a stall too."""
    rig = guarded(
        tmp_path, learner={"max_policy_lag": 1}, throughput_stall={"action": "stop", "no_batch_s": 5.0}
    )
    ticks = iter(range(10_000))
    rig.loop._guards._clock = lambda: 2.0 * next(ticks)
    batches = [trajectory(version=version) for version in (0, 1, 2)] + [trajectory(version=0)] * 50
    with pytest.raises(GuardError, match=r"guard throughput_stall: no batch has come for 12 s"):
        rig.run(*batches)
    assert rig.value("steps_total") == 3


def test_memory_that_grows(tmp_path: Path) -> None:
    rig = guarded(tmp_path, memory_growth={"action": "stop", "warmup_s": 0.0, "window_s": 60.0})
    ticks = iter(range(10_000))
    rig.loop._guards._clock = lambda: 2.0 * next(ticks)
    rig.loop._guards._memory = lambda: next(ticks) << 24
    with pytest.raises(GuardError, match=r"guard memory_growth: this process's memory grows by \d+ MiB/min"):
        rig.run(*[trajectory()] * 100)
    assert rig.store.newest() is not None


def test_the_memory_of_this_process_is_measured() -> None:
    before = resident_bytes()
    held = np.ones(64 << 20, np.uint8)
    after = resident_bytes()
    assert before is not None
    assert after is not None
    assert 60 << 20 < after - before < 80 << 20
    del held


def test_one_that_comes_and_goes_is_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    registry = CollectorRegistry()
    settings = GuardsSection.model_validate(QUIET | {"throughput_stall": {"no_batch_s": 1.0}})
    algorithm = ImpalaConfig(name="impala")
    guards = Guards(settings, algorithm, DiscreteAction(2), LearnerMetrics(registry).of("red"), lambda: now)
    with caplog.at_level(logging.INFO):
        for _ in range(20):
            for _ in range(40):
                # Many quick ones, so that two seconds are long.
                guards._stall.batch(1, now)
            guards.waited(1)
            now += 2.0
            guards.waited(1)
            now += 4.0
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert guards.fired == {"throughput_stall": 20}
    assert len(warnings) == 2
    assert sum("all is well again" in record.getMessage() for record in caplog.records) == 2
    labels = {"policy": "red", "guard": "throughput_stall"}
    assert registry.get_sample_value("shoal_learner_guard_fired_total", labels) == 20


def save_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each checkpoint is on the disk before the next step."""
    save = CheckpointSaver.save

    def save_and_wait(self: CheckpointSaver, *arguments: Any) -> None:
        save(self, *arguments)
        self.wait()

    monkeypatch.setattr(CheckpointSaver, "save", save_and_wait)


class TestRollback:
    """Back to the checkpoint before it, with versions that still rise."""

    def test_nan(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        rig = guarded(tmp_path, non_finite={"action": "rollback"})
        with caplog.at_level(logging.WARNING):
            result = rig.run(*[trajectory()] * 3, trajectory(reward=3e38), *[trajectory()] * 2)
        # The checkpoint is the one of step 0, made because somebody may want to go back.
        assert result.learner_steps == 2
        assert result.guards == {"non_finite": 1}
        assert rig.value("rollbacks_total") == 1
        assert rig.publisher.versions == sorted(set(rig.publisher.versions))
        first, after = rig.publisher.published[0][1], rig.publisher.published[4][1]
        for name, array in first.items():
            np.testing.assert_array_equal(after[name], array)
        for _, weights in rig.publisher.published:
            assert all(np.isfinite(array).all() for array in weights.values())
        texts = [record.getMessage() for record in caplog.records]
        assert "NaN or infinity at learner step 4" in texts[0]
        assert texts[1] == "guard non_finite: gone back from learner step 3 to 0"

    def test_what_comes_after_is_as_if_it_had_not_happened(self, tmp_path: Path) -> None:
        straight = Rig(tmp_path / "straight")
        straight.run(*[trajectory()] * 4)
        rig = guarded(tmp_path / "broken", non_finite={"action": "rollback"})
        rig.run(trajectory(reward=3e38), *[trajectory()] * 4)
        for name, array in straight.publisher.published[-1][1].items():
            np.testing.assert_array_equal(rig.publisher.published[-1][1][name], array)

    def test_not_for_ever(self, tmp_path: Path) -> None:
        rig = guarded(tmp_path, max_rollbacks=2, non_finite={"action": "rollback"})
        with pytest.raises(
            GuardError, match=r"\(gone back 2 times already: learner\.guards\.max_rollbacks\)"
        ):
            rig.run(*[trajectory(), trajectory(reward=3e38)] * 4)
        assert rig.value("rollbacks_total") == 2

    def test_stop_is_the_default(self, tmp_path: Path) -> None:
        rig = guarded(tmp_path)
        with pytest.raises(NonFiniteError):
            rig.run(trajectory(reward=3e38))
        assert fired(rig) == {"non_finite": 1.0}

    def test_an_explosion_goes_back_to_before_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One of every twenty steps is saved: those of the explosion are passed over."""
        rig = guarded(
            tmp_path,
            learner={"checkpoint_every_s": 40.0, "keep_checkpoints": 1000},
            gradient_explosion={"action": "rollback"},
        )
        ticks = iter(range(100_000))
        rig.loop._clock = lambda: 2.0 * next(ticks)
        save_at_once(monkeypatch)
        calm, wild = [trajectory()] * 100, [trajectory(reward=1e5)] * 32
        gone_back: list[int] = []
        roll_back = rig.loop._roll_back

        def remember(wanted: Any, saver: Any) -> None:
            roll_back(wanted, saver)
            gone_back.append(rig.loop._progress.learner_steps)

        rig.loop._roll_back = remember  # type: ignore[method-assign]
        rig.run(*calm, *wild)
        assert len(gone_back) == 1
        assert 0 < gone_back[0] <= 100, "a checkpoint from before the rewards exploded"

    def test_a_killed_learner_comes_back_where_it_had_gone_back_to(self, tmp_path: Path) -> None:
        rig = guarded(tmp_path, non_finite={"action": "rollback"})
        with pytest.raises(GuardError):
            rig.run(*[trajectory()] * 3, *[trajectory(reward=3e38)] * 4)
        assert rig.store.newest() is not None
        again = guarded(tmp_path, non_finite={"action": "rollback"})
        assert again.run(trajectory()).learner_steps == 1


def test_values_that_explain_nothing_of_large_targets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = guarded(
        tmp_path,
        algorithm={"learning_rate": 1e-9, "normalise_returns": False},
        value_unexplained={"action": "warn", "for_steps": 32},
    )
    with caplog.at_level(logging.WARNING):
        result = rig.run(*[greedy(reward=100.0)] * 100)
    assert fired(rig) == {"value_unexplained": 1.0}
    assert result.guards == {"value_unexplained": 1}
    (line,) = [record.getMessage() for record in caplog.records]
    assert "Set algorithm.normalise_returns=true" in line


def test_gradients_that_are_cut_down_all_the_time_end_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    rig = guarded(
        tmp_path,
        algorithm={"learning_rate": 1e-9, "max_grad_norm": 0.5, "normalise_returns": False},
        gradients_clipped={"action": "stop", "for_steps": 32},
    )
    with pytest.raises(GuardError, match=r"guard gradients_clipped: .*algorithm\.max_grad_norm \(now 0\.5\)"):
        rig.run(*[greedy(reward=100.0)] * 100)
    assert rig.store.newest() is not None, "the weights are as good as before"


def returning(value: float, version: int) -> Trajectory:
    """Ten episodes that began with this version, with returns around this value."""
    episodes = tuple(Episode(value + number, 5, version) for number in range(10))
    return replace(trajectory(version=version), episodes=episodes)


def test_a_return_that_is_not_above_the_untrained_policys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = guarded(tmp_path, no_progress={"after_env_steps": 20 * TRANSITIONS})
    with caplog.at_level(logging.WARNING):
        result = rig.run(*[returning(20.0, version=0)] * 3, *[returning(20.5, version=1)] * 20)
    assert fired(rig) == {"no_progress": 1.0}
    (line,) = [record.getMessage() for record in caplog.records]
    assert "the untrained policy's was 24.5: a gain of " in line
    assert (result.untrained_return, result.untrained_episodes) == (24.5, 30)
    assert result.has_learned is False
    assert (rig.value("untrained_return_mean"), rig.value("untrained_episodes")) == (24.5, 30)


def test_a_return_that_is_above_it_raises_nothing(tmp_path: Path) -> None:
    rig = guarded(tmp_path, no_progress={"after_env_steps": 5 * TRANSITIONS})
    result = rig.run(*[returning(20.0, version=0)] * 3, *[returning(40.0, version=1)] * 20)
    assert fired(rig) == {}
    assert result.has_learned is True
    assert result.best_return == pytest.approx(44.5)
    # Of 200 trained episodes the newer half are the last 100, whose mean return is known.
    assert (result.newest_return, result.newest_episodes) == (None, 0)


def test_a_run_of_few_episodes_says_what_the_newest_are_like(tmp_path: Path) -> None:
    rig = guarded(tmp_path)
    result = rig.run(returning(20.0, version=0), returning(30.0, version=1), returning(60.0, version=2))
    assert result.mean_return == pytest.approx((24.5 + 34.5 + 64.5) / 3)
    assert (result.newest_return, result.newest_episodes) == (64.5, 10)


def test_the_baseline_outlives_the_learner(tmp_path: Path) -> None:
    guarded(tmp_path).run(*[returning(20.0, version=0)] * 3)
    again = guarded(tmp_path)
    # Late episodes of the untrained version still count; those of an actor that came later do not.
    result = again.run(returning(30.0, version=0), returning(90.0, version=4096))
    assert (result.untrained_return, result.untrained_episodes) == (27.0, 40)


def test_versions_of_a_life_without_a_checkpoint_are_not_untrained(tmp_path: Path) -> None:
    """A learner that was killed early begins afresh at version 4096; actors still bring what it trained."""
    Rig(tmp_path).loop._versions.next()
    result = Rig(tmp_path).run(returning(90.0, version=57), returning(20.0, version=4096))
    assert (result.untrained_return, result.untrained_episodes) == (24.5, 10)


def test_a_fallen_return_goes_back_to_a_checkpoint_of_its_best_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_at_once(monkeypatch)
    rig = guarded(
        tmp_path,
        learner={"checkpoint_every_s": 0.001, "keep_checkpoints": 1000},
        return_collapse={"action": "rollback", "for_env_steps": TRANSITIONS},
    )
    rig.loop._clock = iter(range(100_000)).__next__
    gone_back: list[int] = []
    roll_back = rig.loop._roll_back

    def remember(wanted: Any, saver: Any) -> None:
        roll_back(wanted, saver)
        gone_back.append(rig.loop._progress.learner_steps)

    rig.loop._roll_back = remember  # type: ignore[method-assign]
    good, bad = [returning(500.0, version=1)] * 20, [returning(60.0, version=2)] * 12
    rig.run(*[returning(20.0, version=0)] * 3, *good, *bad)
    assert 13 <= gone_back[0] <= 28, "the return was near its best"
    assert rig.value("rollbacks_total") == len(gone_back)
