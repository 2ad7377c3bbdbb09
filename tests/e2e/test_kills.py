"""`kill -9` of each service once during one run: it still learns, versions never go back, lives never mix."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from shoal.cli.history import Sample, read_history
from shoal.cli.run_dir import RunDir
from tests.e2e.cli_process import ShoalProcess, shoal
from tests.e2e.replay_tap import ReplayTap, Seen

pytestmark = pytest.mark.timeout(500)

TOKEN = "one-token-for-the-run-and-for-the-tap"


def last_sample(run_dir: RunDir) -> Sample:
    samples, _ = read_history(run_dir.history)
    return samples[-1] if samples else Sample(0.0)


def kill_and_await(run: ShoalProcess, run_dir: RunDir, service: str, num_restarts: int) -> None:
    """Kills the service and waits until it is back and training has gone on for some steps."""
    old = run.pid_of(service)
    os.kill(old, signal.SIGKILL)
    run.until(lambda: last_sample(run_dir).num_restarts == num_restarts, f"restart of {service}")
    run.until(lambda: run.pid_of(service) != old, f"new {service}")
    version = last_sample(run_dir).policy_version or 0
    run.until(lambda: (last_sample(run_dir).policy_version or 0) > version + 20, "further training")


def test_each_service_is_killed_once_and_the_run_still_learns(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    overrides = ("--set", "env.id=tests.e2e.life_env:LifeCartPole-v0")
    overrides += ("--set", "learner.checkpoint_every_s=1")
    secret = {"SHOAL__SECURITY__TOKEN": TOKEN}
    with shoal("train", "cartpole", *overrides, "--run-dir", "run", cwd=tmp_path, environment=secret) as run:
        run.until_training()
        sockets = next(run.sockets.glob("*/replay-0.sock"))
        tap = ReplayTap(sockets, TOKEN)
        run.until(lambda: bool(tap.seen), "trajectory of the first life")
        for number, service in enumerate(("actor", "replay", "inference", "learner"), start=1):
            kill_and_await(run, run_dir, service, number)
        run.until(lambda: (last_sample(run_dir).episode_return or 0) >= 475, "mean return of 475")
        seen = tap.stop()
        run.send(signal.SIGTERM)
        assert run.wait() == 143
        run.assert_nothing_left()
    samples, events = read_history(run_dir.history)
    print(f"{len(seen)} trajectories looked at, {samples[-1].env_steps:,} steps", *events, sep="\n")
    assert samples[-1].num_restarts == 4
    versions = [sample.policy_version for sample in samples if sample.policy_version]
    assert versions == sorted(versions)
    check_lives(seen)
    check_versions(seen)


def check_lives(seen: list[Seen]) -> None:
    """Every trajectory comes from one life, and every run_id stands for one life."""
    observed = defaultdict(set)
    for item in seen:
        assert len(item.observed_lives) == 1, f"a trajectory of {item.life} mixes lives"
        observed[item.life.run_id] |= item.observed_lives
    assert len(observed) == 2, "the actor was killed once, so there were two lives"
    assert all(len(lives) == 1 for lives in observed.values())
    assert len(set.union(*observed.values())) == 2


def check_versions(seen: list[Seen]) -> None:
    """Within a trajectory and from one to the next of a life, the version that acted never goes back."""
    newest: dict[str, int] = {}
    for item in sorted(seen, key=lambda item: item.sequence):
        assert (item.versions[1:] >= item.versions[:-1]).all()
        last = int(item.versions[-1].max())
        assert last >= newest.get(item.life.run_id, -1), f"version went back to {last} in {item.life}"
        newest[item.life.run_id] = last
