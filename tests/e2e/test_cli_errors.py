"""The user's mistakes: one line, exit code 2, and nothing left running.

Real services. Each test prints the line that a user would see.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from shoal.cli.run_dir import RunDir
from tests.e2e.cli_process import ShoalProcess, shoal

pytestmark = pytest.mark.timeout(240)


def refused(
    tmp_path: Path, *arguments: str, environment: dict[str, str] | None = None, made_nothing: bool = False
) -> str:
    """Runs `shoal train` and returns its one line of complaint."""
    with shoal("train", *arguments, cwd=tmp_path, environment=environment) as run:
        began = time.monotonic()
        code = run.wait()
        line = complaint(run, code)
        print(f"{time.monotonic() - began:.1f} s: {line}")
        assert not made_nothing or not (tmp_path / "runs").exists()
        assert not list(tmp_path.glob("runs/*")), "a run that never was leaves nothing"
        return line


def complaint(run: ShoalProcess, code: int) -> str:
    assert code == 2, f"{run.stdout}\n{run.stderr}"
    run.assert_nothing_left()
    lines = run.stderr.splitlines()
    assert len(lines) == 1, run.stderr
    assert lines[0].startswith("error: ")
    assert "Traceback" not in run.stdout
    assert lines[0].removeprefix("error: ") not in run.stdout, "said once"
    return lines[0]


def test_unknown_env(tmp_path: Path) -> None:
    line = refused(tmp_path, "CartPol-v1")
    assert "'CartPol-v1'" in line
    assert "did you mean 'CartPole-v1'?" in line


def test_unknown_config_key(tmp_path: Path) -> None:
    line = refused(tmp_path, "cartpole", "--set", "learner.batch_env=3", made_nothing=True)
    assert "unknown config key 'learner.batch_env': did you mean 'learner.batch_envs'?" in line


def test_value_out_of_bounds(tmp_path: Path) -> None:
    line = refused(tmp_path, "cartpole", "--set", "algorithm.discount=1.5", made_nothing=True)
    assert "'algorithm.discount'" in line
    assert "less than or equal to 1 (got 1.5)" in line


@pytest.mark.parametrize("service", ["learner", "inference"])
def test_cuda_without_a_gpu(tmp_path: Path, service: str) -> None:
    no_gpu = {"CUDA_VISIBLE_DEVICES": ""}
    line = refused(tmp_path, "cartpole", "--set", f"{service}.device=cuda", environment=no_gpu)
    assert f"{service}.device is 'cuda'" in line


@pytest.mark.parametrize("service", ["learner", "replay"])
def test_port_taken(tmp_path: Path, service: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        line = refused(tmp_path, "cartpole", "--set", f"{service}.listen.metrics={address}")
    assert address in line
    assert "in use" in line.lower()


@pytest.mark.parametrize("root", ["file/run", "/proc/shoal-run"])
def test_unwritable_run_directory(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    line = refused(tmp_path, "cartpole", "--run-dir", root)
    assert f"cannot write run directory {root}" in line
    assert "--run-dir" in line


def test_checkpoint_of_another_spec(tmp_path: Path) -> None:
    small = ("--algo", "impala", "--envs-per-actor", "8", "--set", "learner.batch_envs=4", "--run-dir", "run")
    with shoal("train", "CartPole-v1", "--steps", "500", *small, cwd=tmp_path) as run:
        assert run.wait() == 0, f"{run.stdout}\n{run.stderr}"
    run_dir = RunDir(tmp_path / "run")
    config, result = run_dir.config.read_text(), run_dir.read_result()
    line = refused(tmp_path, "--resume", "run", "--set", "env.id=Acrobot-v1")
    assert "CartPole-v1" in line
    assert "Acrobot-v1" in line
    assert (run_dir.config.read_text(), run_dir.read_result()) == (config, result)
    assert "Acrobot-v1" in run_dir.report.read_text(), "the report tells of the refusal"
    with shoal("train", "--resume", "run", "--steps", "1000", cwd=tmp_path) as run:
        assert run.wait() == 0, f"{run.stdout}\n{run.stderr}"
    assert run_dir.read_result()["env_steps"] >= 1000


def test_run_directory_in_use(tmp_path: Path) -> None:
    with shoal("train", "cartpole", "--run-dir", "run", cwd=tmp_path) as first:
        first.until(lambda: RunDir(tmp_path / "run").config.exists(), "run directory")
        line = refused(tmp_path, "cartpole", "--run-dir", "run")
        assert f"run directory run is in use by another run (process {first.process.pid})" in line
        assert first.process.poll() is None, "the first run goes on"
