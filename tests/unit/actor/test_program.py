"""The actor as a program: what importing it loads, and how its groups are seeded."""

from __future__ import annotations

import asyncio
import itertools
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import services.actor.loop
from services.actor.loop import Actor, group_seed, run_actor
from services.actor.metrics import ActorMetrics
from shoal.config import Config
from shoal.config.connections import ListenSection
from shoal.config.load import build_config
from shoal.config.tree import ActorSection, EnvSection
from shoal.envs.batch import BatchEnv
from shoal.envs.make import make_batch_env
from shoal.envs.restarts import Restarts
from shoal.errors import AddressInUseError
from shoal.records import Life
from shoal.rpc.process import ServiceContext

ROOT = Path(__file__).parents[3]


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after the statement."""
    program = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_an_actor_never_loads_torch() -> None:
    loaded = loaded_by("import services.actor.__main__, services.actor.loop, shoal.envs.make")
    assert {"gymnasium", "grpc"} <= loaded
    assert not {"torch", "safetensors"} & loaded


def test_worker_processes_of_asynchronous_environments_import_little() -> None:
    loaded = loaded_by("import services.actor.__main__, shoal.envs.make")
    assert "gymnasium" in loaded
    assert not {"grpc", "google", "prometheus_client", "torch"} & loaded


def test_a_table_that_is_not_there_is_told_in_one_line() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "services.actor"),
            *("--set", "learner.table=other", "--set", "replay.tables={train: {}}"),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.endswith(
        "error: config key 'learner.table': 'other' is not one of replay.tables (train)\n"
    )


def test_environments_are_closed_when_the_metrics_port_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    def make(section: EnvSection, num_envs: int, restarts: Restarts) -> BatchEnv:
        env = make_batch_env(section, num_envs, restarts)
        monkeypatch.setattr(env, "close", lambda: closed.append(env))
        return env

    monkeypatch.setattr(services.actor.loop, "make_batch_env", make)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = ListenSection(grpc="", metrics=f"127.0.0.1:{taken.getsockname()[1]}")
        config = Config(actor=ActorSection(envs=2, groups=2, listen=listen))
        with pytest.raises(AddressInUseError):
            asyncio.run(run_actor(config, ServiceContext("actor", config)))
    assert len(closed) == 2


def test_groups_and_lives_of_a_run_get_different_seeds() -> None:
    seeds = {
        group_seed(run_seed, Life(f"actor-{actor}", run_id), group)
        for run_seed in range(3)
        for actor in range(20)
        for run_id in ("a", "b")
        for group in range(4)
    }
    assert len(seeds) == 3 * 20 * 2 * 4
    assert all(0 <= seed < 1 << 30 for seed in seeds)
    # Environments of a group count on from its seed: ranges must not meet either.
    ordered = sorted(seeds)
    assert min(b - a for a, b in itertools.pairwise(ordered)) > 256


@pytest.mark.parametrize(
    ("learners", "expected"), [(1, {"train": 3}), (2, {"train-rank0": 3, "train-rank1": 3})]
)
def test_a_synchronous_actor_writes_to_the_tables_of_all_learners(
    learners: int, expected: dict[str, int]
) -> None:
    """Nine environments in three groups: rank 0 has four of them, one of which is of the second group."""

    async def body() -> dict[str, int]:
        tree = {"algorithm": {"name": "ppo"}, "actor": {"envs": 9, "groups": 3}, "learner": {"batch_envs": 9}}
        config = build_config(tree | {"launch": {"learners": learners}})
        envs = [make_batch_env(config.env, 3, Restarts(0)) for _ in range(3)]
        return Actor(config, envs, ActorMetrics(CollectorRegistry(), "train"))._num_slots

    assert asyncio.run(body()) == expected
