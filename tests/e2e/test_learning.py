"""The whole system learns, and every replica and shard does its share of the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.history import read_history
from shoal.cli.run_dir import RunDir
from tests.e2e.cli_process import trained

pytestmark = pytest.mark.timeout(400)


def test_cartpole_is_learned_with_replicas_and_shards(tmp_path: Path) -> None:
    axes = ("--actors", "3", "--inference", "2", "--replay-shards", "2")
    result = trained(tmp_path, "cartpole", "--until-return", "475", *axes)
    assert result["mean_return"] >= 475
    assert result["env_steps"] <= 2_000_000
    samples, _ = read_history(RunDir(tmp_path / "run").history)
    load = samples[-1].load
    print(load)
    replicas = {"actor": 3, "inference": 2, "replay": 2, "learner": 1}
    for service, count in replicas.items():
        work = {f"{service}-{i}": load.get(f"{service}-{i}", 0) for i in range(count)}
        assert min(work.values()) > 0.1 * sum(work.values()) / count, f"{service} idle: {work}"


@pytest.mark.parametrize(("preset", "budget"), [("ppo_cartpole", 300_000), ("appo_cartpole", 2_000_000)])
def test_cartpole_is_learned_in_passes(tmp_path: Path, preset: str, budget: int) -> None:
    result = trained(tmp_path, preset, "--until-return", "475", "--steps", str(budget))
    assert result["reason"] == "until_return"
    assert result["mean_return"] >= 475


@pytest.mark.parametrize("preset", ["sac_pendulum", pytest.param("td3_pendulum", marks=pytest.mark.long)])
def test_pendulum_is_learned_from_replay(tmp_path: Path, preset: str) -> None:
    """Continuous actions, sampled transitions; the budget is of environment steps."""
    result = trained(tmp_path, preset, "--until-return", "-200", "--steps", "30000")
    assert result["reason"] == "until_return"
    assert result["mean_return"] >= -200
    assert result["env_steps"] <= 30_500
