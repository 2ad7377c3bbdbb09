"""A run that learns nothing says so, and one that learns does not: real processes, by their last lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shoal.cli.history import read_history
from shoal.cli.run_dir import RunDir
from shoal.untrained import NAME, encode_untrained
from tests.e2e.cli_process import shoal

pytestmark = pytest.mark.timeout(360)

# Synchronous: what is learnt in so many steps does not depend on how busy the machine is.
RUN = ("train", "ppo_cartpole", "--steps", "40000", "--run-dir", "run", "--seed", "3")


def test_a_run_that_learns_nothing_says_so_with_the_untrained_policys_return(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    # Of a run that never got a checkpoint, in another environment: it must not count.
    (tmp_path / "run" / NAME).write_bytes(encode_untrained({"policy": [-500.0] * 10}))
    with shoal(*RUN, "--set", "algorithm.learning_rate=1e-9", cwd=tmp_path) as run:
        assert run.wait() == 0, f"{run.stdout}\n{run.stderr}"
        *_, verdict, reached, _, _ = run.stdout.splitlines()
    print(verdict)
    number = r"\d+\.\d"
    assert re.fullmatch(
        rf"has not learned: mean return {number} after 4\S+k steps, the untrained policy's was {number}; "
        r"train for longer, or try .*another algorithm\.learning_rate \(now 1e-09\)",
        verdict,
    )
    assert re.match(rf"return {number} \(untrained {number}\), ", reached)
    run_dir = RunDir(tmp_path / "run")
    result = run_dir.read_result()
    assert result["has_learned"] is False
    # Balancing a pole by chance: every environment's first episode, and those that followed before an update.
    assert 10 < result["untrained_return"] < 40
    assert result["untrained_episodes"] >= 32
    assert "has not learned" in run_dir.report.read_text()
    samples, _ = read_history(run_dir.history)
    assert samples[-1].untrained_return == result["untrained_return"]


def test_one_that_learns_says_what_it_reached_and_from_where(tmp_path: Path) -> None:
    with shoal(*RUN, cwd=tmp_path) as run:
        assert run.wait() == 0, f"{run.stdout}\n{run.stderr}"
        *_, stopped, reached, _, _ = run.stdout.splitlines()
    print(reached)
    assert stopped.startswith("stopped: ")
    assert "has not learned" not in run.stdout
    # Of the last 100 episodes, and of those among them that are newer where some are old.
    assert re.match(r"return \d+\.\d \(untrained \d\d\.\d(, last \d+ episodes \d+\.\d)?\), ", reached)
    result = RunDir(tmp_path / "run").read_result()
    assert result["has_learned"] is True
    assert result["mean_return"] > 2 * result["untrained_return"]
