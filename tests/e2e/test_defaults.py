"""Whatever is brought learns: spaces of every kind, with no setting but the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.cli_process import ROOT, trained

pytestmark = pytest.mark.timeout(400)

TASKS = ROOT / "tests/e2e/small_tasks.py"


@pytest.mark.parametrize(
    ("task", "score", "untrained"),
    [
        ("DictTask", 7.5, 2.5),
        ("GridTask", 7.5, 2.5),
        ("OffsetBoxTask", 2.5, -2.0),
        ("MultiDiscreteTask", 7.0, 2.9),
    ],
)
def test_a_task_of_any_kind_is_learned(tmp_path: Path, task: str, score: float, untrained: float) -> None:
    """`untrained` is what a policy earns that knows nothing; 10 is the best."""
    result = trained(tmp_path, f"{TASKS}:{task}", "--until-return", str(score), "--steps", "60000")
    print(f"{task}: {result['mean_return']:.2f} after {result['env_steps']} steps, untrained {untrained}")
    assert result["reason"] == "until_return"
    assert result["mean_return"] >= score > untrained
    # Of random play before the run, with a spread of some points.
    assert result["untrained_episodes"] == 100
    assert abs(result["untrained_return"] - untrained) < 1.5


@pytest.mark.long
def test_what_was_seen_thirty_steps_ago_is_recalled(tmp_path: Path) -> None:
    """One flag makes the policy recurrent; without a memory it is 0.5 for good."""
    arguments = ("--set", "policy.recurrent=lstm", "--until-return", "0.9", "--steps", "300000")
    result = trained(tmp_path, f"{TASKS}:RecallTask", *arguments)
    print(f"recall: {result['mean_return']:.2f} after {result['env_steps']} steps")
    assert result["reason"] == "until_return"
