"""The training loop on batches made up here: publishing, saving, resuming, stopping, and what stops it."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from services.learner.batches import BatchLayout, BatchSlot
from services.learner.checkpoint import CheckpointStore
from services.learner.loop import TrainingLoop
from services.learner.metrics import LearnerMetrics
from services.learner.parts import Parts
from services.learner.peers import Alone, Peers
from services.learner.priorities import PriorityReturn
from services.learner.progress import Progress
from services.learner.publisher import WeightsPublisher
from services.learner.result import RunResult
from services.learner.resume import build_or_resume
from services.learner.ring import BatchRing, Packer, RingClosed
from services.learner.saver import CheckpointSaver
from services.learner.summaries import Summaries
from services.learner.versions import VersionCounter
from shoal.clients.replay_draw import ItemRefs
from shoal.config import Config
from shoal.config.policies import policy_places
from shoal.errors import CheckpointError, NonFiniteError
from shoal.records import ArraySpec, DiscreteAction, EnvSpec, Episode, Trajectory

SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (3,)),), DiscreteAction(2))
LENGTH, NUM_ENVS = 4, 6


def trajectory(reward: float = 1.0, episode_return: float = 7.0, version: int = 0) -> Trajectory:
    leading = (LENGTH + 1, NUM_ENVS)
    rng = np.random.default_rng(1)
    first = np.zeros(leading, bool)
    first[2, 0] = True
    return Trajectory(
        {
            "observation": rng.normal(size=(*leading, 3)).astype(np.float32),
            "action": rng.integers(0, 2, leading),
            "reward": np.full(leading, reward, np.float32),
            "terminated": np.zeros(leading, bool),
            "truncated": np.zeros(leading, bool),
            "first": first,
            "policy_version": np.full(leading, version, dtype=np.int64),
            "log_prob": np.full(leading, -0.69, np.float32),
        },
        (Episode(episode_return, 5),) * 10,
    )


TRANSITIONS = LENGTH * NUM_ENVS - 1


class Recorder:
    """A publisher that keeps everything. `at_first` is called before anything is trained."""

    def __init__(self) -> None:
        self.published: list[tuple[int, dict[str, np.ndarray]]] = []
        self.untrained: list[int] = []
        self.at_first: Callable[[], None] = lambda: None

    def publish(self, version: int, weights: dict[str, np.ndarray], untrained: bool = False) -> None:
        if not self.published:
            self.at_first()
        if untrained:
            self.untrained.append(version)
        self.published.append((version, weights))

    @property
    def versions(self) -> list[int]:
        return [version for version, _ in self.published]


class Rig:
    """One life of a learner over a run directory."""

    def __init__(
        self, run_dir: Path, spec: EnvSpec = SPEC, peers: Peers | None = None, **changes: dict[str, Any]
    ) -> None:
        peers = peers or Alone()
        tree: dict[str, Any] = {
            "run": {"dir": str(run_dir)},
            "actor": {"unroll_length": LENGTH},
            "learner": {"batch_envs": NUM_ENVS},
            # A step per batch, with a step size that stays, and no statistics besides the weights.
            "policy": {"normalise_observations": False},
            "algorithm": {
                "name": "impala",
                "learning_rate_schedule": "constant",
                "normalise_returns": False,
            },
        }
        for section, values in changes.items():
            tree[section] = tree.get(section, {}) | values
        self.config = Config.model_validate(tree)
        (place,) = policy_places(self.config)
        self.publisher = Recorder()
        self.store = CheckpointStore(place.dir / "checkpoints", self.config.learner.keep_checkpoints)
        self.store.prepare()
        self.registry = CollectorRegistry()
        metrics = LearnerMetrics(self.registry).of(place.name)
        versions = VersionCounter(place.dir / "policy_version")
        parts = Parts(place, cast(WeightsPublisher, self.publisher), versions, self.store, metrics)
        cpu = torch.device("cpu")
        resumed = build_or_resume(self.config, parts, spec, cpu, peers)
        algorithm = resumed.algorithm
        layout = BatchLayout(spec, algorithm.policy.state, algorithm.behaviour, LENGTH, NUM_ENVS)
        self.ring = BatchRing([BatchSlot(layout, cpu) for _ in range(2)])
        self.packer = Packer(self.ring, metrics.phases)
        self.summaries = Summaries(place.dir / "tensorboard")
        self.now = 100.0
        self.loop = TrainingLoop(
            self.config,
            spec,
            resumed,
            self.ring,
            parts,
            self.summaries,
            clock=lambda: self.now,
            peers=peers,
        )
        self.resumed = resumed

    def run(self, *batches: Trajectory) -> RunResult:
        """Feed batches, then stop if the loop has not stopped by itself."""
        with ThreadPoolExecutor(1) as pool:
            feeding = pool.submit(self._feed, batches)
            try:
                return self.loop.run()
            finally:
                self.loop.stop()
                feeding.result(20.0)
                self.summaries.close()

    def _feed(self, batches: tuple[Trajectory, ...]) -> None:
        try:
            for batch in batches:
                self.packer.add(batch)
            # All but the two in the ring have been trained on; wait until those are too.
            for _ in range(2):
                self.ring.take_free()
            self.loop.stop()
        except RingClosed:
            pass

    def value(self, metric: str, /, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"shoal_learner_{metric}", {"policy": "policy", **labels})


def test_steps_publishes_and_ends_with_a_checkpoint(tmp_path: Path) -> None:
    rig = Rig(tmp_path, stop={"steps": 5 * TRANSITIONS})
    result = rig.run(*[trajectory()] * 10)
    assert (result.reason, result.policy) == ("steps", "policy")
    assert (result.learner_steps, result.env_steps) == (5, 5 * TRANSITIONS)
    assert result.mean_return == 7.0
    # Version 0 before the first step, then one after each.
    assert rig.publisher.versions == [0, 1, 2, 3, 4, 5]
    assert result.policy_version == 5
    saved = rig.store.newest()
    assert saved is not None
    assert saved.progress.learner_steps == 5
    last = rig.publisher.published[-1][1]
    for name, array in last.items():
        np.testing.assert_array_equal(saved.tensors[f"policy/{name}"], array)
    assert rig.value("steps_total") == 5
    assert rig.value("env_steps_total") == 5 * TRANSITIONS
    assert rig.value("episodes_total") == 50
    assert rig.value("episode_return_mean") == 7.0
    assert rig.value("checkpoints_total") == 1
    assert rig.value("policy_version") == 5
    assert rig.value("algorithm_value", name="entropy") is not None
    for phase in ("wait", "copy", "train", "publish"):
        assert (rig.value("phase_seconds_total", phase=phase) or 0) > 0


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_batch_of_agents_that_were_away_is_no_step_but_a_version_for_who_waits(
    tmp_path: Path, synchronous: bool
) -> None:
    away = trajectory()
    away.columns["first"][:] = True
    algorithm = {"name": "ppo", "epochs": 1, "minibatches": 1, "synchronous": synchronous}
    rig = Rig(tmp_path, algorithm=algorithm)
    # Of the version that its actors would have waited for.
    result = rig.run(away, trajectory(version=int(synchronous)))
    assert (result.learner_steps, result.env_steps) == (1, TRANSITIONS)
    assert rig.publisher.versions == ([0, 1, 2] if synchronous else [0, 1])
    assert rig.value("stale_batches_total") == 0


def test_a_policy_is_trained_from_the_state_before_each_unroll(tmp_path: Path) -> None:
    """Three steps on the same rows: what they make of the weights depends on what was remembered."""
    policy = {"recurrent": "lstm", "recurrent_size": 8, "frame_stack": 3}

    def trained(name: str, core: float, frames: float) -> dict[str, np.ndarray]:
        unroll = trajectory()
        for state in ("recurrent.h", "recurrent.c"):
            unroll.columns[f"initial.{state}"] = np.full((1, NUM_ENVS, 8), core, np.float32)
        unroll.columns["initial.frames.observation"] = np.full((1, NUM_ENVS, 2, 3), frames, np.float32)
        rig = Rig(tmp_path / name, policy=policy)
        assert rig.run(*[unroll] * 3).learner_steps == 3
        return rig.publisher.published[-1][1]

    weights = trained("a", 0.0, 0.0)
    head = "policy_head.weight"
    np.testing.assert_array_equal(trained("again", 0.0, 0.0)[head], weights[head])
    assert not np.array_equal(trained("core", 1.0, 0.0)[head], weights[head])
    assert not np.array_equal(trained("frames", 0.0, 1.0)[head], weights[head])


def test_the_learning_rate_falls_over_the_run_and_over_restarts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    algorithm = {
        "learning_rate": 1e-2,
        "learning_rate_schedule": "linear",
        "learning_rate_scaling": "linear",
        "advantage_noise": 0.0,
        "reference_batch": 2 * LENGTH * NUM_ENVS,
    }
    stop = {"steps": 4 * TRANSITIONS}
    rig = Rig(tmp_path, algorithm=algorithm, stop=stop)
    with caplog.at_level(logging.INFO):
        rig.run(trajectory())
    assert "effective batch 24 steps (6 envs x 4 steps), learning rate 0.01 x 0.50" in caplog.text
    assert rig.value("effective_batch_steps") == 24
    assert rig.value("learning_rate") == pytest.approx(5e-3)
    rig = Rig(tmp_path, algorithm=algorithm, stop=stop)
    rig.run(*[trajectory()] * 2)
    assert rig.value("learning_rate") == pytest.approx(5e-3 * (1.0 - 0.9 * 0.5))


def test_statistics_go_on_where_a_checkpoint_has_them(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "policy": {"normalise_observations": True},
        "algorithm": {"normalise_returns": True},
    }
    whole, first = Rig(tmp_path / "whole", **settings), Rig(tmp_path / "parts", **settings)
    whole.run(*[trajectory()] * 4)
    first.run(*[trajectory()] * 2)
    second = Rig(tmp_path / "parts", **settings)
    second.run(*[trajectory()] * 2)
    expected, found = whole.store.newest(), second.store.newest()
    assert expected is not None
    assert found is not None
    assert found.tensors["policy/normaliser.count"] == 4 * TRANSITIONS
    assert found.tensors["algorithm/rewards.returns.count"] == 4 * NUM_ENVS
    for name, array in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], array, err_msg=name)


def test_publish_every(tmp_path: Path) -> None:
    rig = Rig(tmp_path, stop={"steps": 7 * TRANSITIONS}, learner={"batch_envs": NUM_ENVS, "publish_every": 3})
    rig.run(*[trajectory()] * 8)
    assert rig.publisher.versions == [0, 1, 2]


def test_until_return_needs_a_hundred_episodes(tmp_path: Path) -> None:
    """Ten episodes come with each batch: the tenth batch is the first with a hundred."""
    result = Rig(tmp_path, stop={"until_return": 6.5}).run(*[trajectory()] * 15)
    assert (result.reason, result.learner_steps) == ("until_return", 10)


def test_stop_saves_and_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    result = rig.run(*[trajectory()] * 3)
    assert (result.reason, result.learner_steps) == ("stopped", 3)
    saved = rig.store.newest()
    assert saved is not None
    assert saved.progress.learner_steps == 3


def test_stop_while_starved(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    threading.Timer(0.0, rig.loop.stop).start()
    assert rig.loop.run().learner_steps == 0


def test_lag_is_measured_against_the_published_version(tmp_path: Path) -> None:
    rig = Rig(tmp_path, stop={"steps": 4 * TRANSITIONS})
    rig.run(*[trajectory(version=0)] * 4)
    # Trained when versions 0, 1, 2 and 3 were the newest.
    assert rig.value("policy_lag_max") == 3
    assert rig.value("policy_lag_versions_sum") == TRANSITIONS * (0 + 1 + 2 + 3)
    assert rig.value("policy_lag_versions_count") == 4 * TRANSITIONS


def test_resume_goes_on_where_it_was(tmp_path: Path) -> None:
    """Two lives and one straight run end with the same weights; versions rise over both lives."""
    straight = Rig(tmp_path / "straight")
    straight.run(*[trajectory()] * 6)
    first = Rig(tmp_path / "broken")
    first.run(*[trajectory()] * 3)
    second = Rig(tmp_path / "broken")
    result = second.run(*[trajectory()] * 3)
    assert result.learner_steps == 6
    assert result.env_steps == 6 * TRANSITIONS
    assert min(second.publisher.versions) > max(first.publisher.versions)
    for name, array in straight.publisher.published[-1][1].items():
        np.testing.assert_array_equal(second.publisher.published[-1][1][name], array)
    # What is published first is what was saved last.
    for name, array in first.publisher.published[-1][1].items():
        np.testing.assert_array_equal(second.publisher.published[0][1][name], array)


def test_a_run_that_had_reached_its_goal_ends_at_once(tmp_path: Path) -> None:
    Rig(tmp_path, stop={"steps": TRANSITIONS}).run(trajectory())
    again = Rig(tmp_path, stop={"steps": TRANSITIONS}).run()
    assert (again.reason, again.learner_steps) == ("steps", 1)


def test_a_run_whose_checkpoints_are_gone_starts_afresh_with_higher_versions(tmp_path: Path) -> None:
    first = Rig(tmp_path)
    first.run(*[trajectory()] * 3)
    shutil.rmtree(first.store.path)
    second = Rig(tmp_path)
    assert second.run(trajectory()).learner_steps == 1
    assert min(second.publisher.versions) > max(first.publisher.versions)


def test_versions_rise_above_the_checkpoint_though_the_counter_file_is_gone(tmp_path: Path) -> None:
    first = Rig(tmp_path)
    first.run(*[trajectory()] * 3)
    (tmp_path / "policy_version").unlink()
    second = Rig(tmp_path)
    second.run()
    assert min(second.publisher.versions) > max(first.publisher.versions)


def test_a_checkpoint_of_another_spec_is_refused_with_both(tmp_path: Path) -> None:
    Rig(tmp_path).run(trajectory())
    other = EnvSpec("Other-v0", (ArraySpec("observation", "float32", (3,)),), DiscreteAction(3))
    with pytest.raises(CheckpointError) as caught:
        Rig(tmp_path, spec=other)
    assert SPEC.describe() in str(caught.value)
    assert other.describe() in str(caught.value)


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    Rig(tmp_path).run(trajectory())
    with pytest.raises(CheckpointError, match=r"policy\.hidden_sizes was \[64, 64\] and is \[32\] now"):
        Rig(tmp_path, policy={"hidden_sizes": [32]})


def test_a_checkpoint_of_another_activation_is_refused(tmp_path: Path) -> None:
    """The weights have the same shapes: only the configuration tells."""
    Rig(tmp_path).run(trajectory())
    with pytest.raises(
        CheckpointError, match=r"policy\.activation was tanh and is relu now: use another run\.dir"
    ):
        Rig(tmp_path, policy={"activation": "relu"})


def test_weights_that_do_not_fit_their_own_configuration_are_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.run(trajectory())
    saved = rig.store.newest()
    assert saved is not None
    del saved.tensors["policy/value_head.bias"]
    rig.store.save(saved.tensors, saved.progress.to_json(), SPEC, saved.config_yaml)
    with pytest.raises(
        CheckpointError, match=r"holds another policy .*value_head\.bias is missing: use another run"
    ):
        Rig(tmp_path)


def test_a_loss_that_is_not_finite_stops_and_nothing_of_it_gets_out(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with pytest.raises(NonFiniteError, match="at learner step 3"):
        rig.run(trajectory(), trajectory(), trajectory(reward=3e38), trajectory())
    assert rig.publisher.versions == [0, 1, 2]
    for _, weights in rig.publisher.published:
        assert all(np.isfinite(array).all() for array in weights.values())
    assert rig.store.newest() is None


def test_checkpoints_on_the_interval(tmp_path: Path) -> None:
    """The clock jumps by an interval with every reading: each step asks for a checkpoint, if none is busy."""
    rig = Rig(tmp_path, learner={"batch_envs": NUM_ENVS, "checkpoint_every_s": 30.0})
    ticks = iter(range(10_000))
    rig.loop._clock = lambda: 31.0 * next(ticks)
    rig.run(*[trajectory()] * 4)
    assert (rig.value("checkpoints_total") or 0) >= 2
    assert rig.value("checkpoints_failed_total") == 0
    assert (rig.value("last_checkpoint_timestamp_seconds") or 0) > 0


def test_a_disk_that_fails_does_not_stop_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The directory goes away while the second life trains; the first one had saved three steps."""
    Rig(tmp_path).run(*[trajectory()] * 3)
    rig = Rig(tmp_path, stop={"steps": 6 * TRANSITIONS})
    rig.publisher.at_first = lambda: shutil.rmtree(rig.store.path)
    ticks = iter(range(10_000))
    rig.loop._clock = lambda: 31.0 * next(ticks)
    with caplog.at_level(logging.ERROR):
        result = rig.run(*[trajectory()] * 4)
    assert (result.reason, result.learner_steps) == ("steps", 6)
    *earlier, last = [record.getMessage() for record in caplog.records]
    assert rig.value("checkpoints_failed_total") == len(earlier) + 1
    assert earlier
    reason = "No such file or directory"
    assert all(
        text.endswith(f"{reason}; training goes on, the next interval tries again") for text in earlier
    )
    assert "the checkpoint of learner step 6" in last
    assert last.endswith(f"{reason}; what was learnt after step 3 is lost")


def test_a_failure_that_is_not_the_disks_is_logged_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """safetensors refuses the arrays: an error of its own, in a thread whose result nobody reads."""
    metrics = LearnerMetrics(registry := CollectorRegistry()).of("red")
    store = CheckpointStore(tmp_path, 3)
    saver = CheckpointSaver(store, SPEC, "", metrics, saved_step=0)
    good, bad = {"a": np.zeros(3)}, {"a": np.array(["text"])}
    saver.save(good, Progress(learner_steps=5).to_json())
    saver.save(bad, Progress(learner_steps=7).to_json(), is_last=True)
    with caplog.at_level(logging.ERROR):
        saver.close()
    assert registry.get_sample_value("shoal_learner_checkpoints_failed_total", {"policy": "red"}) == 1
    (record,) = caplog.records
    assert record.exc_info
    assert record.getMessage().endswith("; what was learnt after step 5 is lost")
    newest = store.newest()
    assert newest is not None
    assert newest.progress.learner_steps == 5


def test_priorities_go_back_for_the_items_of_each_batch(tmp_path: Path) -> None:
    """An algorithm that makes them: the rewards of the first row."""
    rig = Rig(tmp_path)
    trainer = rig.loop._trainer
    step = trainer.step
    trainer.step = lambda batch, factor: replace(step(batch), priority_B=batch.reward_SB[0].abs())  # type: ignore[method-assign]
    sent: list[tuple[list[int], list[float]]] = []

    class Back:
        def after_step(self, refs: ItemRefs, priority_B: torch.Tensor) -> None:
            sent.append((refs.keys.tolist(), priority_B.tolist()))

    rig.loop._priorities = cast(PriorityReturn, Back())
    for number in (1, 2):
        slot = rig.ring.take_free()
        slot.fill(trajectory(reward=number), 0, NUM_ENVS)
        if number == 2:
            slot.refs = ItemRefs((), np.zeros(NUM_ENVS, np.int64), np.arange(NUM_ENVS, dtype=np.uint64))
        rig.ring.put_ready(slot)
    rig.run()
    assert sent == [([0, 1, 2, 3, 4, 5], [2.0] * NUM_ENVS)]


@pytest.mark.parametrize(
    ("algorithm", "warmup", "untrained"), [("apex", True, [0]), ("apex", False, []), ("impala", True, [])]
)
def test_the_first_weights_say_that_actions_are_to_be_random(
    tmp_path: Path, algorithm: str, warmup: bool, untrained: list[int]
) -> None:
    """Until the first step: a second life goes on without."""
    changes = {"algorithm": {"name": algorithm, "n_step": 1} if algorithm == "apex" else {}}
    rig = Rig(tmp_path, exploration={"warmup": warmup}, **changes)
    assert rig.run(*[trajectory()] * 2).learner_steps == 2
    assert rig.publisher.untrained == untrained
    again = Rig(tmp_path, exploration={"warmup": warmup}, **changes)
    again.run()
    assert again.publisher.untrained == []


@pytest.mark.parametrize(("algorithm", "learnt"), [("apex", [0, 1, 4]), ("impala", [0, 4])])
def test_random_actions_end_with_the_first_step(tmp_path: Path, algorithm: str, learnt: list[int]) -> None:
    """Not with the fourth, after which the next version is due."""
    changes = {"algorithm": {"name": algorithm, "n_step": 1} if algorithm == "apex" else {}}
    rig = Rig(tmp_path, learner={"publish_every": 4}, **changes)
    steps: list[int] = []
    publish = rig.publisher.publish

    def remember(version: int, weights: dict[str, np.ndarray], untrained: bool = False) -> None:
        steps.append(rig.loop._progress.learner_steps)
        publish(version, weights, untrained)

    rig.publisher.publish = remember  # type: ignore[method-assign]
    rig.run(*[trajectory()] * 6)
    assert steps == learnt


def test_a_life_without_a_step_writes_no_checkpoint(tmp_path: Path) -> None:
    """Else resuming a finished run a few times would leave copies of its end only."""
    Rig(tmp_path, learner={"checkpoint_every_s": 1e-3}).run(*[trajectory()] * 3)
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    for _ in range(3):
        assert Rig(tmp_path, stop={"steps": 1}).run().reason == "steps"
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before
