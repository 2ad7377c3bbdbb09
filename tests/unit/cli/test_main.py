"""One line and exit code 2 for what the user got wrong; nothing is started here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal import __version__
from shoal.cli.app import run
from shoal.cli.presets import PRESETS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "No such command 'trian'"),
        (["train"], "give WHAT to train (a preset, an env id or a .yaml file), or --resume RUN"),
        (["train", "X-v0", "--resume", "run"], "leave out WHAT (X-v0), change values with --set"),
        (["train", "--resume", "run", "--run-dir", "r"], "leave out --run-dir"),
        (["train", "--resume", "run"], "--resume run: that is no directory"),
        (["train", "X-v0", "--bogus"], "No such option: --bogus"),
        (["train", "X-v0", "--actors", "many"], "Invalid value for '--actors'"),
        (["train", "X-v0", "--actors", "0"], "input should be greater than or equal to 1 (got 0)"),
        (["train", "X-v0", "--set", "actor.envs"], "write it as section.field=value"),
        (["train", "X-v0", "--set", "actor.enws=3"], "did you mean 'actor.envs'?"),
        (
            ["train", "X-v0", "--envs-per-actor", "5", "--set", "actor.groups=2"],
            "envs (5) must be a multiple of groups (2)",
        ),
        (["train", "X-v0", "--algo", "dqn"], "'dqn' is not one of the algorithms ppo, impala, appo, "),
        (["train", "X-v0"], "unknown environment 'X-v0'"),
        (["train", "Pendulum-v1", "--algo", "apex"], "apex needs Discrete actions, and Pendulum-v1 has Box"),
        (["train", "X-v0", "--minutes", "-1"], "config key 'stop.minutes'"),
        (["train", "cartpol"], "did you mean 'cartpole'?"),
        (["train", "none.yaml"], "no config file none.yaml"),
        (["train", ""], "no preset ''"),
        (["train", "cartpole", "--run-dir", ""], "--run-dir is empty"),
    ],
)  # fmt: skip
def test_mistakes(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert list(tmp_path.iterdir()) == [], "nothing was made"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["cartpole", "--run-dir", "run"],
            "run holds a run that has checkpoints: go on with it by --resume run",
        ),
        (["--resume", "run", "--set", "run.dir=other"], "run.dir cannot be set to other"),
    ],
)
def test_a_run_is_gone_on_with_in_one_way_only(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "checkpoints" / "000001-step-5").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("env: {id: X-v0}\n")
    assert run(["train", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"shoal {__version__}\n"
    assert run([]) == 0
    assert "train" in capsys.readouterr().out


def test_help_names_every_axis(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["train", "--help"]) == 0
    text = capsys.readouterr().out
    for flag in (
        "--algo", "--dry-run",
        "--actors", "--envs-per-actor", "--evaluators", "--inference", "--replay-shards", "--seed",
        "--until-return", "--steps", "--minutes", "--run-dir", "--resume", "--set", "--plain",
    ):  # fmt: skip
        assert flag in text


def test_help_names_every_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert run(["train", "--help"]) == 0
    text = capsys.readouterr().out
    for code in (
        "0 finished",
        "1 given up",
        "2 for you to mend",
        "130 by SIGINT",
        "143 by SIGTERM",
        "129 by SIGHUP",
    ):
        assert code in text


INTERRUPTED_IMPORT = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from shoal.cli.main import main
main()
"""


def test_ctrl_c_during_imports_is_quiet() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-", ">&- 2>&-"])
@pytest.mark.parametrize("arguments", ["--version", "--help", "report run"])
def test_output_that_cannot_be_written(tmp_path: Path, arguments: str, redirection: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "history.jsonl").touch()
    command = f"'{sys.executable}' -m shoal.cli {arguments} {redirection}"
    environment = os.environ | {"PYTHONPATH": str(PRESETS.parent)}
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60
    )
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") <= 1
    assert done.returncode in (0, 1)
    assert arguments != "report run" or (done.returncode == 0 and (tmp_path / "run/report.html").exists())


def test_command_starts_without_what_only_services_need() -> None:
    """Half a second of imports before the first process starts would be half a second of every run."""
    code = "import sys, shoal.cli.app; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "grpc", "numpy", "gymnasium", "prometheus_client", "services"}
