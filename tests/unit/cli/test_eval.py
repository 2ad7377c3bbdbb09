"""`shoal eval` on runs that were just saved: scores, files, errors. Which episodes count: test_evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.app import run
from shoal.records import ArraySpec, DiscreteAction, EnvSpec
from tests.unit.cli.saved_runs import config_of, save_run

ENVS = Path(__file__).with_name("filmed_env.py")
COUNTDOWN = f"env.id={ENVS}:Countdown"


def scores(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = run(["eval", *arguments, "--json"])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    found: dict[str, Any] = json.loads(captured.out)
    return found


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["eval", *arguments]) == 2
    text = capsys.readouterr().err
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    return text


def test_scores_are_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = save_run(tmp_path / "run", config_of(COUNTDOWN, "env.kwargs={length: 5}"))
    assert run(["eval", str(root), "--episodes", "6", "--envs", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{ENVS}:Countdown, greedy, seed 1, 4 environments, ")
    assert lines[1] == "checkpoint 000001-step-5, after 500 environment steps"
    assert lines[2] == "policy  episodes  mean return  median  min  max  mean length"
    assert lines[3] == "policy         6       5 +- 0       5    5    5            5"
    assert lines[4] == f"written to {root}/eval-000001-step-5.json"
    record = json.loads((root / "eval-000001-step-5.json").read_text())
    assert record["checkpoints"] == {"policy": "000001-step-5"}
    assert record["policies"]["policy"]["returns"] == [5.0] * 6
    assert record["policies"]["policy"]["lengths"] == [5] * 6


def test_the_same_seed_gives_the_same_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(save_run(tmp_path / "run", config_of("env.id=CartPole-v1")))
    options = ("--episodes", "6", "--envs", "3")

    def returns(*more: str) -> list[float]:
        found: list[float] = scores(capsys, root, *options, *more)["policies"]["policy"]["returns"]
        return found

    greedy, sampled = returns(), returns("--sampled")
    assert returns() == greedy
    assert returns("--sampled") == sampled
    assert greedy != sampled
    assert returns("--seed", "2") != greedy
    assert {path.name for path in Path(root).glob("eval-*")} == {
        "eval-000001-step-5.json",
        "eval-000001-step-5-sampled.json",
    }


def test_the_newest_or_the_named_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = save_run(tmp_path / "run", config_of(COUNTDOWN), steps=(5, 9))
    few = ("--episodes", "1")
    assert scores(capsys, str(root), *few)["checkpoints"] == {"policy": "000002-step-9"}
    named = scores(capsys, str(root), *few, "--checkpoint", "000001-step-5")
    assert named["checkpoints"] == {"policy": "000001-step-5"}
    text = refusal(capsys, str(root), "--checkpoint", "best")
    assert "is marked as the best: that takes 100 episodes, and learner.keep_best" in text
    (root / "checkpoints" / "best").symlink_to("000001-step-5")
    best = scores(capsys, str(root), *few, "--checkpoint", "best")
    assert best["checkpoints"] == {"policy": "000001-step-5"}
    text = refusal(capsys, str(root), "--checkpoint", "000003-step-1")
    assert "no checkpoint '000003-step-1'" in text
    assert "there are 000001-step-5, 000002-step-9" in text
    (root / "checkpoints" / "000002-step-9" / "state.json").write_text("{}")
    assert "SHA-256" in refusal(capsys, str(root), "--checkpoint", "000002-step-9")
    assert scores(capsys, str(root), *few)["checkpoints"] == {"policy": "000001-step-5"}, "passed over"
    (root / "checkpoints" / "000001-step-5" / "SHA256SUMS").unlink()
    assert "no usable checkpoint" in refusal(capsys, str(root))


def test_wrappers_and_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrapper = f"env.wrappers=[{{path: '{ENVS}:Twice'}}]"
    root = str(save_run(tmp_path / "run", config_of(COUNTDOWN, wrapper)))
    one = ("--episodes", "1")
    assert scores(capsys, root, *one)["policies"]["policy"]["returns"] == [8.0]
    longer = scores(capsys, root, *one, "--set", "env.kwargs={length: 7}")
    assert longer["policies"]["policy"]["returns"] == [14.0]


def test_a_policy_that_remembers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(COUNTDOWN, "policy.recurrent=gru", "policy.recurrent_size=4", "policy.frame_stack=2")
    root = str(save_run(tmp_path / "run", config))
    assert scores(capsys, root, "--episodes", "3", "--envs", "2")["policies"]["policy"]["episodes"] == 3


def test_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is no run directory: it is not there" in refusal(capsys, str(tmp_path / "none"))
    (tmp_path / "file").touch()
    assert "is no run directory: it is a file" in refusal(capsys, str(tmp_path / "file"))
    assert "it has neither config.yaml nor checkpoints" in refusal(capsys, str(tmp_path))
    (tmp_path / "config.yaml").touch()
    assert "has no checkpoint yet" in refusal(capsys, str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    assert "has no checkpoint yet" in refusal(capsys, str(tmp_path))


def test_another_environment_is_refused_with_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(save_run(tmp_path / "run", config_of("env.id=CartPole-v1")))
    text = refusal(capsys, root, "--set", "env.id=Acrobot-v1")
    assert "CartPole-v1: observation float32[4] -> Discrete(2)" in text
    assert "Acrobot-v1: observation float32[6] within -28.2743..28.2743 -> Discrete(3)" in text
    text = refusal(capsys, root, "--set", "policy.hidden_sizes=[9]")
    assert "policy.hidden_sizes is [8] and cannot be [9]" in text
    assert "did you mean 'env.id'?" in refusal(capsys, root, "--set", "env.ib=3")


def test_a_configuration_of_another_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.unit.core.test_checkpoint import edit_state

    root = save_run(tmp_path / "run", config_of(COUNTDOWN))
    edit_state(root / "checkpoints" / "000001-step-5", config="policy: {wings: 2}")
    text = refusal(capsys, str(root))
    assert "this release cannot use the configuration in" in text
    assert "'policy.wings'" in text


def test_checkpoints_of_several_policies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Chosen and checked before any environment is made."""
    spec = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (2,)),), DiscreteAction(2))
    config = config_of("env.id=none.py:make", "env.policies={red: ['red_*'], blue: ['blue_*']}")
    root = save_run(tmp_path / "run", config, {"red": spec, "blue": spec}, steps=(5, 9))
    text = refusal(capsys, str(root), "--checkpoint", "000001-step-5")
    assert "say whose it is: blue=000001-step-5, red=000001-step-5" in text
    text = refusal(capsys, str(root), "--checkpoint", "green=000001-step-5")
    assert "there is no policy 'green', only blue, red" in text
    text = refusal(capsys, str(root), "--checkpoint", "red=000007-step-5")
    assert "no checkpoint '000007-step-5'" in text
    text = refusal(capsys, str(root), "--set", "env.policies={green: ['*']}")
    assert "blue" in text
    assert "green" in text
