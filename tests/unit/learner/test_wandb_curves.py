"""Curves for Weights & Biases, against a stand-in for its library that writes down how it is called."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from services.learner.summaries import Several, Summaries
from services.learner.wandb_curves import WandbCurves, check_installed
from shoal.config import Config
from shoal.config.policies import policy_places
from shoal.errors import UserError

STAND_IN = """
import json, os

class Run:
    def __init__(self, settings): self.told = [("init", settings)]
    def define_metric(self, name, step_metric): self.told.append(("define", name, step_metric))
    def log(self, values): self.told.append(("log", values))
    def finish(self):
        with open(os.environ["WANDB_TOLD"], "a") as file:
            file.write(json.dumps(self.told) + "\\n")

def init(**settings):
    if os.environ.get("WANDB_FAILS"):
        raise RuntimeError("no such project")
    return Run(settings)
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "wandb.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setenv("WANDB_TOLD", str(tmp_path / "told.jsonl"))
    return tmp_path / "told.jsonl"


def config_of(tmp_path: Path, **changes: Any) -> Config:
    run = {"dir": str(tmp_path / "run"), "name": "mine", "wandb": True, "wandb_project": "fish"}
    (tmp_path / "run").mkdir(exist_ok=True)
    return Config.model_validate({"run": run, "security": {"token": "very-secret"}} | changes)


def life(config: Config, *steps: int) -> None:
    (place,) = policy_places(config)
    curves = WandbCurves(config, place)
    for step in steps:
        curves.add(step, {"episode/return": step / 10})
    curves.close()


def test_values_go_to_one_run_over_all_lives(tmp_path: Path, told: Path) -> None:
    config = config_of(tmp_path)
    life(config, 10, 20)
    life(config, 30)
    first, second = (json.loads(line) for line in told.read_text().splitlines())
    settings = first[0][1]
    assert (settings["project"], settings["name"], settings["resume"]) == ("fish", "mine", "allow")
    assert settings["dir"] == str(tmp_path / "run")
    assert settings["config"]["run"]["name"] == "mine"
    assert "very-secret" not in told.read_text()
    assert second[0][1]["id"] == settings["id"]
    assert first[1] == ["define", "*", "env_steps"]
    assert first[2:] == [
        ["log", {"env_steps": 10, "episode/return": 1.0}],
        ["log", {"env_steps": 20, "episode/return": 2.0}],
    ]


def test_nothing_is_started_before_there_is_a_value(tmp_path: Path, told: Path) -> None:
    life(config_of(tmp_path))
    assert not told.exists()
    assert not (tmp_path / "run" / "wandb_id").exists()


def test_what_goes_wrong_there_is_said_once_and_costs_no_other_curves(
    tmp_path: Path, told: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_FAILS", "1")
    config = config_of(tmp_path)
    (place,) = policy_places(config)
    both = Several([Summaries(tmp_path / "tensorboard"), WandbCurves(config, place)])
    for step in range(3):
        both.add(step, {"episode/return": 1.0})
    both.close()
    (record,) = caplog.records
    assert "no more curves for Weights & Biases: RuntimeError('no such project')" in record.getMessage()
    assert list((tmp_path / "tensorboard").iterdir())


def test_without_the_library_the_run_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"run\.wandb needs wandb: pip install 'shoal\[wandb\]'"):
        check_installed(config_of(tmp_path))
    check_installed(Config())
