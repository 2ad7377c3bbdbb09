"""What the runner starts, resumes, skips and reports, with a program that does not train."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.learn import __main__ as learn
from benchmarks.learn.progress import Pace, Progress
from benchmarks.learn.runner import Failure, Runner
from benchmarks.learn.runs import Run, ShoalTrain, State, planned
from benchmarks.learn.scores import greedy_score
from benchmarks.learn.tasks import Task
from shoal.cli.history import Sample
from shoal.cli.run_dir import RunDir

FAKE = Path(__file__).with_name("fake_train.py")
TASK = Task(env="CartPole-v1", score=475, within=1000, steps=1000)


class Quiet(Progress):
    def __init__(self) -> None:
        super().__init__(Pace())


class InterruptedOnce(Quiet):
    """As if Ctrl-C came when the run has written its first sample."""

    def show(self, position: str, run: Run, last: Sample | None, waiting: Iterable[Run]) -> None:
        if last is not None:
            raise KeyboardInterrupt


class Table:
    """A table of two seeds in a directory of its own."""

    def __init__(self, root: Path) -> None:
        self.runs = planned([TASK], 2, root)
        self.done: list[Run] = []

    def run(self, mode: str, progress: Progress | None = None) -> list[Failure]:
        trainer = ShoalTrain((sys.executable, str(FAKE), mode))
        runner = Runner({"shoal": trainer}, self.done.append, progress or Quiet(), poll_s=0.05)
        return runner.run_all(self.runs)

    @property
    def calls(self) -> list[list[str]]:
        path = self.runs[0].root.parent / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def test_a_finished_run_is_skipped_and_still_recorded(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table.run("finish") == []
    assert [call[call.index("--seed") + 1] for call in table.calls] == ["1", "2"]
    assert table.done == table.runs
    assert "[2/2] cartpole-v1, seed 2: return 480.0 after 1,000 steps and 3.0 s" in capsys.readouterr().out

    assert table.run("fail") == []
    assert len(table.calls) == 2
    assert table.done == [*table.runs, *table.runs]
    assert [greedy_score(run.root) for run in table.runs] == [495.0, 495.0]
    assert "[1/2] cartpole-v1, seed 1: finished before" in capsys.readouterr().out


def test_an_interrupted_run_stops_in_good_order_and_is_resumed(table: Table) -> None:
    with pytest.raises(KeyboardInterrupt):
        table.run("wait", InterruptedOnce())
    first = table.runs[0]
    assert RunDir(first.root).read_result()["end"] == "interrupted"
    assert first.state() is State.RESUMABLE
    assert table.done == []

    assert table.run("finish") == []
    assert table.calls[1] == ["--resume", str(first.root), "--steps", "1000", "--plain"]
    assert "--seed" in table.calls[2]
    assert table.done == table.runs


def test_a_run_without_a_checkpoint_begins_anew(table: Table) -> None:
    root = table.runs[0].root
    root.mkdir(parents=True)
    (root / "history.jsonl").write_text('{"time_s": 1.0, "env_steps": 10, "episode_return": 500.0}\n')
    assert table.runs[0].state() is State.NEW
    assert table.run("finish") == []
    assert "500.0" not in (root / "history.jsonl").read_text()


def test_the_directory_of_a_live_run_is_left_alone(table: Table) -> None:
    run_dir = RunDir(table.runs[0].root)
    run_dir.create()
    lock = run_dir.claim()
    with open(lock):
        (failure,) = table.run("finish")
        assert run_dir.logs.exists()
    assert failure.run is table.runs[0]
    assert "is in use by another run" in failure.reason
    assert table.done == [table.runs[1]]


def test_a_failed_run_is_reported_and_the_others_go_on(
    table: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    failures = table.run("fail")
    assert [failure.run for failure in failures] == table.runs
    assert failures[0].reason == f"exit code 2: error: it is broken (log: {table.runs[0].log})"
    assert table.done == []
    assert "[1/2] cartpole-v1, seed 1: FAILED: exit code 2" in capsys.readouterr().out


def test_a_finished_run_with_a_smaller_budget_is_not_finished(table: Table, tmp_path: Path) -> None:
    table.run("finish")
    longer = Run(TASK, 1, "shoal", 2000, table.runs[0].root)
    assert table.runs[0].state() is State.FINISHED
    assert longer.state() is State.NEW
    (longer.root / "checkpoints/1-step-10").mkdir(parents=True)
    assert longer.state() is State.RESUMABLE


def test_ctrl_c_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(learn, "_run", interrupted)
    assert learn.main(["--only", "cartpole-v1*", "--seeds", "2"]) == 130
    command = f"{sys.executable} -m benchmarks.learn --only 'cartpole-v1*' --seeds 2"
    assert capsys.readouterr().out.endswith(f"stopped; to go on: {command}\n")


def test_an_unknown_row_is_told_of_in_one_line() -> None:
    with pytest.raises(SystemExit, match=r"^error: no row is named 'pong'; rows: "):
        learn.main(["--only", "pong", "--list"])


def test_the_time_left(tmp_path: Path) -> None:
    slow = Task(env="Slow-v0", steps=500)
    runs = planned([TASK, slow], 2, tmp_path)
    pace = Pace()
    assert pace.time_left(runs[0], 0, runs[1:]) == "time left not known yet"
    pace.note(runs[0], 100, 20.0)
    expected = "40.0 s left, 4 min 00 s with the runs after it; 2 runs after it are not timed yet"
    assert pace.time_left(runs[0], 800, runs[1:]) == expected
    pace.note(runs[2], 100, 10.0)
    assert pace.time_left(runs[3], 500, []) == "0.0 s left"


def test_progress_counts_from_where_the_session_began(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.learn.progress.LINE_EVERY_S", 0.0)
    (run,) = planned([TASK], 1, tmp_path)
    progress = Quiet()
    progress.start()
    progress.show("[1/1]", run, Sample(100.0, env_steps=400, episode_return=20.0), [])
    progress.show("[1/1]", run, Sample(110.0, env_steps=500, episode_return=25.5), [])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("return 20.0, 400 of 1,000 steps, time left not known yet")
    assert lines[1] == "[1/1] cartpole-v1, seed 1: return 25.5, 500 of 1,000 steps, 50.0 s left"
