"""Waits are logged once per peer, with growing pauses."""

from __future__ import annotations

import pytest

from services.actor.waiting import WaitLog


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lines_over(seconds: int, clock: FakeClock, waits: WaitLog, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level("INFO"):
        for _ in range(seconds):
            clock.now += 1
            waits.report()
    return [record.getMessage() for record in caplog.records]


def test_a_long_wait_of_many_groups_is_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    waits = WaitLog(clock)
    with waits.waiting_for("inference at a"), waits.waiting_for("inference at a"):
        assert lines_over(60, clock, waits, caplog) == [
            "waiting for inference at a (5 s)",
            "waiting for inference at a (10 s)",
            "waiting for inference at a (20 s)",
            "waiting for inference at a (40 s)",
        ]
        assert len(lines_over(600, clock, waits, caplog)) == 10
    assert lines_over(100, clock, waits, caplog) == []


def test_short_waits_are_silent_and_peers_are_separate(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    waits = WaitLog(clock)
    for _ in range(50):
        with waits.waiting_for("replay"):
            assert lines_over(4, clock, waits, caplog) == []
    with waits.waiting_for("replay"):
        clock.now += 3
        with waits.waiting_for("inference"):
            assert lines_over(5, clock, waits, caplog) == [
                "waiting for replay (5 s)",
                "waiting for inference (5 s)",
            ]


def test_a_wait_that_ends_with_an_error_is_over(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    waits = WaitLog(clock)
    with pytest.raises(KeyError), waits.waiting_for("replay"):
        raise KeyError
    assert lines_over(20, clock, waits, caplog) == []
