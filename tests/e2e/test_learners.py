"""Two learners that train together, whichever is killed: IMPALA, synchronous PPO, two policies at once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

from shoal.cli.history import Sample, read_history
from shoal.cli.run_dir import RunDir
from tests.e2e.cli_process import ShoalProcess, shoal

BUDGET = 2_000_000
# Longer than a test waits for anything: after a kill no actor may wait for what was lost.
NEVER_S = 3600.0


def last_sample(run_dir: RunDir) -> Sample:
    samples, _ = read_history(run_dir.history)
    return samples[-1] if samples else Sample(0.0)


def pid_of_rank(run: ShoalProcess, rank: int) -> int | None:
    for pid, line in run.running().items():
        if "services.learner" in line:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in variables:
                return pid
    return None


def kill_and_await(run: ShoalProcess, run_dir: RunDir, rank: int, num_restarts: int) -> float:
    """Kills one and waits until training has gone on for some versions. How long both together took."""
    before = [pid_of_rank(run, other) for other in (0, 1)]
    pid, version = before[rank], last_sample(run_dir).policy_version or 0
    assert pid is not None
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    run.until(lambda: last_sample(run_dir).num_restarts >= num_restarts, f"restart after rank {rank}")
    # Each life of the learner goes on at a block of versions that no life before has used.
    run.until(lambda: (last_sample(run_dir).policy_version or 0) > version + 4096, "further training")
    took_s = time.monotonic() - began
    after = [pid_of_rank(run, other) for other in (0, 1)]
    assert None not in after
    assert not set(before) & set(after), "both are new"
    return took_s


def test_two_learners_are_killed_in_turn_and_learn_together(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    arguments = ("train", "cartpole", "--learners", "2", "--steps", str(BUDGET), "--run-dir", "run")
    arguments += ("--set", "learner.checkpoint_every_s=1")
    with shoal(*arguments, cwd=tmp_path) as run:
        run.until_training()
        run.until(lambda: any((tmp_path / "run/checkpoints").glob("0*")), "a checkpoint")
        took_s = [kill_and_await(run, run_dir, rank, 2 * number) for number, rank in ((1, 1), (2, 0))]
        run.until(lambda: (last_sample(run_dir).episode_return or 0) >= 475, "mean return of 475")
        run.send(signal.SIGTERM)
        assert run.wait() == 143
        run.assert_nothing_left()
    samples, events = read_history(run_dir.history)
    steps = next(sample.env_steps for sample in samples if (sample.episode_return or 0) >= 475)
    assert steps is not None
    print(f"475 after {steps:,} steps; back after {took_s[0]:.1f} s and {took_s[1]:.1f} s", *events, sep="\n")
    assert steps < BUDGET
    versions = [sample.policy_version for sample in samples if sample.policy_version]
    assert versions == sorted(versions), "the version never goes back"
    log = run_dir.log("learner-1").read_text() + run_dir.log("learner-0").read_text()
    assert log.count("another learner has gone") >= 1, "the one that was left said why it ended"
    assert "going on from learner step" in log


def test_synchronous_ppo_reaches_475_with_two_learners_one_of_which_is_killed(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    arguments = ("train", "ppo_cartpole", "--learners", "2", "--until-return", "475", "--steps", str(BUDGET))
    arguments += ("--set", "learner.checkpoint_every_s=0.5", "--set", f"algorithm.max_wait_s={NEVER_S}")
    with shoal(*arguments, "--run-dir", "run", cwd=tmp_path) as run:
        run.until(lambda: any((tmp_path / "run/checkpoints").glob("0*")), "a checkpoint")
        pid = pid_of_rank(run, 1)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert run.wait() == 0, f"{run.stdout}\n{run.stderr}"
        run.assert_nothing_left()
    result = run_dir.read_result()
    samples, _ = read_history(run_dir.history)
    print(f"475 after {result['env_steps']:,} steps, of which rank 1 was killed once")
    assert result["reason"] == "until_return"
    assert result["env_steps"] < BUDGET
    assert samples[-1].num_restarts == 2, "both started again"
    assert result["policy_version"] > 4096, "it was trained on by the new ones"
    log = run_dir.log("learner-0").read_text()
    assert "another learner has gone" in log
    assert "going on from learner step" in log


def test_two_policies_are_trained_by_two_learners_the_first_of_which_is_killed(tmp_path: Path) -> None:
    """Nine environments in three groups: learners have four and five of them, and share a group."""
    shutil.copy(Path(__file__).with_name("own_game.py"), tmp_path)
    steps = 12_000
    tree = {
        "env": {"id": "own_game.py:Signals", "policies": {"red": ["red_*"], "blue": ["blue_*"]}},
        "actor": {"envs": 9, "groups": 3, "unroll_length": 16},
        "learner": {"batch_envs": 9, "checkpoint_every_s": 0.2},
        "policy": {"hidden_sizes": [16]},
        "algorithm": {"name": "ppo", "minibatches": 2, "max_wait_s": NEVER_S},
    }
    (tmp_path / "game.yaml").write_text(json.dumps(tree))
    run_dir = RunDir(tmp_path / "run")
    policies = {name: run_dir.root / "policies" / name for name in ("red", "blue")}
    with shoal(
        "train", "game.yaml", "--learners", "2", "--steps", str(steps), "--run-dir", "run", cwd=tmp_path
    ) as run:
        run.until(
            lambda: all(any(root.glob("checkpoints/0*")) for root in policies.values()), "both checkpoints"
        )
        pid = pid_of_rank(run, 0)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert run.wait() == 0, f"{run.stdout}\n{run.stderr}"
        run.assert_nothing_left()
    ended, (samples, _) = run_dir.read_result(), read_history(run_dir.history)
    results = {name: json.loads((root / "result.json").read_text()) for name, root in policies.items()}
    print({name: (result["learner_steps"], result["mean_return"]) for name, result in results.items()})
    assert samples[-1].num_restarts == 2
    assert ended["reason"] == "steps"
    assert results[ended["policy"]]["env_steps"] >= steps
    for result in results.values():
        assert result["learner_steps"] > steps // (9 * 16) - 5, "both were trained, and side by side"
        assert result["policy_version"] > 4096
