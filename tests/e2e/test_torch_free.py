"""Actor and replay run where torch is not installed: an environment with the base package only."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.scrape import fetch, parse, total
from shoal.config import load_config
from shoal.errors import UnavailableError
from tests.e2e.programs import ROOT, Programs, programs

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def base_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new virtual environment with `pip install shoal` and no extras."""
    directory = tmp_path_factory.mktemp("base")
    python = directory / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)
    # From a copy: pip leaves a build directory where it installs from.
    source = directory / "source"
    for folder in ("shoal", "services", "configs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    install = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", source]
    subprocess.run(install, check=True, timeout=300)
    return python


def trained_steps(running: Programs) -> float:
    try:
        metrics = parse(asyncio.run(fetch(running.announced("learner-0")["metrics"])))
    except UnavailableError:
        return 0.0
    return total(metrics, "shoal_learner_env_steps_total") or 0.0


def test_actor_and_replay_train_without_torch(base_python: Path, tmp_path: Path) -> None:
    absent = subprocess.run([base_python, "-c", "import torch"], capture_output=True, text=True, check=False)
    assert "No module named 'torch'" in absent.stderr
    config = load_config(ROOT / "configs/cartpole.yaml", [f"run.dir={tmp_path}"], {})
    with programs(config) as running:
        for name in ("learner-0", "inference-0"):
            running.start(name)
        for name in ("replay-0", "actor-0"):
            # Away from the checkout, so that the installed package is what runs.
            running.start(name, python=base_python, cwd=tmp_path)
        running.until(lambda: trained_steps(running) > 10_000, "training on 10,000 steps")
        print(f"{trained_steps(running):,.0f} steps trained on data from a torch-free actor and shard")


@pytest.mark.parametrize("service", ["actor", "replay"])
def test_importing_a_torch_free_service_leaves_torch_out(service: str) -> None:
    code = f"import sys, services.{service}.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
