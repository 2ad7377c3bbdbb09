"""One line and exit code 2 for what the user got wrong; nothing is started here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shoal import __version__
from shoal.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "No such command 'trian'"),
        (["train"], "Missing argument 'WHAT'"),
        (["train", "X-v0", "--bogus"], "No such option: --bogus"),
        (["train", "X-v0", "--actors", "many"], "Invalid value for '--actors'"),
        (["train", "X-v0", "--actors", "0"], "input should be greater than or equal to 1 (got 0)"),
        (["train", "X-v0", "--set", "actor.envs"], "write it as section.field=value"),
        (["train", "X-v0", "--set", "actor.enws=3"], "did you mean 'actor.envs'?"),
        (["train", "X-v0", "--envs-per-actor", "5"], "envs (5) must be a multiple of groups (2)"),
        (["train", "X-v0", "--minutes", "-1"], "config key 'stop.minutes'"),
        (["train", "cartpol"], "did you mean 'cartpole'?"),
        (["train", "none.yaml"], "no config file none.yaml"),
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
        "--actors", "--envs-per-actor", "--evaluators", "--inference", "--replay-shards", "--seed",
        "--until-return", "--steps", "--minutes", "--run-dir", "--set", "--plain",
    ):  # fmt: skip
        assert flag in text


def test_command_starts_without_what_only_services_need() -> None:
    """Half a second of imports before the first process starts would be half a second of every run."""
    code = "import sys, shoal.cli.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "grpc", "numpy", "gymnasium", "prometheus_client", "services"}
