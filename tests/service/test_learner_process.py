"""The learner as a program against a real replay shard: training, stopping, dying, coming back, refusing."""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.learner.checkpoint import CheckpointStore
from tests.service.learner_rig import NUM_ENVS, SPEC, TRANSITIONS, payload, pumping, rig, scrape


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(body, 110.0))


def test_trains_until_the_steps_are_done(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(tmp_path / "run", stop={"steps": 200 * TRANSITIONS}) as made:
            announced = await made.learner.start()
            await made.append(*[payload()] * 6)
            await made.version_above(5)
            metrics = await scrape(announced["metrics"])
            async with pumping(made):
                assert await made.exited(made.learner) == 0
            result = made.result()
            print(f"learner: {result}")
            assert (result["reason"], result["policy"]) == ("steps", "policy")
            assert result["learner_steps"] == 200
            assert result["env_steps"] == 200 * TRANSITIONS
            assert result["mean_return"] == 7.0
            assert result["seconds"] > 0
            assert made.versions == sorted(set(made.versions))
            assert result["policy_version"] >= made.versions[-1]
            assert metrics["shoal_learner_subscribers{policy}"] == 1
            assert metrics["shoal_learner_env_steps_total{policy}"] > 0
            assert {
                f"shoal_learner_phase_seconds_total{{{p}}}{{policy}}"
                for p in ("wait", "decode", "copy", "train")
            } <= set(metrics)
            saved = CheckpointStore(tmp_path / "run" / "checkpoints", 3).newest()
            assert saved is not None
            assert saved.progress.learner_steps == 200
            assert "unroll_length: 5" in saved.config_yaml
            assert list((tmp_path / "run" / "tensorboard").iterdir())

    run(body())


def test_trains_a_policy_with_state_from_what_it_remembered(tmp_path: Path) -> None:
    """LSTM and frame stack; what comes without the state is dropped."""

    async def body() -> None:
        policy = {"hidden_sizes": [16], "recurrent": "lstm", "recurrent_size": 8, "frame_stack": 3}
        async with rig(tmp_path / "run", policy=policy, stop={"steps": 3 * TRANSITIONS}) as made:
            announced = await made.learner.start()
            rng = np.random.default_rng(0)
            states = {
                "initial.recurrent.h": rng.normal(size=(1, NUM_ENVS, 8)),
                "initial.recurrent.c": rng.normal(size=(1, NUM_ENVS, 8)),
                "initial.frames.observation": rng.normal(size=(1, NUM_ENVS, 2, 4)),
            }
            whole = payload(**{name: array.astype(np.float32) for name, array in states.items()})
            await made.append(whole, whole)
            await made.version_above(1)
            metrics = await scrape(announced["metrics"])
            assert metrics["shoal_learner_trajectories_dropped_total{policy}"] == 0
            await made.append(whole)
            assert await made.exited(made.learner) == 0
            assert made.result()["learner_steps"] == 3

    run(body())


def test_sigterm_under_load(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(tmp_path / "run") as made:
            await made.learner.start()
            async with pumping(made):
                await made.version_above(20)
                start = time.monotonic()
                made.learner.terminate()
                assert await made.exited(made.learner) == 0
            print(f"drained in {time.monotonic() - start:.2f} s")
            result = made.result()
            assert result["reason"] == "stopped"
            assert result["learner_steps"] >= 20
            saved = CheckpointStore(tmp_path / "run" / "checkpoints", 3).newest()
            assert saved is not None
            assert saved.progress.learner_steps == result["learner_steps"]

    run(body())


def test_sigterm_before_anybody_subscribes(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(tmp_path / "run") as made:
            made.spec = replace(SPEC, env_id="")
            await made.learner.start()
            made.learner.terminate()
            assert await made.exited(made.learner) == 0

    run(body())


async def newer_checkpoint(store: CheckpointStore, than_step: int) -> int:
    """Steps of the newest checkpoint, once it has more than those."""
    async with asyncio.timeout(60.0):
        while True:
            saved = await asyncio.to_thread(store.newest)
            if saved is not None and saved.progress.learner_steps > than_step:
                return saved.progress.learner_steps
            await asyncio.sleep(0.02)


def test_kill_and_come_back(tmp_path: Path) -> None:
    """Three kills under load: versions never go back, and each life goes on from the newest checkpoint."""

    async def body() -> None:
        async with rig(tmp_path / "run") as made:
            store = CheckpointStore(tmp_path / "run" / "checkpoints", 3)
            async with pumping(made):
                lives = []
                start = 0
                for _ in range(3):
                    await made.learner.start("learner.checkpoint_every_s=0.2")
                    first = await made.version_above(made.versions[-1] if made.versions else -1)
                    await made.version_above(first + 30)
                    steps = await newer_checkpoint(store, start)
                    await made.learner.kill()
                    lives.append((first, made.versions[-1]))
                    start = await newer_checkpoint(store, steps - 1)
                await made.learner.start(f"stop.steps={(start + 20) * TRANSITIONS}")
                assert await made.exited(made.learner) == 0
            assert made.result()["learner_steps"] == start + 20, "it went on from the newest checkpoint"
            assert all(a < b for a, b in itertools.pairwise(made.versions)), "a version went back"
            print(f"versions per life: {lives}, resumed from step {start}")

    run(body())


def test_what_is_saved_is_what_is_published_after_a_restart(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(tmp_path / "run") as made:
            await made.learner.start()
            await made.append(*[payload()] * 3)
            await made.version_above(2)
            made.learner.terminate()
            assert await made.exited(made.learner) == 0
            before = dict(made.weights)
            await made.learner.start()
            await made.version_above(made.versions[-1])
            for name, array in before.items():
                np.testing.assert_array_equal(made.weights[name], array)

    run(body())


def test_rewards_out_of_range_stop_the_run_and_publish_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(tmp_path / "run") as made:
            await made.learner.start()
            await made.version_above(-1)
            await made.append(payload(), payload(), payload(reward=3e38), payload())
            text = await made.learner.errors()
            assert made.learner.process is not None
            assert made.learner.process.returncode == 2
            last = text.splitlines()[-1]
            print(f"last line: {last}")
            assert last.startswith("error: NaN or infinity at learner step 3: loss inf")
            assert "Traceback" not in text
            # `follow` asserts that every weight that arrived was finite.
            assert made.versions[-1] <= 2
            assert not (tmp_path / "run" / "result.json").exists()

    run(body())


def test_what_does_not_fit_is_dropped_and_counted(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(tmp_path / "run") as made:
            announced = await made.learner.start()
            too_long, out_of_range = payload(length=7), payload(num_actions=9)
            await made.append(too_long, payload(), out_of_range, payload())
            await made.version_above(1)
            metrics = await scrape(announced["metrics"])
            assert metrics["shoal_learner_trajectories_dropped_total{policy}"] == 2
            made.learner.terminate()
            text = await made.learner.errors()
            assert (
                "7 transitions per env instead of 5: actor.unroll_length must be the same everywhere" in text
            )

    run(body())


async def refusal(made: Any, *settings: str) -> str:
    await made.learner.spawn(*settings)
    text: str = await made.learner.errors()
    assert made.learner.process.returncode == 2, text
    assert "Traceback" not in text
    last = text.splitlines()[-1]
    print(last)
    assert last.startswith("error: ")
    return last


def test_mistakes_end_with_one_line_and_code_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    async def body() -> None:
        async with rig(tmp_path / "run") as made:
            assert "cuda" in await refusal(made, "learner.device=cuda")
            (tmp_path / "file").write_text("")
            text = await refusal(made, f"run.dir={tmp_path}/file/run")
            assert "Not a directory" in text
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                taken.listen()
                port = taken.getsockname()[1]
                text = await refusal(made, f"learner.listen.grpc=127.0.0.1:{port}")
                assert str(port) in text

    run(body())


def test_a_checkpoint_of_another_environment(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(tmp_path / "run", stop={"steps": TRANSITIONS}) as made:
            await made.learner.start()
            await made.append(payload())
            assert await made.exited(made.learner) == 0
        async with rig(tmp_path / "run") as made:
            made.spec = replace(SPEC, env_id="Other-v0")
            text = await refusal(made)
            assert SPEC.describe() in text
            assert made.spec.describe() in text
            assert not made.versions

    run(body())


def test_a_checkpoint_of_another_activation(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(tmp_path / "run", stop={"steps": TRANSITIONS}) as made:
            await made.learner.start()
            await made.append(payload())
            assert await made.exited(made.learner) == 0
        async with rig(tmp_path / "run", policy={"activation": "relu"}) as made:
            text = await refusal(made)
            assert text.endswith("policy.activation was tanh and is relu now: use another run.dir")
            assert not made.versions

    run(body())


def test_one_learner_per_run_directory(tmp_path: Path) -> None:
    async def body() -> None:
        async with rig(tmp_path / "run") as made:
            await made.learner.start()
            async with rig(tmp_path / "run") as second:
                assert "another learner is running" in await refusal(second)

    run(body())


def test_an_unknown_table_is_the_users_mistake(tmp_path: Path) -> None:
    """The shard does not have what the learner's own configuration says it has."""

    async def body() -> None:
        async with rig(tmp_path / "run") as made:
            text = await refusal(made, "learner.table=other", "replay.tables.other.kind=queue")
            assert "other" in text

    run(body())
