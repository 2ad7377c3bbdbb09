"""`shoal train` with the real services: what it leaves, how it stops, and that nothing outlives it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import yaml

from shoal.cli.history import read_history
from shoal.cli.run_dir import RunDir
from tests.e2e.cli_process import ShoalProcess, shoal

pytestmark = pytest.mark.timeout(360)

SMALL = ("--envs-per-actor", "16", "--set", "learner.batch_envs=8", "--run-dir", "run")


def checkpoints(run_dir: RunDir) -> list[Path]:
    return list((run_dir.root / "checkpoints").glob("[0-9]*"))


def assert_complete(run_dir: RunDir, run: ShoalProcess) -> None:
    """What every run that got as far as training leaves behind."""
    assert checkpoints(run_dir)
    assert "<svg" in run_dir.report.read_text()
    saved = yaml.safe_load(run_dir.config.read_text())
    assert "token" not in saved["security"]
    for process in ("actor-0", "inference-0", "replay-0", "learner-0"):
        assert run_dir.log(process).read_text()
    tail = run.stdout.splitlines()[-2:]
    assert tail == ["report: run/report.html", "run directory: run"]


def test_a_run_of_every_service_finishes_and_is_resumed(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    axes = ("--actors", "2", "--inference", "2", "--replay-shards", "2", "--evaluators", "1", "--seed", "5")
    with shoal("train", "cartpole", "--steps", "60000", *axes, *SMALL, cwd=tmp_path) as run:
        assert run.wait() == 0, f"{run.stdout}\n{run.stderr}"
        assert run.stderr == ""
        run.assert_nothing_left()
        assert_complete(run_dir, run)
    result = json.loads(run_dir.result.read_text())
    assert result["reason"] == "steps"
    assert (result["end"], result["exit_code"]) == ("finished", 0)
    assert result["env_steps"] >= 60_000
    samples, _ = read_history(run_dir.history)
    assert samples[-1].env_steps == result["env_steps"]
    assert set(samples[-1].phases) == {"actor", "evaluator", "inference", "replay", "learner"}
    print(samples[-1].load)

    with shoal("train", "--resume", "run", "--steps", "80000", cwd=tmp_path) as run:
        assert run.wait() == 0, f"{run.stdout}\n{run.stderr}"
    again = json.loads(run_dir.result.read_text())
    assert again["env_steps"] >= 80_000
    resumed, _ = read_history(run_dir.history)
    assert resumed[: len(samples)] == samples
    assert resumed[-1].time_s > samples[-1].time_s
    assert again["policy_version"] > result["policy_version"]


def test_ctrl_c_drains(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    with shoal("train", "cartpole", *SMALL, cwd=tmp_path) as run:
        run.until_training()
        began = time.monotonic()
        run.send(signal.SIGINT)
        assert run.wait() == 130
        print(f"drained in {time.monotonic() - began:.1f} s")
        run.assert_nothing_left()
        assert_complete(run_dir, run)
        assert "was killed" not in run.stdout
        assert json.loads(run_dir.result.read_text())["end"] == "interrupted"


def test_a_killed_supervisor_leaves_nothing_running(tmp_path: Path) -> None:
    with shoal("train", "cartpole", *SMALL, cwd=tmp_path) as run:
        run.until_training()
        assert len(run.running()) >= 6
        run.send(signal.SIGKILL)
        assert run.wait() == -signal.SIGKILL
        began = time.monotonic()
        run.assert_nothing_left()
        print(f"everything gone {time.monotonic() - began:.2f} s after kill -9")
    os.close(RunDir(tmp_path / "run").claim())


@pytest.mark.parametrize("service", ["actor", "replay"])
def test_a_killed_service_is_started_again(tmp_path: Path, service: str) -> None:
    with shoal("train", "cartpole", "--minutes", "4", *SMALL, cwd=tmp_path) as run:
        run.until_training()
        old = run.pid_of(service)
        os.kill(old, signal.SIGKILL)
        said = f"{service}-0 was killed by SIGKILL; restarting in 0.2 s"
        run.until(lambda: said in run.stdout, "word of the restart")
        run.until(lambda: run.pid_of(service) != old, f"new {service}")
        run.until(lambda: "restarts 1  up 4/4" in run.stdout, f"{service} that is up again")
        run.send(signal.SIGTERM)
        assert run.wait() == 143
    _, events = read_history(RunDir(tmp_path / "run").history)
    assert any(said in event.text for event in events)


MINE = """
import gymnasium as gym
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

gym.register("Mine-v0", entry_point=CartPoleEnv, max_episode_steps=100)
"""


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_environment_in_the_working_directory(tmp_path: Path, vectorization: str) -> None:
    """It is found, and nothing else that lies there is taken for a module of ours."""
    (tmp_path / "mine.py").write_text(MINE)
    for name in ("yaml.py", "grpc.py", "shoal.py", "services.py"):
        (tmp_path / name).write_text("raise RuntimeError('taken for a library')")
    few = ("--envs-per-actor", "4", "--set", "learner.batch_envs=4", "--run-dir", "run")
    how = ("--steps", "500", "--set", f"env.vectorization={vectorization}")
    with shoal("train", "mine:Mine-v0", *how, *few, cwd=tmp_path) as run:
        assert run.wait() == 0, f"{run.stdout}\n{run.stderr}"


def test_a_terminal_that_is_closed_does_not_cost_the_report(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    master, slave = os.openpty()
    with shoal("train", "cartpole", *SMALL, cwd=tmp_path, stdout=slave) as run:
        os.close(slave)
        screen = b""
        while b"steps/s" not in screen:
            screen += os.read(master, 1 << 16)
        os.close(master)
        run.send(signal.SIGHUP)
        assert run.wait() == 129
        run.assert_nothing_left()
        assert run.stderr == ""
    assert json.loads(run_dir.result.read_text())["end"] == "interrupted"
    assert "<svg" in run_dir.report.read_text()


def test_output_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        command = ("train", "cartpole", "--steps", "500", *SMALL)
        with shoal(*command, cwd=tmp_path, stdout=full.fileno()) as run:
            assert run.wait() == 0, run.stderr
            assert run.stderr == ""
    assert RunDir(tmp_path / "run").report.exists()
