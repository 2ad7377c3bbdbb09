"""What the monitor passes on to the history and the view; nothing is polled here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from shoal.cli.child import Child, State
from shoal.cli.history import Event, History, Sample, read_history
from shoal.cli.monitor import Monitor
from shoal.cli.plan import ProcessSpec
from shoal.cli.supervisor import FINISHED, End, Outcome, Supervisor


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
    monitor.add_final({"mean_return": 476.0, "env_steps": 123})
    monitor.close()
    assert view.told[:-1] == told
    assert monitor.over_s == 14.0
    assert read_history(tmp_path / "h")[0] == [Sample(14.0, env_steps=123, episode_return=476.0)]


def test_a_mistake_is_left_to_the_last_line_and_recorded(tmp_path: Path) -> None:
    view = RecordingView()
    monitor = Monitor(History(tmp_path / "h"), view, Clock())
    monitor.over(Outcome(End.USER_ERROR, 2, "no such env"))
    monitor.close()
    assert view.told == ["closed"]
    assert [event.text for event in read_history(tmp_path / "h")[1]] == ["no such env"]


def test_training_of_an_earlier_session_does_not_count(tmp_path: Path) -> None:
    first = History(tmp_path / "h")
    first.add(Sample(50.0, env_steps=7, load={"actor-0": 9.0, "learner-0": 7.0}))
    first.close()
    monitor = Monitor(History(tmp_path / "h"), RecordingView(), Clock())
    found = [monitor.has_trained]
    for trained in (7.0, 8.0):
        monitor.last = Sample(51.0, load={"actor-0": 10.0, "learner-0": trained})
        found.append(monitor.has_trained)
    monitor.close()
    assert found == [False, False, True]


class Over(Supervisor):
    """A run that is over; the learner's log gets a warning and an error as it stops."""

    def __init__(self, monitor: Monitor, learner: Child, clock: Clock) -> None:
        self.children = (learner,)
        self._monitor, self._clock, self.checks = monitor, clock, 0

    def check(self) -> None:
        self.checks += 1
        self._clock.now += 1.0
        if self.checks == 1:
            self.children[0].state = State.UP
        if self.checks == 2:
            self._monitor.over(FINISHED)
            lines = (f"2026-01-01T00:00:00Z {level} learner - {level}\n" for level in ("WARNING", "ERROR"))
            self.children[0].log.write_text("".join(lines))


def test_once_a_run_is_over_only_errors_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.cli.monitor.TICK_S", 0.0)
    view, clock = RecordingView(), Clock()
    monkeypatch.setattr(view, "update", lambda *_: None)
    monitor = Monitor(History(tmp_path / "h"), view, clock)

    async def watch() -> None:
        learner = Child(ProcessSpec("learner", 0, tmp_path / "announce", ()), tmp_path / "log")
        supervisor = Over(monitor, learner, clock)
        watching = asyncio.create_task(monitor.watch(supervisor))
        while supervisor.checks < 4:
            await asyncio.sleep(0)
        watching.cancel()

    asyncio.run(watch())
    monitor.close()
    assert view.told == ["learner-0: ERROR", "closed"]


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
