"""What a spot market does to actors: some are told to go, or are just gone, and replacements come later.

`Storm` is driven by `step` from one thread; it knows the fleet by a protocol and takes the time as given, so
that it is tested without containers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from shoal.errors import ShoalError, UserError

# Seconds between the notice (SIGTERM) and the end (SIGKILL) that clouds give.
NOTICES = {"none": 0.0, "gke": 15.0, "azure": 30.0, "aws": 120.0}
MAX_NOTICE_S = 600.0


def notice_s(text: str) -> float:
    """Seconds, or the name of a cloud. Raises UserError."""
    if text.lower() in NOTICES:
        return NOTICES[text.lower()]
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= MAX_NOTICE_S:
        known = ", ".join(f"{name} ({value:g})" for name, value in NOTICES.items())
        raise UserError(f"--notice {text!r}: give seconds from 0 to {MAX_NOTICE_S:g}, or one of {known}")
    return seconds


def num_victims(num_actors: int, fraction: float) -> int:
    """The fraction, rounded up; one actor stays unless all are asked for."""
    wanted = math.ceil(fraction * num_actors - 1e-9)
    return min(wanted, num_actors) if fraction >= 1 else min(wanted, max(num_actors - 1, 0))


@dataclass(frozen=True)
class SpotPlan:
    """How often how many go, with how much notice, and when their replacements come. Seconds."""

    every_s: float
    fraction: float
    notice_s: float
    back_after_s: float


@dataclass(frozen=True)
class OpenSteps:
    """Steps of an actor that no shard has stored: in open unrolls, and in unrolls that are not acked."""

    recording: float
    unacked: float


@dataclass(frozen=True)
class Kill:
    """One actor that went. `drained`: it ended by itself within the notice: what was unacked was stored."""

    actor: str
    at: float
    drained: bool
    open: OpenSteps | None

    @property
    def lost_steps(self) -> float | None:
        if self.open is None:
            return None
        return self.open.recording + (0.0 if self.drained else self.open.unacked)


class Fleet(Protocol):
    """The actors, by the ids of their containers."""

    def terminate(self, actor: str) -> bool:
        """Asks it to end. False if it is not there."""
        ...

    def kill(self, actor: str) -> bool: ...

    def start(self, actor: str) -> bool: ...


@dataclass
class _Leaving:
    """Was given notice and has not gone yet."""

    deadline: float
    open: OpenSteps | None


@dataclass
class Storm:
    """Rounds of kills. `open_steps` is asked for the victims' figures before each round."""

    fleet: Fleet
    plan: SpotPlan
    random: Random
    open_steps: Callable[[Sequence[str]], Mapping[str, OpenSteps]] = lambda actors: {}
    kills: list[Kill] = field(default_factory=list)
    num_rounds: int = 0
    # Actors that did not come back, and why.
    missing: dict[str, str] = field(default_factory=dict)
    _next_round: float | None = None
    _leaving: dict[str, _Leaving] = field(default_factory=dict)
    _back_at: dict[str, float] = field(default_factory=dict)

    @property
    def num_away(self) -> int:
        return len(self._back_at)

    def step(self, now: float, running: Collection[str]) -> None:
        """Does what is due; `running` are the actors that run now. The first call is the first round."""
        self._see_off(now, running)
        for actor, back_at in list(self._back_at.items()):
            if now >= back_at:
                self._start(actor)
        if self._next_round is None or now >= self._next_round:
            self._next_round = (now if self._next_round is None else self._next_round) + self.plan.every_s
            self._strike(now, sorted(set(running) - set(self._leaving) - set(self._back_at)))

    def end(self, now: float) -> None:
        """Everybody comes back."""
        for actor, leaving in list(self._leaving.items()):
            self._kill(actor, now, leaving.open)
        for actor in list(self._back_at):
            self._start(actor)

    def _strike(self, now: float, actors: Sequence[str]) -> None:
        victims = self.random.sample(actors, num_victims(len(actors), self.plan.fraction))
        if not victims:
            return
        self.num_rounds += 1
        found = self.open_steps(victims)
        for actor in victims:
            if self.plan.notice_s == 0:
                self._kill(actor, now, found.get(actor))
            elif self.fleet.terminate(actor):
                self._leaving[actor] = _Leaving(now + self.plan.notice_s, found.get(actor))

    def _see_off(self, now: float, running: Collection[str]) -> None:
        for actor, leaving in list(self._leaving.items()):
            if actor not in running:
                self._gone(Kill(actor, now, True, leaving.open))
            elif now >= leaving.deadline:
                self._kill(actor, now, leaving.open)

    def _kill(self, actor: str, now: float, open_steps: OpenSteps | None) -> None:
        # First on the list of those that are to come back: whatever happens to the call, it is started again.
        self._back_at[actor] = now + self.plan.back_after_s
        if self.fleet.kill(actor):
            self._gone(Kill(actor, now, False, open_steps))
        elif actor in self._leaving:
            self._gone(Kill(actor, now, True, open_steps))

    def _gone(self, kill: Kill) -> None:
        self._leaving.pop(kill.actor, None)
        self.kills.append(kill)
        self._back_at[kill.actor] = kill.at + self.plan.back_after_s

    def _start(self, actor: str) -> None:
        del self._back_at[actor]
        try:
            if not self.fleet.start(actor):
                self.missing[actor] = "its container was removed"
        except ShoalError as error:
            self.missing[actor] = str(error)
