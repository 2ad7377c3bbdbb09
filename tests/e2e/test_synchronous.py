"""Synchronous PPO with real processes: every trained step is of the newest version, whoever is killed."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal.config.load import build_config
from tests.e2e.programs import Programs, programs

pytestmark = pytest.mark.timeout(300)

NUM_ENVS, NUM_ACTORS = 8, 2


def config_of(run_dir: Path) -> dict[str, object]:
    return {
        "run": {"dir": str(run_dir)},
        "launch": {"actors": NUM_ACTORS},
        # Two groups: all four of the run must have handed over before there is a batch.
        "actor": {"envs": NUM_ENVS, "groups": 2, "unroll_length": 16},
        "learner": {"batch_envs": NUM_ENVS * NUM_ACTORS},
        "policy": {"hidden_sizes": [16]},
        "algorithm": {"name": "ppo", "epochs": 1, "minibatches": 1, "max_wait_s": 1.0},
    }


def learner_values(run: Programs) -> dict[str, float]:
    """Newest version, steps of the lag histogram by bucket, and what was left out."""
    address = run.announced("learner-0")["metrics"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        samples = [sample for family in families for sample in family.samples]
    return {sample.name + sample.labels.get("le", ""): sample.value for sample in samples}


def train_on(run: Programs, since: dict[str, float], batches: int) -> dict[str, float]:
    """Until so many more batches are trained on; all of their steps must have a lag of 0."""
    lag, found = "shoal_learner_policy_lag_versions", since

    def trained() -> bool:
        nonlocal found
        found = learner_values(run)
        return found["shoal_learner_steps_total"] >= since.get("shoal_learner_steps_total", 0.0) + batches

    run.until(trained, f"{batches} batches")
    assert found[f"{lag}_bucket0.0"] == found[f"{lag}_bucket+Inf"] > 0
    return found


def test_every_trained_step_is_of_the_newest_version_and_kills_are_survived(tmp_path: Path) -> None:
    with programs(build_config(config_of(tmp_path / "run"))) as run:
        for name in ("learner-0", "inference-0", "replay-0", "actor-0", "actor-1"):
            run.start(name)
        found = train_on(run, {}, 30)
        assert found["shoal_learner_outdated_steps_total"] == 0
        print(f"undisturbed: {found['shoal_learner_env_steps_total']:.0f} steps, all of lag 0")
        # What a killed actor has handed over makes one unroll too many; what a killed replay held is lost.
        for name in ("actor-1", "replay-0", "inference-0"):
            run.kill(name)
            run.start(name)
            found = train_on(run, found, 30)
            print(f"{name} killed: {found['shoal_learner_outdated_steps_total']:.0f} steps left out so far")
        # A new learner counts from 0, and goes on with newer versions.
        run.kill("learner-0")
        run.specs["learner-0"].announce.unlink()
        run.start("learner-0")
        train_on(run, {}, 30)
