"""Synchronous PPO with real processes: every trained step is of the newest version, whatever happens."""

from __future__ import annotations

import os
import signal
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal.config.load import build_config
from tests.e2e.programs import Programs, programs

pytestmark = pytest.mark.timeout(300)

NUM_ENVS, NUM_ACTORS = 8, 2
# An unroll may be late by seconds while other tests take the processors: nobody acts without it.
PATIENT_S = 60.0
# What a killed replay held is not waited for long. On a busy machine this leaves late unrolls out, too.
HASTY_S = 1.0


def config_of(run_dir: Path, max_wait_s: float) -> dict[str, object]:
    return {
        "run": {"dir": str(run_dir)},
        "launch": {"actors": NUM_ACTORS},
        # Two groups: all four of the run must have handed over before there is a batch.
        "actor": {"envs": NUM_ENVS, "groups": 2, "unroll_length": 16},
        "learner": {"batch_envs": NUM_ENVS * NUM_ACTORS},
        "policy": {"hidden_sizes": [16]},
        "algorithm": {"name": "ppo", "epochs": 1, "minibatches": 1, "max_wait_s": max_wait_s},
        # An actor that stands still for long is late, not gone: gone, it would bring nothing.
        "rpc": {"keepalive_timeout_s": PATIENT_S},
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


def start_all(run: Programs) -> None:
    for name in ("learner-0", "inference-0", "replay-0", "actor-0", "actor-1"):
        run.start(name)


def test_nothing_is_left_out_of_an_undisturbed_run(tmp_path: Path) -> None:
    with programs(build_config(config_of(tmp_path / "run", PATIENT_S))) as run:
        start_all(run)
        found = train_on(run, {}, 30)
        assert found["shoal_learner_outdated_steps_total"] == 0
        print(f"{found['shoal_learner_env_steps_total']:.0f} steps, all of lag 0")


def test_every_trained_step_is_of_the_newest_version_whoever_is_late_or_killed(tmp_path: Path) -> None:
    with programs(build_config(config_of(tmp_path / "run", HASTY_S))) as run:
        start_all(run)
        found = train_on(run, {}, 30)
        before = found["shoal_learner_outdated_steps_total"]

        def leaves_out_what_is_late() -> bool:
            """The other acts on without one that is late; what that one brings in the end is left out.

            It may be stopped in the one moment in which it owes nothing: then it has to be once more.
            """
            nonlocal found
            os.kill(run.pid("actor-1"), signal.SIGSTOP)
            train_on(run, learner_values(run), 3)
            os.kill(run.pid("actor-1"), signal.SIGCONT)
            found = train_on(run, learner_values(run), 3)
            return found["shoal_learner_outdated_steps_total"] > before

        run.until(leaves_out_what_is_late, "steps left out of an actor that was late")
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
