"""Two training loops that train together: what each does, what only the chief does, and how they end."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.learner.peers import PeersLostError
from services.learner.result import RunResult
from services.learner.start import await_spec, begin_alike
from shoal.errors import NonFiniteError
from shoal.records import EnvSpec, Trajectory
from tests.unit.learner.test_loop import LENGTH, NUM_ENVS, SPEC, TRANSITIONS, Rig, trajectory
from tests.unit.learner.thread_peers import PATIENCE_S, Meeting, ThreadPeers


class Pair:
    """Two learners, each with a run directory; that of the second is to stay empty."""

    def __init__(self, path: Path, **changes: Any) -> None:
        self.meeting = Meeting(2)
        self.peers = [ThreadPeers(self.meeting, rank, 2) for rank in range(2)]
        self.rigs = [Rig(path / str(peers.rank), peers=peers, **changes) for peers in self.peers]

    def run(self, *batches: Sequence[Trajectory]) -> list[Future[RunResult]]:
        """Feeds each its batches; both loops have ended."""
        with ThreadPoolExecutor(2) as pool:
            running = [pool.submit(self._run, rank, given) for rank, given in enumerate(batches)]
        return running

    def _run(self, rank: int, batches: Sequence[Trajectory]) -> RunResult:
        try:
            return self.rigs[rank].run(*batches)
        except BaseException:
            # As the end of a process does.
            self.meeting.barrier.abort()
            raise

    def assert_alike(self) -> None:
        first, second = (rig.resumed.trainer.state() for rig in self.rigs)
        for name, array in first.items():
            np.testing.assert_array_equal(second[name], array, err_msg=name)


def test_both_train_and_the_chief_publishes_and_saves(tmp_path: Path) -> None:
    pair = Pair(tmp_path, stop={"steps": 3 * 2 * TRANSITIONS})
    given = [[trajectory(reward=1.0)] * 4, [trajectory(reward=-1.0, episode_return=9.0)] * 4]
    results = [done.result() for done in pair.run(*given)]
    for result in results:
        assert (result.reason, result.learner_steps) == ("steps", 3)
        assert result.env_steps == result.trained_steps == 3 * 2 * TRANSITIONS
        assert result.mean_return == 8.0, "of the episodes of both"
    chief, other = pair.rigs
    assert chief.publisher.versions == [0, 1, 2, 3]
    assert other.publisher.versions == []
    assert chief.store.newest() is not None
    assert other.store.newest() is None
    for rig in pair.rigs:
        assert rig.value("env_steps_total") == 3 * TRANSITIONS, "its own share"
        assert rig.value("run_env_steps") == 3 * 2 * TRANSITIONS
    assert other.value("policy_version") == 2, "as it was when the last step was agreed on"
    pair.assert_alike()


def test_both_know_what_the_untrained_policy_returned(tmp_path: Path) -> None:
    """The chief alone publishes; guards that go back must see the same on all."""
    pair = Pair(tmp_path, stop={"steps": 3 * 2 * TRANSITIONS})
    given = [[begun(7.0, version) for version in (0, 0, 1)], [begun(9.0, version) for version in (0, 1, 1)]]
    for done in pair.run(*given):
        result = done.result()
        assert (result.untrained_episodes, result.untrained_return) == (30, pytest.approx(23 / 3))


def begun(episode_return: float, version: int) -> Trajectory:
    made = trajectory(episode_return=episode_return)
    return replace(made, episodes=tuple(replace(each, first_version=version) for each in made.episodes))


def test_all_leave_out_what_is_older_before_anybody_has_the_next_version(tmp_path: Path) -> None:
    """Else what it brings could meet an older unroll in the batch of a learner that does not know yet."""
    algorithm = {"name": "ppo", "minibatches": 2}
    pair = Pair(tmp_path, algorithm=algorithm, actor={"unroll_length": LENGTH, "envs": 2 * NUM_ENVS})
    chief, other = pair.rigs
    known: list[tuple[int, int, int]] = []
    publish = chief.publisher.publish

    def look_and_publish(version: int, weights: dict[str, np.ndarray], untrained: bool = False) -> None:
        known.append((version, chief.ring.min_version, other.ring.min_version))
        publish(version, weights, untrained)

    chief.publisher.publish = look_and_publish  # type: ignore[method-assign]
    results = [done.result() for done in pair.run(*[[trajectory(version=v) for v in range(3)]] * 2)]
    assert [result.learner_steps for result in results] == [3, 3]
    assert known == [(version, version, version) for version in range(4)]
    pair.assert_alike()


def test_one_whose_share_is_too_old_adds_nothing(tmp_path: Path) -> None:
    """Two learners, all data of the second being too old, make the step that the first makes alone."""
    learner = {"batch_envs": NUM_ENVS, "max_policy_lag": 3}
    pair = Pair(tmp_path / "pair", learner=learner)
    first, second = pair.run([trajectory()], [trajectory(version=-9)])
    assert first.result().trained_steps == second.result().trained_steps == TRANSITIONS
    alone = Rig(tmp_path / "alone", learner=learner)
    alone.run(trajectory())
    for name, array in alone.resumed.trainer.weights().items():
        found = pair.rigs[0].resumed.trainer.weights()[name]
        np.testing.assert_allclose(found, array, rtol=1e-6, atol=1e-7, err_msg=name)
    assert pair.rigs[0].value("loss") == pytest.approx(alone.value("loss"), rel=1e-6)


def test_when_one_is_to_stop_both_do(tmp_path: Path) -> None:
    """The second has batches left; the first is stopped after two."""
    pair = Pair(tmp_path)
    first, second = pair.run([trajectory()] * 2, [trajectory()] * 4)
    assert (first.result().reason, second.result().reason) == ("stopped", "stopped")
    assert first.result().learner_steps == second.result().learner_steps == 2
    pair.assert_alike()


def test_both_go_back_to_the_chiefs_checkpoint(tmp_path: Path) -> None:
    """The second alone has rewards out of range; its own directory holds no checkpoint."""
    guards = {"non_finite": {"action": "rollback"}}
    pair = Pair(tmp_path, learner={"batch_envs": 6, "guards": guards, "checkpoint_every_s": 1000})
    good, bad = trajectory(), trajectory(reward=3e38)
    results = [done.result() for done in pair.run([good] * 4, [good, good, bad, good])]
    # Back to the beginning from step 2, then one more.
    assert [result.learner_steps for result in results] == [1, 1]
    assert [rig.value("rollbacks_total") for rig in pair.rigs] == [1, 1]
    versions = pair.rigs[0].publisher.versions
    assert versions == sorted(set(versions))
    pair.assert_alike()


def test_what_is_not_finite_on_one_ends_both(tmp_path: Path) -> None:
    for done in Pair(tmp_path).run([trajectory()] * 2, [trajectory(), trajectory(reward=3e38)]):
        assert isinstance(done.exception(), NonFiniteError)


def test_a_learner_does_not_go_on_alone(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.meeting.barrier.abort()
    for done in pair.run([trajectory()], [trajectory()]):
        assert isinstance(done.exception(), PeersLostError)


def test_a_new_learner_goes_on_from_where_the_chief_does(tmp_path: Path) -> None:
    """The chief has a checkpoint; the other has never been."""
    Pair(tmp_path, stop={"steps": 4 * TRANSITIONS}).run([trajectory()] * 3, [trajectory()] * 3)
    pair = Pair(tmp_path)
    assert [rig.resumed.trainer.num_steps for rig in pair.rigs] == [2, 0]
    with ThreadPoolExecutor(2) as pool:
        going = [
            pool.submit(begin_alike, peers, rig.resumed, 1)
            for peers, rig in zip(pair.peers, pair.rigs, strict=True)
        ]
        progress = [done.result(PATIENCE_S).progress for done in going]
    assert progress[0].to_json() == progress[1].to_json()
    assert (progress[1].learner_steps, progress[1].env_steps) == (2, 4 * TRANSITIONS)
    for name, array in pair.rigs[0].resumed.trainer.state().items():
        if name != "rng/cpu":
            np.testing.assert_array_equal(pair.rigs[1].resumed.trainer.state()[name], array, err_msg=name)


@pytest.mark.parametrize("is_ending", [False, True])
def test_the_spec_comes_from_the_chief(is_ending: bool) -> None:
    """While it waits for the spec the other can still end both."""
    meeting = Meeting(2)
    chief, other = (ThreadPeers(meeting, rank, 2) for rank in range(2))
    coming: Future[EnvSpec] = Future()
    nothing: Future[EnvSpec] = Future()
    with ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(await_spec, chief, coming, lambda: False),
            pool.submit(await_spec, other, nothing, lambda: is_ending),
        ]
        if not is_ending:
            with pytest.raises(StillWaiting):
                waiting[1].result(0.05)
            coming.set_result(SPEC)
        found = [done.result(PATIENCE_S) for done in waiting]
    assert found == ([None, None] if is_ending else [SPEC, SPEC])
