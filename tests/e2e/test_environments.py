"""`shoal train` on every kind of environment: thousands of steps, a finite loss, a ledger that adds up."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from shoal.cli.run_dir import RunDir
from tests.e2e.cli_process import ROOT, shoal

pytestmark = pytest.mark.timeout(300)

NUM_STEPS = 3000
MLP = {"hidden_sizes": [32]}
FRAMES = {"network": "nature_cnn", "frame_stack": 4}

# What differs from environment to environment.
KINDS: dict[str, dict[str, Any]] = {
    "lunar_lander": {"env": {"id": "LunarLander-v3"}, "policy": MLP},
    "pendulum": {"env": {"id": "Pendulum-v1", "vectorization": "async", "workers": 2}, "policy": MLP},
    "pong_native": {"env": {"id": "ALE/Pong-v5", "vectorization": "native"}, "policy": FRAMES, "steps": 1000},
    "pong_envpool": {"env": {"id": "envpool:Pong-v5"}, "policy": FRAMES, "steps": 1000},
    "half_cheetah": {"env": {"id": "HalfCheetah-v5"}, "policy": {**MLP, "recurrent": "gru"}},
    "own_file": {"env": {"id": "lamps.py:Lamps", "kwargs": {"num_lamps": 4}}, "policy": MLP},
    "batch_of_4096": {
        "env": {"id": "batch_env.py:Points"},
        "policy": MLP,
        "actor": {"envs": 8192, "groups": 2, "unroll_length": 10},
        "learner": {"batch_envs": 4096},
        "steps": 200_000,
    },
}


def config_of(kind: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "algorithm": {"name": "impala"},
        "env": kind["env"],
        "policy": kind["policy"],
        "actor": kind.get("actor", {"envs": 16, "groups": 2, "unroll_length": 10}),
        "learner": {"checkpoint_every_s": 1000, **kind.get("learner", {"batch_envs": 8})},
        "replay": {"tables": {"train": {"kind": "queue", "max_items": 4}}},
        "stop": {"steps": kind.get("steps", NUM_STEPS)},
    }


def train(directory: Path, config: Mapping[str, Any]) -> RunDir:
    shutil.copy(Path(__file__).with_name("own_env.py"), directory / "lamps.py")
    shutil.copy(ROOT / "examples" / "batch_env.py", directory)
    (directory / "task.yaml").write_text(yaml.safe_dump(dict(config)))
    with shoal("train", "task.yaml", "--run-dir", "run", cwd=directory) as run:
        assert run.wait() == 0, f"{run.stdout}\n{run.stderr}"
        run.assert_nothing_left()
    return RunDir(directory / "run")


def check_ledger(
    run_dir: RunDir, policy: str, trained: int, config: Mapping[str, Any], slots_per_env: int = 1
) -> None:
    """Trained is what was handed over, but for what was under way when the learner ended."""
    log = run_dir.log("actor-0").read_text()
    words = re.search(
        rf"drained {policy}: (\d+) trajectories acked, (\d+) not; (\d+) steps handed over, (\d+) dropped", log
    )
    assert words is not None, log
    num_acked, num_unacked, handed_over, dropped = map(int, words.groups())
    actor, learner = config["actor"], config["learner"]
    group_steps = slots_per_env * actor["envs"] // actor["groups"] * actor["unroll_length"]
    batch_steps = learner["batch_envs"] * actor["unroll_length"]
    # The queue, what the learner asked for ahead, what waited for room in the queue; and its batches. How
    # much waited is the actor's own count: it goes on for as long as the others take to stop.
    most_items = config["replay"]["tables"]["train"]["max_items"] + 3 + num_unacked
    under_way = most_items * group_steps + 4 * batch_steps
    print(
        f"{policy}: {handed_over} steps handed over in {num_acked} + {num_unacked} trajectories, "
        f"{trained} trained, {dropped} dropped"
    )
    assert handed_over - under_way <= trained <= handed_over
    assert dropped <= group_steps * actor["groups"]


def losses(directory: Path) -> list[float]:
    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    return [scalar.value for scalar in events.Scalars("training/loss")]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_environment_is_trained_on(name: str, tmp_path: Path) -> None:
    config = config_of(KINDS[name])
    run_dir = train(tmp_path, config)
    result = json.loads(run_dir.result.read_text())
    assert result["reason"] == "steps"
    assert result["env_steps"] >= config["stop"]["steps"]
    assert all(map(math.isfinite, losses(run_dir.root)))
    check_ledger(run_dir, "policy", result["env_steps"], config)


def test_a_game_of_several_agents_trains_two_policies(tmp_path: Path) -> None:
    game = {
        "env": {
            "id": "pettingzoo.butterfly.knights_archers_zombies_v11:parallel_env",
            "kwargs": {"max_cycles": 60},
            "policies": {"archers": ["archer_*"], "knights": ["knight_*"]},
        },
        "policy": MLP,
        "actor": {"envs": 8, "groups": 2, "unroll_length": 10},
        "steps": 1500,
    }
    config = config_of(game)
    run_dir = train(tmp_path, config)
    ended_by = json.loads(run_dir.result.read_text())
    results = {
        policy: json.loads((run_dir.root / "policies" / policy / "result.json").read_text())
        for policy in ("archers", "knights")
    }
    assert ended_by["reason"] == "steps"
    assert results[ended_by["policy"]]["env_steps"] >= 1500
    for policy, result in results.items():
        assert result["learner_steps"] > 0
        assert all(map(math.isfinite, losses(run_dir.root / "policies" / policy)))
        check_ledger(run_dir, policy, result["env_steps"], config, slots_per_env=2)
