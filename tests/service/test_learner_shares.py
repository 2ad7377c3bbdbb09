"""Two learners of a synchronous run as programs: the result of one, and a round that survives a kill.

The test plays the actors: it divides what one learner is given as a whole.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from services.actor.split import split_by_share
from services.learner.checkpoint import CheckpointStore
from shoal.records import Trajectory
from shoal.wire import decode_trajectory, encode_trajectory
from tests.service.learner_rig import LIMITS, NUM_ENVS, PATIENCE_S, TRANSITIONS, Rig, payload, rig
from tests.service.test_learner_torchrun import TORCHRUN, learners

NUM_ROUNDS = 5
SHARES = (slice(0, NUM_ENVS // 2), slice(NUM_ENVS // 2, NUM_ENVS))
# Of weights after all rounds: sums over two learners are rounded in another order than those of one.
TOLERANCE = 1e-5


def settings(num_learners: int) -> dict[str, dict[str, object]]:
    """One part: learners shuffle environments among those of their own share only."""
    return {
        "algorithm": {"name": "ppo", "learning_rate": 1e-2, "epochs": 3, "minibatches": 1},
        "policy": {"hidden_sizes": [16], "normalise_observations": True},
        "actor": {"unroll_length": 5, "envs": NUM_ENVS, "groups": 1},
        "launch": {"learners": num_learners},
    }


def unroll(version: int) -> Trajectory:
    """Of all environments."""
    return Trajectory(decode_trajectory(payload(version, reward=0.1 * version), LIMITS).columns)


async def give_round(made: Rig, version: int, *ranks: int) -> None:
    """The parts that some learners have of a round."""
    parts = split_by_share(unroll(version), SHARES)
    for rank in ranks:
        await made.append(encode_trajectory(parts[rank]), table=f"train-rank{rank}")


async def train_alone(path: Path) -> dict[str, np.ndarray]:
    async with rig(path, **settings(1)) as made:
        await made.learner.start()
        await made.version_above(-1)
        before = made.weights["policy_head.weight"]
        for version in range(NUM_ROUNDS):
            await made.append(encode_trajectory(unroll(version)))
            await made.version_above(version)
        assert np.abs(made.weights["policy_head.weight"] - before).max() > 1000 * TOLERANCE
        return dict(made.weights)


@pytest.mark.timeout(300)  # seven imports of torch
def test_two_learners_are_one_with_the_whole_batch_and_survive_a_kill(tmp_path: Path) -> None:
    async def body() -> None:
        expected = await train_alone(tmp_path / "alone")
        async with rig(tmp_path / "run", **settings(len(SHARES))) as made:
            await made.learner.spawn("learner.checkpoint_every_s=0.1", launcher=TORCHRUN)
            for version in range(NUM_ROUNDS):
                await made.version_above(version - 1, patience_s=2 * PATIENCE_S)
                await give_round(made, version, 0, 1)
            await made.version_above(NUM_ROUNDS - 1)
            worst = max(float(np.abs(made.weights[name] - expected[name]).max()) for name in expected)
            print(f"two learners differ by {worst:.1e} from one after {NUM_ROUNDS} rounds of 3 passes")
            for name, array in expected.items():
                np.testing.assert_allclose(
                    made.weights[name], array, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name
                )

            # One has its part of a round when the other is killed.
            await give_round(made, NUM_ROUNDS, 0)
            first = learners(made)
            first[1].kill()
            version = await made.version_above(NUM_ROUNDS, patience_s=2 * PATIENCE_S)
            assert version >= 4096, "a new life goes on at the next block of versions"
            second = learners(made)
            assert not {child.pid for child in first.values()} & {child.pid for child in second.values()}
            # What comes late of the lost round is left out, on the one that lacks it and on the other.
            await give_round(made, NUM_ROUNDS, 1, 0)
            for current in range(version, version + 3):
                assert made.versions[-1] == current
                await give_round(made, current, 1, 0)
                await made.version_above(current)
            made.learner.terminate()
            await made.learner.errors()
        result = made.result()
        saved = CheckpointStore(tmp_path / "run" / "checkpoints", 3).newest()
        assert saved is not None
        assert result["learner_steps"] == saved.progress.learner_steps >= 3
        assert result["env_steps"] == result["learner_steps"] * TRANSITIONS, "every step is of whole rounds"

    asyncio.run(asyncio.wait_for(body(), 4 * PATIENCE_S))
