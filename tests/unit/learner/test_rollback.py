"""Several learners go back together: the chief reads the checkpoint, all have its state."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from services.learner.checkpoint import CheckpointStore
from services.learner.progress import Progress
from services.learner.resume import Resumed
from services.learner.rollback import go_back
from tests.unit.learner.any_algorithm import build, spec_of
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


def test_without_a_checkpoint_all_know(tmp_path: Path) -> None:
    store = saved(tmp_path, 10)
    assert together(store, saved(tmp_path / "empty"), before_step=9) == [None, None]
