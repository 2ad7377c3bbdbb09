"""Going back: all learners have the state that the chief reads, and what came after it is put away."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from services.learner.checkpoint import CheckpointStore, read_checkpoint
from services.learner.peers import PeersLostError
from services.learner.progress import Progress
from services.learner.resume import Resumed
from services.learner.rollback import go_back
from shoal.checkpoint import best_of
from tests.unit.learner.any_algorithm import build, spec_of
from tests.unit.learner.test_checkpoint import newest, save_scored
from tests.unit.learner.test_restore import train
from tests.unit.learner.thread_peers import Meeting, ThreadPeers


def resumed(seed: int, version: int) -> Resumed:
    trainer = build("impala", seed=seed)
    train("impala", trainer, range(3))
    progress = Progress(learner_steps=30, policy_version=version, seconds=9.0)
    return Resumed(trainer._algorithm, trainer, progress)


def saved(path: Path, *steps: int) -> CheckpointStore:
    store = CheckpointStore(path / "checkpoints", 5)
    store.prepare()
    for step in steps:
        trainer = build("impala", seed=step)
        progress = Progress(learner_steps=step, policy_version=step, seconds=1.0)
        store.save(trainer.state(), progress.to_json(), spec_of("impala"), "")
    return store


def together(store: CheckpointStore, empty: CheckpointStore, before_step: int) -> list[Progress | None]:
    """Only the chief's directory has checkpoints. All of them end in the same state, or where they were."""
    meeting = Meeting(2)
    ranks = [ThreadPeers(meeting, rank, 2) for rank in range(2)]
    learners = [resumed(seed=rank, version=40) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        going = [
            pool.submit(go_back, peers, store if peers.rank == 0 else empty, at, before_step, 1)
            for peers, at in zip(ranks, learners, strict=True)
        ]
        found = [one.result(30.0) for one in going]
    if found[0] is not None:
        expected = build("impala", seed=found[0].learner_steps).weights()
        for at in learners:
            for name, array in at.trainer.weights().items():
                np.testing.assert_array_equal(array, expected[name])
    return found


def test_all_have_the_state_that_the_chief_read(tmp_path: Path) -> None:
    store = saved(tmp_path, 10, 20, 30)
    found = together(store, saved(tmp_path / "empty"), before_step=25)
    for progress in found:
        assert progress is not None
        assert progress.learner_steps == 20
        assert (progress.policy_version, progress.seconds) == (40, 9.0), "neither goes back"


def test_what_came_after_is_put_away(tmp_path: Path) -> None:
    """By the chief, which alone has it. Not if there is nothing to go back to."""
    store = saved(tmp_path, 10, 20, 24, 30)
    together(store, saved(tmp_path / "empty"), before_step=9)
    assert len(list(store.path.iterdir())) == 4
    # 24 is broken: it is passed over, and 20 is what all go on from.
    (store.path / "000003-step-24" / "state.json").unlink()
    (progress, _) = together(store, saved(tmp_path / "empty"), before_step=25)
    assert progress is not None
    assert progress.learner_steps == 20
    assert sorted(path.name for path in store.path.iterdir()) == ["000001-step-10", "000002-step-20"]


def test_all_start_again_from_there_if_one_is_lost_on_the_way(tmp_path: Path) -> None:
    """What is wrong is gone before anybody waits for another."""
    store = saved(tmp_path, 10, 20, 30)

    class Lonely(ThreadPeers):
        def from_chief(self, data: bytes) -> bytes:
            raise PeersLostError("the other has gone")

    peers = Lonely(Meeting(1), 0, 2)
    with pytest.raises(PeersLostError):
        go_back(peers, store, resumed(seed=0, version=40), 25, 1)
    found = store.newest()
    assert found is not None
    assert found.progress.learner_steps == 20


def test_without_a_checkpoint_all_know(tmp_path: Path) -> None:
    store = saved(tmp_path, 10)
    assert together(store, saved(tmp_path / "empty"), before_step=9) == [None, None]


def gone_wrong(path: Path) -> CheckpointStore:
    """Steps 90 and 95 were saved while something was already wrong; 90 is the best there is."""
    store = CheckpointStore(path, keep=5, keep_best=True)
    store.prepare()
    for step, mean in ((20, 3.0), (50, 2.0), (90, 9.0), (95, 8.0)):
        save_scored(store, step, mean)
    return store


def test_nobody_goes_back_to_what_was_gone_back_from(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints"
    gone_wrong(path)
    store = CheckpointStore(path, keep=3, keep_best=True)
    store.put_away_after(50)
    assert sorted(os.listdir(path)) == ["000001-step-20", "000002-step-50"]
    save_scored(store, 50, mean=2.0)
    best = best_of(path)
    assert best is not None
    assert best.name == "000001-step-20", "the best of those that are left"
    for step in (120, 150, 180):
        save_scored(store, step, mean=1.0)
    found = store.newest(max_step=100)
    assert found is not None
    assert found.progress.learner_steps == 20


def test_a_best_one_from_before_stays_the_best(tmp_path: Path) -> None:
    store = gone_wrong(tmp_path / "checkpoints")
    store.put_away_after(90)
    assert sorted(os.listdir(store.path)) == ["000001-step-20", "000002-step-50", "000003-step-90", "best"]
    best = best_of(store.path)
    assert best is not None
    assert best.name == "000003-step-90"


class Killed(BaseException):
    """Nothing catches it, as nothing catches `kill -9`."""


def kill_at(patched: pytest.MonkeyPatch, moment: int) -> None:
    """Before that change to the disk; where it deletes a directory, in the middle of it."""
    changes = itertools.count()

    def counted(change: Callable[..., None]) -> Callable[..., None]:
        def make(path: Path, *rest: Path) -> None:
            if next(changes) == moment:
                if change is rmtree:
                    os.remove(path / "state.json")
                raise Killed
            change(path, *rest)

        return make

    rmtree = shutil.rmtree
    for owner, name in ((Path, "rename"), (Path, "unlink"), (shutil, "rmtree")):
        patched.setattr(owner, name, counted(getattr(owner, name)))


def test_a_kill_while_they_are_put_away_leaves_what_can_be_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[list[int]] = []
    for moment in itertools.count():
        store = gone_wrong(tmp_path / str(moment))
        with monkeypatch.context() as patched:
            kill_at(patched, moment)
            try:
                store.put_away_after(50)
                break
            except Killed:
                pass
        again = CheckpointStore(store.path, keep=5, keep_best=True)
        again.prepare()
        left.append([read_checkpoint(path).progress.learner_steps for path in sorted(store.path.glob("0*"))])
        assert left[-1] == [20, 50, 90, 95][: max(2, len(left[-1]))], "as it was at some time before"
        assert newest(again).progress.learner_steps == left[-1][-1]
        assert os.path.lexists(store.path / "best") == (best_of(store.path) is not None), "it leads somewhere"
        save_scored(again, 96, mean=1.0)
        assert newest(again).progress.learner_steps == 96
    print(f"left by {len(left)} kills: {left}")
    assert left[0] == [20, 50, 90, 95]
    assert left[-1] == [20, 50]


def test_what_cannot_be_put_away_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on, as it does when nothing can be written."""
    store = gone_wrong(tmp_path / "checkpoints")

    def refuse(path: Path, target: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "rename", refuse)
    store.put_away_after(50)
    assert "cannot put away the checkpoints after learner step 50" in caplog.text
    assert "Read-only file system" in caplog.text
