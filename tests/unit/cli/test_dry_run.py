"""`shoal train --dry-run`: the effective configuration with origins, and nothing is started or made."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from shoal.cli import task, train
from shoal.cli.app import run


@pytest.fixture(autouse=True)
def _nothing_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def start(*_: object, **__: object) -> int:
        raise AssertionError("a dry run starts nothing")

    monkeypatch.setattr(train, "run_session", start)
    monkeypatch.chdir(tmp_path)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, dict[str, tuple[object, str]]]:
    """The lines before the first value, and value and origin of each key."""
    assert run(["train", *arguments, "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    introduction, values = [], {}
    for line in captured.out.splitlines():
        text, mark, origin = line.rpartition("  # ")
        if mark:
            key, _, value = text.partition(": ")
            values[key] = (yaml.safe_load(value), origin)
        else:
            introduction.append(line)
    assert list(Path.cwd().iterdir()) == [], "nothing is made"
    return "\n".join(introduction), values


def test_an_environment_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    said, values = shown(capsys, "Pendulum-v1", "--seed", "7")
    assert said == (
        "Pendulum-v1: observation float32[3] within -8..8 -> Box[1] within -2..2: ppo (synchronous PPO), "
        "as steps are cheap; if they are dear: --algo sac"
    )
    assert values["env.id"] == ("Pendulum-v1", "flag")
    assert values["run.seed"] == (7, "flag")
    # Because actions are real numbers.
    assert values["policy.initial_log_std"] == (-0.5, "profile ppo")
    assert values["learner.batch_envs"] == (64, "derived")
    assert values["learner.keep_checkpoints"][1] == "default"


def test_an_algorithm_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    said, values = shown(capsys, "Pendulum-v1", "--algo", "sac", "--set", "algorithm.discount=0.98")
    assert (
        said
        == "Pendulum-v1: observation float32[3] within -8..8 -> Box[1] within -2..2: sac (SAC, from a replay)"
    )
    assert values["algorithm.name"] == ("sac", "flag")
    assert values["replay.tables.train.discount"] == (0.98, "derived")


def test_a_preset_is_not_looked_at(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(task, "look_at")
    said, values = shown(capsys, "apex_cartpole")
    assert said == ""
    value, origin = values["replay.tables.train.max_items"]
    assert (value, Path(origin).name) == (200_000, "apex_cartpole.yaml")
    assert values["exploration.epsilon"] == (0.2, "profile apex")
    assert values["replay.tables.train.n_step"] == (4, "derived")
