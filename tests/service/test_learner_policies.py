"""A learner of several policies as a program, over a real replay shard: all are trained, and end together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.learner.checkpoint import CheckpointStore
from shoal.clients.weights_grpc import GrpcWeightsClient
from shoal.errors import FailedPreconditionError
from shoal.records import ArraySpec, DiscreteAction, EnvSpec
from shoal.rpc.addresses import Address
from tests.service.learner_rig import (
    LIMITS,
    RPC,
    SECURITY,
    SPEC,
    TRANSITIONS,
    Rig,
    payload,
    pumping,
    rig,
    scrape,
)

ENV = {"policies": {"red": ["red_*"], "blue": ["*"]}}
# The agents of blue see more than those of red.
BLUE = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (6,)),), DiscreteAction(2))


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(body, 110.0))


def checkpoint_steps(made: Rig, name: str) -> int:
    saved = CheckpointStore(made.run_dir / "policies" / name / "checkpoints", 3).newest()
    assert saved is not None
    return saved.progress.learner_steps


def test_both_are_trained_and_end_when_one_has_its_steps(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(tmp_path / "run", env=ENV, stop={"steps": 60 * TRANSITIONS}) as made:
            red, blue = made.sides["red"], made.sides["blue"]
            blue.spec = BLUE
            announced = await made.learner.start()
            # Equal networks that begin with equal weights would act alike.
            await asyncio.gather(*(made.version_above(-1, side) for side in (red, blue)))
            head = "policy_head.weight"
            assert not np.array_equal(red.weights[head], blue.weights[head])
            await made.append(*[blue.payload()] * 5, side=blue)
            await made.version_above(4, blue)
            assert red.current == 0, "nothing of blue's data has come to red"
            await made.append(*[red.payload()] * 5, side=red)
            await made.version_above(4, red)
            metrics = await scrape(announced["metrics"])
            async with pumping(made):
                assert await made.exited(made.learner) == 0
            for name in ("red", "blue"):
                assert metrics[f"shoal_learner_subscribers{{{name}}}"] == 1
                assert metrics[f"shoal_learner_steps_total{{{name}}}"] > 0
                assert metrics[f"shoal_learner_phase_seconds_total{{train}}{{{name}}}"] > 0
                assert metrics[f"shoal_learner_trajectories_dropped_total{{{name}}}"] == 0
                assert list((made.run_dir / "policies" / name / "tensorboard").iterdir())
            results = {name: made.result(f"policies/{name}") for name in made.sides}
            print({name: (result["reason"], result["learner_steps"]) for name, result in results.items()})
            ended = made.result()
            assert ended == results[ended["policy"]]
            assert (ended["reason"], ended["learner_steps"]) == ("steps", 60)
            for name, side in made.sides.items():
                assert side.versions == sorted(set(side.versions))
                assert results[name]["policy"] == name
                assert results[name]["learner_steps"] == checkpoint_steps(made, name) >= 5
                assert results[name]["policy_version"] >= side.current
            (other,) = made.sides.keys() - {ended["policy"]}
            assert results[other]["reason"] in ("stopped", "steps")
            assert not (made.run_dir / "checkpoints").exists()
            assert not (made.run_dir / "policy_version").exists()

    run(body())


def test_a_policy_that_nobody_plays_yet_keeps_no_other_from_training(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(tmp_path / "run", env=ENV) as made:
            red, blue = made.sides["red"], made.sides["blue"]
            # The learner refuses it: as good as nobody.
            blue.spec = EnvSpec("Nothing-v0", (), DiscreteAction(2))
            await made.learner.start()
            await made.append(*[red.payload()] * 3, side=red)
            await made.version_above(2, red)
            made.learner.terminate()
            assert await made.exited(made.learner) == 0
            assert (made.result()["policy"], made.result()["reason"]) == ("red", "stopped")
            assert checkpoint_steps(made, "red") == 3
            assert not (made.run_dir / "policies" / "blue" / "result.json").exists()

    run(body())


def test_one_that_fails_ends_the_others_in_order(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(tmp_path / "run", env=ENV) as made:
            red, blue = made.sides["red"], made.sides["blue"]
            await made.learner.start()
            await made.append(*[red.payload()] * 4, side=red)
            await made.version_above(3, red)
            await made.append(blue.payload(), payload(reward=3e38), side=blue)
            text = await made.learner.errors()
            assert made.learner.process is not None
            assert made.learner.process.returncode == 2
            assert "blue: training failed: NaN or infinity at learner step 2" in text
            assert text.splitlines()[-1].startswith("error: NaN or infinity at learner step 2")
            assert "Traceback" not in text
            assert checkpoint_steps(made, "red") == 4
            assert made.result("policies/red")["reason"] == "stopped"
            for where in ("", "policies/blue"):
                assert not (made.run_dir / where / "result.json").exists()

    run(body())


def test_each_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(tmp_path / "run", env=ENV) as made:
            red, blue = made.sides["red"], made.sides["blue"]
            blue.spec = BLUE
            await made.learner.start()
            for side, count in ((red, 2), (blue, 4)):
                await made.append(*[side.payload()] * count, side=side)
                await made.version_above(count - 1, side)
            made.learner.terminate()
            assert await made.exited(made.learner) == 0
            before = {side.name: (side.current, dict(side.weights)) for side in (red, blue)}
            await made.learner.start(f"stop.steps={5 * TRANSITIONS}")
            for side in (red, blue):
                version, weights = before[side.name]
                await made.version_above(version, side)
                for name, array in weights.items():
                    np.testing.assert_array_equal(side.weights[name], array)
            await made.append(blue.payload(), side=blue)
            assert await made.exited(made.learner) == 0
            assert (made.result()["policy"], made.result()["learner_steps"]) == ("blue", 5)
            assert (checkpoint_steps(made, "red"), checkpoint_steps(made, "blue")) == (2, 5)

    run(body())


def test_control_an_unknown_policy_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(tmp_path / "run", env=ENV) as made:
            await made.learner.start()
            client = GrpcWeightsClient(Address(made.learner_address), SECURITY, LIMITS, RPC)
            for name in ("green", "policy", ""):
                with pytest.raises(
                    FailedPreconditionError, match=rf"no policy '{name}': there are red, blue"
                ):
                    await anext(client.subscribe("inference-2", SPEC, made.policy, -1, name))
            await client.close()
            assert sorted(path.name for path in (made.run_dir / "policies").iterdir()) == ["blue", "red"]

    run(body())
