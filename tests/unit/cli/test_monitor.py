"""What the monitor passes on to the history and the view; nothing is polled here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from shoal.cli.child import Child
from shoal.cli.history import Event, History, Sample, read_history
from shoal.cli.monitor import Monitor
from shoal.cli.supervisor import FINISHED, End, Outcome


class RecordingView:
    def __init__(self) -> None:
        self.told: list[str] = []

    def event(self, event: Event) -> None:
        self.told.append(event.text)

    def update(self, sample: Sample, children: Sequence[Child], rates: dict[str, float]) -> None:
        raise AssertionError("nothing was polled")

    def close(self) -> None:
        self.told.append("closed")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_events_reach_the_user_and_the_history(tmp_path: Path) -> None:
    view, clock = RecordingView(), Clock()
    monitor = Monitor(History(tmp_path / "h"), view, clock)
    clock.now += 2.5
    monitor.event("actor-0 was killed by SIGKILL; restarting in 0.2 s")
    monitor.close()
    assert view.told == ["actor-0 was killed by SIGKILL; restarting in 0.2 s", "closed"]
    assert read_history(tmp_path / "h")[1] == [
        Event(2.5, "actor-0 was killed by SIGKILL; restarting in 0.2 s")
    ]


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (FINISHED, []),
        (Outcome(End.TIME_LIMIT, 0, "time limit reached"), ["time limit reached"]),
        (
            Outcome(End.INTERRUPTED, 130, "interrupted by SIGINT"),
            ["interrupted by SIGINT: stopping in order; a second time kills everything at once"],
        ),
    ],
)
def test_end_of_a_run_is_told_and_timed(tmp_path: Path, outcome: Outcome, told: list[str]) -> None:
    view, clock = RecordingView(), Clock()
    monitor = Monitor(History(tmp_path / "h"), view, clock)
    clock.now += 14.0
    monitor.over(outcome)
    clock.now += 3.0  # stopping takes its time, which is not the run's
    monitor.add_final(476.0, 123)
    monitor.close()
    assert view.told[:-1] == told
    assert monitor.over_s == 14.0
    assert read_history(tmp_path / "h")[0] == [Sample(14.0, env_steps=123, episode_return=476.0)]


def test_a_resumed_run_goes_on_in_time(tmp_path: Path) -> None:
    first = History(tmp_path / "h")
    first.add(Sample(50.0, env_steps=7))
    first.close()
    clock = Clock()
    monitor = Monitor(History(tmp_path / "h"), RecordingView(), clock)
    clock.now += 1.0
    assert monitor.time_s == 51.0
    assert monitor.last.env_steps == 7
    monitor.close()


def test_a_full_disk_is_told_once_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history, view = History(tmp_path / "h"), RecordingView()

    def full(event: Event) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(history, "add_event", full)
    monitor = Monitor(history, view, Clock())
    monitor.event("one")
    monitor.event("two")
    monitor.close()
    assert view.told == ["one", "cannot write the run's history: No space left on device", "two", "closed"]
