"""The actor as a program: what importing it loads, and how its groups are seeded."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

from services.actor.loop import group_seed

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
    loaded = loaded_by("import services.actor.__main__, services.actor.loop, shoal.envs.vector")
    assert {"gymnasium", "grpc"} <= loaded
    assert not {"torch", "safetensors"} & loaded


def test_worker_processes_of_asynchronous_environments_import_little() -> None:
    loaded = loaded_by("import services.actor.__main__, shoal.envs.registry")
    assert "gymnasium" in loaded
    assert not {"grpc", "google", "pydantic", "prometheus_client"} & loaded


def test_groups_of_a_run_get_different_seeds() -> None:
    seeds = {
        group_seed(run_seed, f"actor-{actor}", group)
        for run_seed in range(3)
        for actor in range(20)
        for group in range(8)
    }
    assert len(seeds) == 3 * 20 * 8
    assert all(0 <= seed < 1 << 30 for seed in seeds)
    assert group_seed(1, "actor-0", 0) == group_seed(1, "actor-0", 0)
    # Environments of a group count on from its seed: ranges must not meet either.
    ordered = sorted(seeds)
    assert min(b - a for a, b in itertools.pairwise(ordered)) > 256
