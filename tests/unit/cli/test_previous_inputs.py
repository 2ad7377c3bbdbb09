"""`shoal eval` and `shoal export` of recurrent policies, which see the previous action and reward."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli.app import run
from shoal.envs.previous import with_previous
from tests.unit.cli.saved_runs import config_of, save_run, specs_of

LSTM = ("policy.recurrent=lstm", "policy.recurrent_size=4")


@pytest.mark.parametrize("is_shown", [True, False])
def test_the_checkpoint_says_what_is_shown(tmp_path: Path, is_shown: bool) -> None:
    """Those of releases that showed neither are played as they were."""
    config = config_of("env.id=CartPole-v1", *LSTM)
    specs = specs_of(config)
    if is_shown:
        specs = {name: with_previous(spec) for name, spec in specs.items()}
    root = str(save_run(tmp_path / "run", config, specs))
    assert run(["eval", root, "--episodes", "2", "--envs", "2"]) == 0
    out = tmp_path / "policy.pt2"
    assert run(["export", root, "--out", str(out)]) == 0
    record = json.loads(out.with_name("policy.pt2.json").read_text())
    meanings = {array["name"]: array["meaning"] for array in record["inputs"]}
    assert ("previous.action" in meanings) is is_shown
    if is_shown:
        assert meanings["previous.action"].startswith("the action of the step before, counted from 1")
        assert meanings["previous.reward"].startswith("sign(r) log(1 + |r|)")
