"""What the user reads: plain lines and the live screen, drawn into memory."""

from __future__ import annotations

import asyncio
import errno
import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from shoal.cli import figures
from shoal.cli.child import Child, State
from shoal.cli.history import Event, Sample
from shoal.cli.plan import plan_processes
from shoal.cli.view import PLAIN_EVERY_S, LiveView, PlainView, plain_line
from shoal.config import load_config

SAMPLE = Sample(
    time_s=75.4, env_steps=1_234_567, episode_return=123.45, env_steps_per_s=210_456.0,
    trained_steps_per_s=208_111.0, learner_waiting=0.123, inference_batch=256.0, inference_latency_ms=1.25,
    replay_items=3, replay_fill=0.1875, policy_lag=1.44, policy_version=812, num_restarts=2,
    effective_batch=1280,
)  # fmt: skip


def children(*overrides: str) -> list[Child]:
    async def make() -> list[Child]:
        config = load_config(None, overrides, environ={})
        found = [Child(spec, Path("x.log")) for spec in plan_processes(config, Path("/tmp/x"))]
        for child in found:
            child.state = State.UP
        return found

    return asyncio.run(make())


def test_plain_line_has_every_figure() -> None:
    assert plain_line(SAMPLE, children()) == (
        "   1:15  return 123.5  steps 1,234,567  collected 210k/s  trained 208k/s  learner waits 12 %  "
        "batch 256 rows, 1.2 ms  replay 3 items, 19 %  lag 1.4  restarts 2  up 4/4"
    )


@pytest.mark.parametrize(("times", "said"), [(None, ""), (1.0, ""), (255.64, ", 256 samples per step")])
def test_how_often_a_step_is_trained_on_is_shown_where_it_is_not_once(times: float | None, said: str) -> None:
    line = plain_line(replace(SAMPLE, samples_per_step=times), children())
    assert f"trained 208k/s{said}  learner" in line


def test_plain_line_before_anything_is_known() -> None:
    assert plain_line(Sample(0.4), children()) == (
        "   0:00  return -  steps -  collected -  trained -  learner waits -  "
        "batch -  replay -  lag -  restarts 0  up 4/4"
    )


def test_plain_view_prints_every_few_seconds_and_every_event() -> None:
    out, now = io.StringIO(), [100.0]
    view = PlainView(out, lambda: now[0])
    view.update(SAMPLE, children(), {})
    now[0] += PLAIN_EVERY_S / 2
    view.update(replace(SAMPLE), children(), {})
    view.event(Event(76.0, "actor-0 was killed by SIGKILL; restarting in 0.2 s"))
    now[0] += PLAIN_EVERY_S / 2
    view.update(replace(SAMPLE, time_s=80.0), children(), {})
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == ["return", "actor-0", "return"]
    assert lines[1] == "   1:16  actor-0 was killed by SIGKILL; restarting in 0.2 s"


def test_plain_view_says_nothing_when_nothing_is_new() -> None:
    out, now = io.StringIO(), [100.0]
    view = PlainView(out, lambda: now[0])
    for _ in range(3):
        view.update(SAMPLE, children(), {})
        now[0] += PLAIN_EVERY_S
    assert len(out.getvalue().splitlines()) == 1


def test_plain_view_does_not_go_back_in_time() -> None:
    """What the last poll saw is older than what happened while all stopped."""
    out = io.StringIO()
    view = PlainView(out, lambda: 100.0)
    view.event(Event(SAMPLE.time_s + 1, "time limit reached"))
    view.update(SAMPLE, children(), {})
    assert len(out.getvalue().splitlines()) == 1


def live_view(out: io.StringIO, height: int = 50) -> LiveView:
    console = Console(file=out, width=110, height=height, force_terminal=True, color_system=None)
    return LiveView("shoal  cartpole", 475.0, console)


def draw(sample: Sample, shown: list[Child], rates: dict[str, float], *events: str) -> str:
    out = io.StringIO()
    view = live_view(out)
    for text in events:
        view.event(Event(1.0, text))
    view.update(sample, shown, rates)
    view.close()
    return out.getvalue()


def test_a_small_terminal_shows_the_events() -> None:
    out = io.StringIO()
    view = live_view(out, height=12)
    for number in range(4):
        view.event(Event(1.0, f"event {number}"))
    view.update(SAMPLE, children("launch.actors=4", "launch.replay_shards=4"), {})
    assert all(f"event {number}" in out.getvalue() for number in range(4))


class ClosedTerminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False

    def write(self, text: str) -> int:
        if self.is_closed:
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)


def test_a_closed_terminal_ends_nothing() -> None:
    before = (sys.stdout, sys.stderr)
    out = ClosedTerminal()
    view = live_view(out)
    view.update(SAMPLE, children(), {})
    out.is_closed = True
    for _ in range(2):
        view.update(SAMPLE, children(), {})
    view.close()
    assert (sys.stdout, sys.stderr) == before

    plain = PlainView(out)
    plain.event(Event(1.0, "nobody reads this"))
    plain.update(SAMPLE, children(), {})


def test_live_screen_has_every_figure() -> None:
    screen = draw(SAMPLE, children(), {"actor-0": 210_456.0, "inference-0": 5e5}, "replay-0: [slow] queue")
    for expected in (
        "shoal  cartpole", "1:15", "123.5 of 475", "1,234,567", "210k/s", "208k/s", "12 %",
        "256 rows, 1.2 ms", "3 items, 19 %", "1.4 versions", "208k/s, 1,280 at a time", "actor-0",
        "210k steps/s", "500k rows/s", "replay-0: [slow] queue",
    ):  # fmt: skip
        assert expected in screen


def test_many_processes_of_a_role_share_a_line() -> None:
    shown = children("launch.actors=100")
    shown[-1].state = State.WAITING
    screen = draw(SAMPLE, shown, {child.name: 10.0 for child in shown})
    assert "actor x 100" in screen
    assert "99 up, 1 restarting" in screen
    assert "1k steps/s" in screen
    assert "actor-0" not in screen


def test_evaluation_is_shown_when_there_is_one() -> None:
    assert "evaluation" not in draw(SAMPLE, children(), {})
    assert "evaluation" in draw(Sample(1.0, evaluation_return=77.7), children(), {})


TWO = replace(
    SAMPLE,
    policies={
        "red": {"episode_return": -3.25, "untrained_return": -20.5, "loss": 0.012345, "env_steps": 1_000_000},
        "blue": {},
    },
)


def test_several_policies_have_a_line_each() -> None:
    assert "policy " not in draw(SAMPLE, children(), {}).replace("policy lag", "")
    screen = draw(TWO, children(), {})
    lines = [line.split() for line in screen.splitlines()]
    assert ["policy", "return", "untrained", "evaluation", "loss", "env", "steps"] in lines
    assert ["red", "-3.2", "-20.5", "-", "0.0123", "1,000,000"] in lines
    assert ["blue", "-", "-", "-", "-", "-"] in lines
    assert "123.5 of 475" in screen, "the highest return"


def test_the_untrained_policys_return_stands_beside_the_current_one() -> None:
    begun = replace(SAMPLE, untrained_return=22.125)
    assert "  return 123.5 (untrained 22.1)  steps " in plain_line(begun, children())
    assert "123.5 of 475 (untrained 22.1)" in draw(begun, children(), {})
    assert "untrained" not in plain_line(SAMPLE, children())


def test_a_plain_line_tells_policies_apart() -> None:
    line = plain_line(TWO, children())
    assert "  return red -3.2, blue -  loss red 0.0123, blue -  steps 1,234,567  " in line


def test_guards_that_warn_are_shown_as_long_as_they_do() -> None:
    warned = replace(SAMPLE, guards=["entropy_collapse", "memory_growth"])
    assert plain_line(warned, children()).endswith("  up 4/4  guards entropy_collapse, memory_growth")
    assert "guards: entropy_collapse, memory_growth" in draw(warned, children(), {})
    assert "guards" not in draw(SAMPLE, children(), {})


def test_clock() -> None:
    assert [figures.clock(s) for s in (0, 59.9, 60, 3600, 36_061)] == [
        "0:00",
        "0:59",
        "1:00",
        "1:00:00",
        "10:01:01",
    ]
