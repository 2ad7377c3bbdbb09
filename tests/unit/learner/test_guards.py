"""Guards in the training loop, each raised by a run that is made to fail that way."""

from __future__ import annotations

import logging
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
from shoal.records import DiscreteAction, Trajectory
from tests.unit.learner.test_loop import NUM_ENVS, Rig, trajectory

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
        save = CheckpointSaver.save

        def save_and_wait(self: CheckpointSaver, *arguments: Any) -> None:
            save(self, *arguments)
            self.wait()

        monkeypatch.setattr(CheckpointSaver, "save", save_and_wait)
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
