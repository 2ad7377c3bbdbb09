"""Guards as the user of `shoal train` meets them: a frozen actor, first as a warning, then as the end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from shoal.cli.history import read_history
from shoal.cli.run_dir import RunDir
from tests.e2e.cli_process import shoal

SMALL = ("--envs-per-actor", "16", "--set", "learner.batch_envs=8", "--run-dir", "run")
STALL = "learner.guards.throughput_stall"
# Longer than a busy machine keeps an actor that is well from handing over.
NO_BATCH = ("--set", f"{STALL}.no_batch_s=5")


def test_a_frozen_actor_is_told_and_forgotten_when_it_goes_on(tmp_path: Path) -> None:
    with shoal("train", "cartpole", *SMALL, *NO_BATCH, cwd=tmp_path) as run:
        run.until_training()
        actor = run.pid_of("actor")
        os.kill(actor, signal.SIGSTOP)
        try:
            said = "learner-0: guard throughput_stall: no batch has come for "
            run.until(lambda: said in run.stdout, "the warning")
            run.until(lambda: "  guards throughput_stall\n" in run.stdout, "the guard in the figures")
        finally:
            os.kill(actor, signal.SIGCONT)
        run.until(lambda: "  guards" not in run.stdout.splitlines()[-1], "figures without the guard")
        run.send(signal.SIGTERM)
        assert run.wait() == 143
    run_dir = RunDir(tmp_path / "run")
    samples, events = read_history(run_dir.history)
    assert any(said in event.text for event in events)
    assert any(sample.guards == ["throughput_stall"] for sample in samples)
    assert "guard throughput_stall" in run_dir.report.read_text()
    # Once more if the actor takes long to stop: the learner goes after it.
    guards = run_dir.read_result()["guards"]
    assert set(guards) == {"throughput_stall"}
    assert guards["throughput_stall"] >= 1


def test_a_guard_that_is_set_to_stop_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    stop = ("--set", f"{STALL}.action=stop")
    with shoal("train", "cartpole", *SMALL, *NO_BATCH, *stop, cwd=tmp_path) as run:
        run.until_training()
        actor = run.pid_of("actor")
        os.kill(actor, signal.SIGSTOP)
        try:
            assert run.wait() == 2
        finally:
            if run.process.poll() is None:
                os.kill(actor, signal.SIGCONT)
        assert run.stderr.startswith("error: guard throughput_stall: no batch has come for ")
        run.assert_nothing_left()
    run_dir = RunDir(tmp_path / "run")
    assert "throughput_stall" in run_dir.read_result()["message"]
    assert run_dir.has_checkpoints, "what was learnt is saved"
