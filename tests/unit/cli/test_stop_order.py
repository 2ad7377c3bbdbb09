"""Who is stopped when: actors, learner, then the rest. The children here only note what they are told."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from shoal.cli.child import Child, describe_exit
from shoal.cli.plan import MAX_DRAIN_S, plan_processes
from shoal.cli.supervisor import STOP_AT_ONCE, STOP_ORDER, stop_in_order
from shoal.config import load_config
from shoal.rpc.watchdog import MARGIN_S


@dataclass
class FakeChild:
    """Ends when told to, unless it is stubborn: then only when killed."""

    spec: object
    name: str
    log: list[str]
    stubborn: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        self.log.append(f"stop {self.name}")
        if not self.stubborn:
            # Not at once: the next stage must wait for it.
            asyncio.get_running_loop().call_soon(self._end)

    def send(self, number: signal.Signals) -> None:
        self.log.append(f"{number.name} {self.name}")
        self._end()

    def _end(self) -> None:
        self.log.append(f"gone {self.name}")
        self.gone.set()


def stop(stubborn: str, order: tuple[tuple[tuple[str, ...], float], ...]) -> tuple[list[str], list[str]]:
    async def run() -> tuple[list[str], list[str]]:
        log: list[str] = []
        events: list[str] = []
        config = load_config(None, ["launch.evaluators=1"], environ={})
        specs = plan_processes(config, Path("/tmp/x"))
        children = [FakeChild(spec, spec.name, log, spec.name == stubborn) for spec in specs]
        await stop_in_order(cast("list[Child]", children), order, events.append)
        return log, events

    return asyncio.run(run())


def test_stages_follow_each_other() -> None:
    log, events = stop("", STOP_ORDER)
    assert log == [
        "stop actor-0", "stop evaluator-0", "gone actor-0", "gone evaluator-0",
        "stop learner-0", "gone learner-0",
        "stop inference-0", "stop replay-0", "gone inference-0", "gone replay-0",
    ]  # fmt: skip
    assert events == []


def test_a_stage_that_misses_its_deadline_is_killed() -> None:
    order = tuple((roles, 0.0) for roles, _ in STOP_ORDER[:1])
    log, events = stop("actor-0", order)
    assert "SIGKILL actor-0" in log
    assert "actor-0 did not stop in time and was killed" in events


def test_finished_run_stops_all_at_once() -> None:
    log, _ = stop("", STOP_AT_ONCE)
    assert [line.split()[0] for line in log] == ["stop"] * 5 + ["gone"] * 5


def test_every_role_is_in_each_order_and_twelve_seconds_are_kept() -> None:
    for order in (STOP_ORDER, STOP_AT_ONCE):
        roles = [role for stage, _ in order for role in stage]
        assert sorted(roles) == ["actor", "evaluator", "inference", "learner", "replay"]
        assert max(deadline for _, deadline in order) < 12


def test_services_end_by_themselves_before_they_are_killed() -> None:
    for order in (STOP_ORDER, STOP_AT_ONCE):
        began = 0.0
        for roles, deadline in order:
            assert max(MAX_DRAIN_S[role] for role in roles) + MARGIN_S <= deadline - began
            began = deadline


@pytest.mark.parametrize(
    ("code", "text"),
    [(1, "ended with code 1"), (-9, "was killed by SIGKILL"), (-250, "was killed by signal 250")],
)
def test_exit_codes_in_words(code: int, text: str) -> None:
    assert describe_exit(code) == text
