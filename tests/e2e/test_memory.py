"""Policies that remember, in whole runs: a task that needs it, and actors that are killed and come back."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from pathlib import Path

import psutil
import pytest
import yaml

from shoal.cli.history import read_history
from shoal.cli.run_dir import RunDir
from shoal.cli.scrape import parse, total
from tests.e2e.cli_process import ROOT, ShoalProcess, shoal

pytestmark = pytest.mark.timeout(400)

NUM_ENVS = 64


def task(**policy: object) -> dict[str, object]:
    return {
        "env": {"id": str(ROOT / "examples" / "memory_task.py") + ":make"},
        "actor": {"envs": NUM_ENVS, "groups": 2, "unroll_length": 12},
        "learner": {"batch_envs": 32},
        "policy": {"hidden_sizes": [32], "activation": "relu", **policy},
        "algorithm": {"learning_rate": 0.005, "entropy_cost": 0.01},
    }


def test_a_cue_is_remembered_with_an_lstm_and_not_without(tmp_path: Path) -> None:
    """Four cues, asked for ten steps later: right by chance once in four times."""
    reached = {}
    steps = 2_000_000
    for name, policy in (("lstm", {"recurrent": "lstm", "recurrent_size": 32}), ("feed_forward", {})):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(task(**policy)))
        limits = ("--until-return", "0.95", "--steps", str(steps))
        with shoal("train", f"{name}.yaml", "--run-dir", name, *limits, cwd=tmp_path) as run:
            assert run.process.wait(180) == 0, f"{run.stdout}\n{run.stderr}"
        result = json.loads(RunDir(tmp_path / name).result.read_text())
        print(f"{name}: {result['mean_return']:.2f} after {result['env_steps']:,} steps ({result['reason']})")
        reached[name] = result
        # As many as the one that learns it needed, and some more.
        steps = 2 * result["env_steps"]
    assert reached["lstm"]["reason"] == "until_return"
    assert reached["feed_forward"]["reason"] == "steps"
    assert reached["feed_forward"]["mean_return"] < 0.5


def test_an_actor_that_comes_back_twenty_times_leaves_nothing_on_the_server(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    (tmp_path / "task.yaml").write_text(
        yaml.safe_dump(task(recurrent="lstm", recurrent_size=128, frame_stack=4))
    )
    settings = ("--set", "launch.max_restarts=100", "--run-dir", "run")
    with shoal("train", "task.yaml", *settings, cwd=tmp_path) as run:
        run.until_training()
        server = psutil.Process(run.pid_of("inference"))
        memory = []
        for life in range(1, 21):
            os.kill(run.pid_of("actor"), signal.SIGKILL)
            run.until(lambda life=life: num_restarts(run_dir) == life, "restart of the actor")
            sessions, slots = until_acting(run)
            assert (sessions, slots) == (2, NUM_ENVS), f"life {life} found other streams"
            memory.append(server.memory_info().rss / 2**20)
        run.send(signal.SIGTERM)
        assert run.wait() == 143
    print("MiB of the server after each life:", *(f"{value:.1f}" for value in memory))
    # The first lives warm up what is kept for good.
    assert memory[-1] - memory[4] < 16


def num_restarts(run_dir: RunDir) -> int:
    samples, _ = read_history(run_dir.history)
    return samples[-1].num_restarts if samples else 0


def until_acting(run: ShoalProcess) -> tuple[float, float]:
    """Sessions and slots of the server once it answers as many streams as there are."""
    rows = -1.0

    def settled() -> bool:
        nonlocal rows, found
        metrics = parse(scrape(run))
        found = (
            total(metrics, "shoal_inference_sessions") or 0,
            total(metrics, "shoal_inference_env_slots") or 0,
        )
        before, rows = rows, total(metrics, "shoal_inference_rows_total") or 0
        return found[0] >= 2 and rows > before > 0

    found = (0.0, 0.0)
    run.until(settled, "answers to the new actor")
    return found


def scrape(run: ShoalProcess) -> str:
    announced = next(run.sockets.glob("*/inference-0.json"))
    address = json.loads(announced.read_text())["metrics"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text
