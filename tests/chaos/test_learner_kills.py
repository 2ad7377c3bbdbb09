"""`kill -9` of the learner at random moments of a run: it goes on from its newest checkpoint, every time.

The test plays actors and inference: it knows every version that was published, and what is on the disk.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from services.learner.checkpoint import Checkpoint, CheckpointStore
from services.learner.trainer import Trainer
from shoal.algorithms.algorithm import build_algorithm
from shoal.checkpoint import numbered
from shoal.config.load import build_config
from shoal.policy.network import build_policy
from tests.service.learner_rig import Rig, pumping, rig

KILLS = int(os.environ.get("CHAOS_LEARNER_KILLS", "20"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
CHECKPOINT_EVERY_S = 0.3
# From the copy of the state to the name on the disk, on a busy machine.
WRITE_S = 2.0
# The promise, which the median of the lives must keep; the slowest has a margin for a machine that is busy
# with other things.
MAX_BACK_S, BUSY_BACK_S = 15.0, 60.0

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Life:
    """One life of the learner, from its start to the kill."""

    # To the first new step.
    back_s: float
    trained_steps: int
    lost_steps: int
    lost_s: float


class Lives:
    """Starts and kills the learner, and looks at what is left."""

    def __init__(self, made: Rig) -> None:
        self._made = made
        self.path = made.run_dir / "checkpoints"
        self.store = CheckpointStore(self.path, 3)

    async def one(self, moment_s: float) -> Life:
        made, known = self._made, self._made.only.current
        began = time.monotonic()
        await made.learner.start(f"learner.checkpoint_every_s={CHECKPOINT_EVERY_S}")
        first = await made.version_above(known)
        await made.version_above(first)
        back_s, first_step_at = time.monotonic() - began, time.time()
        await asyncio.sleep(moment_s)
        assert made.learner.process is not None
        made.learner.process.kill()
        killed_at = time.time()
        text = await made.learner.errors()
        assert "broken checkpoint" not in text, "a torn checkpoint was found"
        assert "Traceback" not in text, text
        last = made.only.current
        saved, saved_at = self._newest(first)
        return Life(
            back_s=back_s,
            trained_steps=last - first,
            # A version is a step.
            lost_steps=max(0, last - max(saved, first)),
            lost_s=killed_at - max(saved_at, first_step_at),
        )

    def _newest(self, first: int) -> tuple[int, float]:
        """Version and time of the newest checkpoint; what it holds is restored to the bit."""
        if not numbered(self.path):
            return first, 0.0
        newest = self.store.newest()
        assert newest is not None
        assert_restored(newest)
        return newest.progress.policy_version, numbered(self.path)[-1][1].stat().st_mtime


def assert_restored(checkpoint: Checkpoint) -> None:
    """A trainer with other weights that loads it has that state and no other."""
    policy = {"hidden_sizes": [16], "normalise_observations": False}
    config = build_config({"algorithm": {"name": "impala", "normalise_returns": False}, "policy": policy})
    torch.manual_seed(99)
    algorithm = build_algorithm(config.algorithm, build_policy(config.policy, checkpoint.env_spec))
    trainer = Trainer(algorithm, config.algorithm.max_grad_norm)
    trainer.load_state(checkpoint.tensors)
    assert_same(trainer.state(), checkpoint.tensors)


def assert_same(state: dict[str, np.ndarray], tensors: dict[str, np.ndarray]) -> None:
    assert state.keys() == tensors.keys()
    for name, array in tensors.items():
        assert state[name].tobytes() == array.tobytes(), f"{name} differs"


def test_a_learner_that_is_killed_again_and_again(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    # The first life may be one without a checkpoint.
    moments = [rng.uniform(0.0, 1.0) for _ in range(KILLS)]

    async def body() -> None:
        async with rig(tmp_path / "run") as made:
            lives = Lives(made)
            async with pumping(made):
                found = [await lives.one(moment) for moment in moments]
            before = lives.store.newest()
            assert before is not None
            # One more life, which has nothing left to do: it saves what it has loaded.
            await made.learner.start("stop.steps=1")
            assert await made.exited(made.learner) == 0
            after = lives.store.newest()
            assert after is not None
            assert after.progress.learner_steps == before.progress.learner_steps
            assert_same(after.tensors, before.tensors)
            report(found, made.versions)

    asyncio.run(asyncio.wait_for(body(), 590.0))


def report(found: list[Life], versions: list[int]) -> None:
    back = sorted(life.back_s for life in found)
    trained, lost = sum(life.trained_steps for life in found), max(life.lost_steps for life in found)
    lost_s = max(life.lost_s for life in found)
    print(
        f"seed {SEED}: {len(found)} kills, {trained} steps trained, lost at most {lost} or {lost_s:.2f} s "
        f"(a checkpoint every {CHECKPOINT_EVERY_S} s); first new step {back[len(back) // 2]:.1f} s after the "
        f"start in the median, {back[-1]:.1f} s at most; {len(versions)} versions seen, all in order"
    )
    assert back[len(back) // 2] < MAX_BACK_S
    assert back[-1] < BUSY_BACK_S
    assert lost_s <= CHECKPOINT_EVERY_S + WRITE_S
    assert all(a < b for a, b in itertools.pairwise(versions)), "a version went back"
