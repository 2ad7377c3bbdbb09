"""One line and exit code 2, before any engine is asked; and nothing is imported that is not needed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.cli.app import run
from shoal.cli.docker.engine import _no_engine
from shoal.cli.docker.interrupt import Interrupt

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scale", "actor"], "write it as SERVICE=N"),
        (["scale", "actor=many"], "write it as SERVICE=N"),
        (["scale", "actor=-1"], "write it as SERVICE=N"),
        (["scale", "actor=100000"], "write it as SERVICE=N"),
        (["scale", "replay-0=2"], "every replay shard is a service of its own"),
        (["scale", "learner=2"], "'learner' cannot be scaled, only actor and inference can"),
        (["scale", "actor=1", "actor=2"], "actor is there twice"),
        (["scale"], "Missing argument 'SERVICE=N...'"),
        (["up", "--until-return", "nan"], "--until-return nan: give a number"),
        (["up", "--actors", "-1"], "Invalid value for '--actors'"),
        (["up", "--project", "No Name"], "--project 'No Name': use small letters"),
        (["logs", "--tail", "-1"], "Invalid value for '--tail'"),
        (["chaos"], "say what is to happen: `shoal chaos --spot`"),
        (["chaos", "--spot", "--every", "0"], "--every 0: give a number from 1 to 86400"),
        (["chaos", "--spot", "--fraction", "2"], "--fraction 2: give a number from 0.001 to 1"),
        (["chaos", "--spot", "--fraction", "nan"], "--fraction nan"),
        (["chaos", "--spot", "--minutes", "-1"], "--minutes -1"),
        (["chaos", "--spot", "--notice", "soon"], "--notice 'soon': give seconds"),
        (["chaos", "--spot", "--back-after", "-5"], "--back-after -5"),
        (["chaos", "--spot", "--calm", "0"], "--calm 0"),
        (["chaos", "--spot", "--min-kept", "80"], "--min-kept 80: give a number from 0 to 10"),
        (["chaos", "--spot", "--json", "gone/out.json"], "there is no folder gone"),
    ],
)
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


@pytest.mark.parametrize("command", ["up", "down", "ps", "logs"])
def test_without_the_sdk(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "docker" else find(name))
    assert run([command]) == 2
    assert f"shoal {command} needs docker: pip install 'shoal[docker]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("('Connection aborted.', PermissionError(13, 'Permission denied'))", "user of the group `docker`"),
        ("('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))", "start one"),
        ("('Connection aborted.', ConnectionRefusedError(111, 'Connection refused'))", "set DOCKER_HOST"),
        ("Invalid bind address\nprotocol: x", "at tcp://host cannot be used: Invalid bind address protocol"),
    ],
)
def test_why_no_engine_answers(reason: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://host")
    assert message in _no_engine(RuntimeError(reason))


def test_other_commands_do_without_the_sdk() -> None:
    code = "import sys, shoal.cli.app; sys.exit(bool({'docker', 'requests', 'rich.live'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60, check=False
    )
    assert done.returncode == 0


def test_help_names_the_options(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["chaos", "--help"]) == 0
    text = capsys.readouterr().out
    for option in (
        "--spot", "--every", "--fraction", "--minutes", "--notice", "--back-after", "--calm", "--seed",
        "--prometheus", "--json", "--min-kept", "--project", "Exit codes:",
    ):  # fmt: skip
        assert option in text


def test_the_first_interrupt_is_a_request_and_the_second_an_end() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        assert not interrupt.wait(0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupt.wait(10)
        assert interrupt.exit_code == 143
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
