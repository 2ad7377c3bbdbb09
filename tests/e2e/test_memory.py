"""Policies that remember, in whole runs: a task that needs it, and actors that are killed and come back."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import psutil
import pytest
import yaml

from shoal.cli.run_dir import RunDir
from shoal.cli.scrape import parse, total
from shoal.config.load import build_config
from tests.e2e.cli_process import ROOT, shoal
from tests.e2e.programs import Programs, programs

pytestmark = pytest.mark.timeout(400)

NUM_ENVS = 64


def task(**policy: object) -> dict[str, object]:
    return {
        "env": {"id": str(ROOT / "examples" / "memory_task.py") + ":make"},
        "actor": {"envs": NUM_ENVS, "groups": 2, "unroll_length": 12},
        "learner": {"batch_envs": 32},
        "policy": {"hidden_sizes": [32], "activation": "relu", **policy},
        "algorithm": {
            "name": "impala",
            "learning_rate": 0.005,
            "learning_rate_schedule": "constant",
            "entropy_cost": 0.01,
        },
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
        # As many as the one that learns it needed.
        steps = result["env_steps"]
    assert reached["lstm"]["reason"] == "until_return"
    assert reached["feed_forward"]["reason"] == "steps"
    assert reached["feed_forward"]["mean_return"] < 0.5


@pytest.mark.long
def test_what_only_the_previous_action_and_reward_tell_is_learned(tmp_path: Path) -> None:
    """One arm of three pays, another one in each episode, and nothing shows which: by chance 3.3 of 10."""
    reached = {}
    steps = 1_000_000
    for shown in (True, False):
        name = f"previous_{shown}"
        policy = {"recurrent": "lstm", "recurrent_size": 32, "previous_inputs": shown}
        env = {"id": str(ROOT / "tests" / "e2e" / "bandit_env.py") + ":Bandit"}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**task(**policy), "env": env}))
        limits = ("--until-return", "7", "--steps", str(steps))
        with shoal("train", f"{name}.yaml", "--run-dir", name, *limits, cwd=tmp_path) as run:
            assert run.process.wait(180) == 0, f"{run.stdout}\n{run.stderr}"
        result = json.loads(RunDir(tmp_path / name).result.read_text())
        print(f"{name}: {result['mean_return']:.2f} after {result['env_steps']:,} steps ({result['reason']})")
        reached[shown] = result
        # As many as the one that learns it needed.
        steps = result["env_steps"]
    assert reached[True]["reason"] == "until_return"
    assert reached[False]["reason"] == "steps"
    assert reached[False]["mean_return"] < 4.5


def test_an_actor_that_comes_back_twenty_times_leaves_nothing_on_the_server(tmp_path: Path) -> None:
    remembering = task(recurrent="lstm", recurrent_size=128, frame_stack=4)
    config = build_config({**remembering, "run": {"dir": str(tmp_path / "run")}})
    with programs(config) as run:
        for name in ("learner-0", "replay-0", "inference-0"):
            run.start(name)
        address = run.announced("inference-0")["metrics"]
        server = psutil.Process(run.pid("inference-0"))
        memory = []
        num_rows = 0.0
        for life in range(21):
            run.start("actor-0")
            sessions, slots = until_acting(run, address, num_rows)
            assert (sessions, slots) == (2, NUM_ENVS), f"life {life} found other streams"
            memory.append(server.memory_info().rss / 2**20)
            run.kill("actor-0")
            num_rows = until_alone(run, address)
    print("MiB of the server after each life:", *(f"{value:.1f}" for value in memory))
    # The first lives warm up what is kept for good.
    assert memory[-1] - memory[4] < 16


def until_acting(run: Programs, address: str, num_rows: float) -> tuple[float, float]:
    """Sessions and slots of the server once it has answered some unrolls of both groups of the new actor."""
    found = (0.0, 0.0, 0.0)

    def acting() -> bool:
        nonlocal found
        found = streams_of(address)
        return found[0] >= 2 and found[2] > num_rows + 100 * NUM_ENVS

    run.until(acting, "answers to the new actor")
    return found[:2]


def until_alone(run: Programs, address: str) -> float:
    """The rows of the server once it has noticed that the actor is gone."""
    found = (0.0, 0.0, 0.0)

    def alone() -> bool:
        nonlocal found
        found = streams_of(address)
        return found[:2] == (0, 0)

    run.until(alone, "end of the streams of an actor that was killed")
    return found[2]


def streams_of(address: str) -> tuple[float, float, float]:
    """Sessions, slots and rows of the server."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        metrics = parse(answer.read().decode())
    return (
        total(metrics, "shoal_inference_sessions") or 0.0,
        total(metrics, "shoal_inference_env_slots") or 0.0,
        total(metrics, "shoal_inference_rows_total") or 0.0,
    )
