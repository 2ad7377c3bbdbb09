"""Learning from a replay, in whole runs: Ape-X from prioritised transitions, R2D2 from sequences."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.cli_process import ROOT, trained

pytestmark = pytest.mark.timeout(400)

MEMORY_TASK = f"env.id={ROOT / 'examples' / 'memory_task.py'}:make"


def test_cartpole_is_learned_from_a_prioritised_replay(tmp_path: Path) -> None:
    result = trained(tmp_path, "apex_cartpole", "--until-return", "475", "--steps", "200000")
    assert result["reason"] == "until_return"


@pytest.mark.parametrize(("recurrent", "reason"), [("lstm", "until_return"), ("none", "steps")])
def test_a_cue_is_remembered_with_an_lstm_and_not_without(
    tmp_path: Path, recurrent: str, reason: str
) -> None:
    """Four cues, asked for ten steps later: right by chance once in four times."""
    limits = ("--until-return", "0.95", "--steps", "100000" if recurrent == "lstm" else "40000")
    settings = ("--set", MEMORY_TASK, "--set", f"policy.recurrent={recurrent}")
    result = trained(tmp_path, "r2d2_memory", *limits, *settings)
    assert result["reason"] == reason
    if recurrent == "none":
        assert result["mean_return"] < 0.5
