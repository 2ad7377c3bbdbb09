"""result.json and the last lines: the learner's figures and how the run ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.history import Sample
from shoal.cli.result import complete_result, summary, write_result
from shoal.cli.run_dir import RunDir
from shoal.cli.supervisor import FINISHED, End, Outcome
from shoal.config import Config

LAST = Sample(12.0, env_steps=900, episode_return=20.0)
LEARNER = {"mean_return": 476.25, "env_steps": 123_456, "learner_steps": 7}


def complete(
    directory: Path,
    outcome: Outcome,
    learner: dict[str, Any] | None = None,
    before: dict[str, Any] | None = None,
) -> dict[str, Any]:
    run_dir = RunDir(directory)
    if learner is not None:
        run_dir.result.write_text(json.dumps(learner))
    return complete_result(Config(), run_dir, outcome, LAST, 14.5678, before or {})


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("until_return", "the mean return of 100 episodes reached 476.2"),
        ("steps", "123,456 environment steps are made"),
    ],
)
def test_finished(tmp_path: Path, reason: str, message: str) -> None:
    record = complete(tmp_path, FINISHED, {"reason": reason, **LEARNER})
    assert record["message"] == message
    assert (record["end"], record["exit_code"], record["wall_clock_s"]) == ("finished", 0, 14.568)
    assert (record["env_steps"], record["learner_steps"]) == (123_456, 7), "the learner's own figures stay"


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("until_return", "reached 476.2, and had before: to go on, give a higher --until-return"),
        ("steps", "123,456 environment steps are made, and were before: to go on, give more --steps"),
    ],
)
def test_a_session_that_had_nothing_to_do_says_what_is_missing(
    tmp_path: Path, reason: str, message: str
) -> None:
    learner = {"reason": reason, **LEARNER}
    assert complete(tmp_path, FINISHED, learner, before=LEARNER)["message"].endswith(message)
    went_on = complete(tmp_path, FINISHED, learner, before={"env_steps": 100})
    assert "before" not in went_on["message"]


def test_without_the_learners_word_the_last_sample_counts(tmp_path: Path) -> None:
    record = complete(tmp_path, Outcome(End.GAVE_UP, 1, "actor-0 crashed"))
    assert (record["mean_return"], record["env_steps"], record["message"]) == (20.0, 900, "actor-0 crashed")


def test_interrupted_run_has_the_learners_figures(tmp_path: Path) -> None:
    record = complete(tmp_path, Outcome(End.INTERRUPTED, 130, "by hand"), {"reason": "stopped", **LEARNER})
    assert (record["end"], record["mean_return"], record["message"]) == ("interrupted", 476.25, "by hand")


def test_written_whole(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    write_result(run_dir, {"end": "finished"})
    assert run_dir.read_result() == {"end": "finished"}
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_last_lines() -> None:
    run_dir = RunDir(Path("runs/x"))
    record = {"mean_return": 476.25, "env_steps": 123_456, "wall_clock_s": 75.0}
    assert summary(record, run_dir) == [
        "return 476.2, 123,456 environment steps, 1 min 15 s",
        "report: runs/x/report.html",
        "run directory: runs/x",
    ]
    nothing = {"mean_return": None, "env_steps": None, "wall_clock_s": 1.0}
    assert summary(nothing, run_dir)[0] == "no episode finished, no environment step trained on, 1.0 s"


def test_of_several_policies_it_is_said_whose_figures_these_are(tmp_path: Path) -> None:
    for name, steps in (("red", 5), ("blue", 123_456)):
        directory = tmp_path / "policies" / name
        directory.mkdir(parents=True)
        (directory / "result.json").write_text(json.dumps({"policy": name, "env_steps": steps}))
    record = complete(tmp_path, FINISHED, {"reason": "steps", "policy": "blue", **LEARNER})
    assert record["message"] == "123,456 environment steps of policy blue are made"
    assert {name: found["env_steps"] for name, found in record["policies"].items()} == {
        "red": 5,
        "blue": 123_456,
    }
    assert summary(record, RunDir(tmp_path))[0].startswith("return 476.2 of policy blue, 123,456 ")
    reached = complete(tmp_path, FINISHED, {"reason": "until_return", "policy": "red", **LEARNER})
    assert reached["message"] == "the mean return of 100 episodes reached 476.2 of policy red"


def test_of_one_policy_its_name_is_not_said(tmp_path: Path) -> None:
    record = complete(tmp_path, FINISHED, {"reason": "steps", "policy": "policy", **LEARNER})
    assert record["message"] == "123,456 environment steps are made"
    assert "policies" not in record
