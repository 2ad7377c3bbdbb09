"""Learners as `torchrun` starts them: one of them is killed, all start again, and the run ends well."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from services.learner.checkpoint import CheckpointStore
from tests.service.learner_rig import PATIENCE_S, TRANSITIONS, Rig, pumping, rig

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "2")


def learners(made: Rig) -> dict[int, psutil.Process]:
    """Living ones, by rank."""
    assert made.learner.process is not None
    children = psutil.Process(made.learner.process.pid).children()
    return {int(child.environ()["RANK"]): child for child in children}


@pytest.mark.timeout(300)  # six imports of torch
def test_torchrun_starts_all_again_when_one_is_killed(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(tmp_path / "run", stop={"until_return": 8.0}) as made, pumping(made):
            await made.learner.spawn("learner.checkpoint_every_s=0.5", launcher=TORCHRUN)
            await made.version_above(10, patience_s=2 * PATIENCE_S)
            while not any((tmp_path / "run" / "checkpoints").glob("0*")):
                await asyncio.sleep(0.01)
            first = learners(made)
            assert sorted(first) == [0, 1]
            version = made.versions[-1]
            first[1].kill()
            # A new life goes on at the next block of versions.
            await made.version_above(version + 2048, patience_s=2 * PATIENCE_S)
            second = learners(made)
            assert not {child.pid for child in first.values()} & {child.pid for child in second.values()}
            made.only.episode_return = 9.0
            errors = await made.learner.errors()
            assert made.learner.process is not None
            assert made.learner.process.returncode == 0, errors
        assert "another learner has gone" in errors
        assert "going on from learner step" in errors
        result = made.result()
        print(f"learners: {result}")
        assert result["reason"] == "until_return"
        # A batch is of both together.
        assert result["env_steps"] == result["learner_steps"] * TRANSITIONS
        assert made.versions == sorted(set(made.versions))
        saved = CheckpointStore(tmp_path / "run" / "checkpoints", 3).newest()
        assert saved is not None
        assert saved.progress.learner_steps == result["learner_steps"]

    asyncio.run(asyncio.wait_for(body(), 4 * PATIENCE_S))
