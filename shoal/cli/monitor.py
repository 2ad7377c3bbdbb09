"""Watches a run: polls the services' metrics, follows their logs, feeds the history and the view.

`shoal train` runs `watch` beside the supervisor, on the same event loop. What it cannot read it leaves out: a
service that is away or a full disk never stops the run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from shoal.cli.child import Child, State
from shoal.cli.history import Event, History, Sample, with_result
from shoal.cli.logs import LogWatch
from shoal.cli.scrape import fetch, parse
from shoal.cli.supervisor import End, Outcome, Supervisor
from shoal.cli.view import View
from shoal.cli.vitals import Reading, Vitals
from shoal.errors import UnavailableError

TICK_S = 0.2
POLL_S = 1.0


class Monitor:
    """The eyes of one run. `supervisor` is set before `watch`; events may come earlier."""

    def __init__(self, history: History, view: View, now: Callable[[], float] = time.monotonic) -> None:
        self._history = history
        self._view = view
        self._now = now
        # A resumed run goes on where its last session ended, also in time.
        self._began = now() - history.last_time_s
        self._vitals = Vitals(history.samples[-1] if history.samples else None)
        self._disk_failed = False
        self._is_over = False
        self.over_s = 0.0
        self.last = history.samples[-1] if history.samples else Sample(0.0)
        self._trained_before = _trained(self.last)

    @property
    def time_s(self) -> float:
        """Since the run began, over all its sessions."""
        return self._now() - self._began

    @property
    def has_trained(self) -> bool:
        """The learner has trained on something in this session."""
        return _trained(self.last) > self._trained_before

    def event(self, text: str) -> None:
        """Tells the user and the history."""
        event = Event(round(self.time_s, 3), text)
        self._view.event(event)
        self._add_event(event)

    def _add_event(self, event: Event) -> None:
        self._store(lambda: self._history.add_event(event))

    def over(self, outcome: Outcome) -> None:
        """The run is over; its processes are about to be stopped."""
        self._is_over = True
        self.over_s = self.time_s
        if outcome.end is End.INTERRUPTED:
            self.event(f"{outcome.message}: stopping in order; a second time kills everything at once")
        elif outcome.end is End.TIME_LIMIT:
            self.event(outcome.message)
        elif outcome.end is not End.FINISHED:
            # The user reads it as the last line, once all has stopped.
            self._add_event(Event(round(self.over_s, 3), outcome.message))

    def add_final(self, result: Mapping[str, Any]) -> None:
        """Where the run got to: the learner's last word, in result.json, came after the last poll."""
        time_s = round(max(self.over_s, self.last.time_s), 3)
        final = with_result(replace(self.last, time_s=time_s), result)
        self._store(lambda: self._history.add(final))

    async def watch(self, supervisor: Supervisor) -> None:
        """Runs until cancelled."""
        logs = LogWatch({child.name: child.log for child in supervisor.children})
        next_poll = self._now() + POLL_S / 2
        all_were_up = False
        try:
            while True:
                supervisor.check()
                # What ends the run is heard of during the pause, before any warning that comes of it.
                await asyncio.sleep(TICK_S)
                if self._now() >= next_poll:
                    next_poll = self._now() + POLL_S
                    # Until all are up, and as they stop, they warn of each other's absence.
                    all_were_up = all_were_up or all(c.state is State.UP for c in supervisor.children)
                    for warning in logs.new_warnings(only_errors=self._is_over or not all_were_up):
                        self.event(warning)
                    # While all stops there is nothing new to learn; the states still change.
                    if not self._is_over:
                        await self._poll(supervisor)
                    self._show(supervisor)
        finally:
            self._show(supervisor)

    def _show(self, supervisor: Supervisor) -> None:
        self._view.update(self.last, supervisor.children, self._vitals.rates)

    def close(self) -> None:
        self._view.close()
        self._store(self._history.close)

    async def _poll(self, supervisor: Supervisor) -> None:
        found = await asyncio.gather(*(_read(child) for child in supervisor.children))
        if self._is_over:
            return
        readings = [reading for reading in found if reading is not None]
        restarts = sum(child.num_restarts for child in supervisor.children)
        self.last = self._vitals.update(self.time_s, readings, restarts)
        self._store(lambda: self._history.add(self.last))

    def _store(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not self._disk_failed:
                self._disk_failed = True
                reason = error.strerror or error
                self._view.event(Event(self.time_s, f"cannot write the run's history: {reason}"))


def _trained(sample: Sample) -> float:
    return sum(amount for process, amount in sample.load.items() if process.startswith("learner-"))


async def _read(child: Child) -> Reading | None:
    announcement = child.announcement
    if announcement is None:
        return None
    try:
        metrics = parse(await fetch(announcement.metrics))
    except (UnavailableError, ValueError):
        return None
    return Reading(child.name, child.spec.role, announcement.pid, metrics)
