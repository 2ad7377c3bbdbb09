"""result.json: how a run ended, for people and scripts.

The learner writes it when a stop condition is met, with its own figures: of several policies, those of the
one that ended the run, and beside it those of each. `shoal train` then adds why and how the run as a whole
ended, and writes the file itself for every other end. Called when all has stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shoal.cli.charts import duration
from shoal.cli.files import write_whole
from shoal.cli.history import Sample
from shoal.cli.learned import compared, not_learned, note_advice
from shoal.cli.run_dir import RunDir
from shoal.cli.supervisor import End, Outcome
from shoal.config import Config


def complete_result(
    config: Config,
    run_dir: RunDir,
    outcome: Outcome,
    last: Sample,
    wall_clock_s: float,
    before: Mapping[str, Any],
) -> dict[str, Any]:
    """The whole record: what the learner wrote, if it did, and how the run ended.

    `before` is that of the session before, if the run was resumed.
    """
    record = run_dir.read_result()
    record.setdefault("mean_return", last.episode_return)
    record.setdefault("env_steps", last.env_steps)
    record.setdefault("untrained_return", last.untrained_return)
    if policies := run_dir.read_policy_results():
        record["policies"] = policies
    note_advice(record, config)
    record["end"] = outcome.end.value
    record["message"] = _message(outcome, record, before)
    record["exit_code"] = outcome.exit_code
    record["wall_clock_s"] = round(wall_clock_s, 3)
    return record


def write_result(run_dir: RunDir, record: dict[str, Any]) -> None:
    """As a whole or not at all. Raises OSError."""
    write_whole(run_dir.result, (json.dumps(record, indent=2) + "\n").encode())


def summary(record: dict[str, Any], run_dir: RunDir) -> list[str]:
    """The last lines that a user sees of a run."""
    mean, steps = record.get("mean_return"), record.get("env_steps")
    reached = (
        "no episode finished" if mean is None else f"return {mean:,.1f}{_of_policy(record)}{compared(record)}"
    )
    trained = "no environment step trained on" if not steps else f"{steps:,} environment steps"
    return [
        *not_learned(record),
        f"{reached}, {trained}, {duration(record['wall_clock_s'])}",
        f"report: {run_dir.report}",
        f"run directory: {run_dir.root}",
    ]


def _message(outcome: Outcome, record: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    if outcome.end is not End.FINISHED:
        return outcome.message
    reason, whose = record.get("reason"), _of_policy(record)
    was_over = before.get("env_steps") == record["env_steps"]
    if reason == "until_return":
        hint = ", and had before: to go on, give a higher --until-return" if was_over else ""
        return f"the mean return of 100 episodes reached {record['mean_return']:,.1f}{whose}{hint}"
    if reason == "steps":
        hint = ", and were before: to go on, give more --steps" if was_over else ""
        return f"{record['env_steps']:,} environment steps{whose} are made{hint}"
    return outcome.message


def _of_policy(record: Mapping[str, Any]) -> str:
    """Whose figures they are, where there are several."""
    return f" of policy {record['policy']}" if record.get("policies") and "policy" in record else ""
