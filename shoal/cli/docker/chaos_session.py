"""Measures a calm stretch, a stormy one in which actors are killed, a calm one again: what the storm cost.

Called by `shoal chaos`. One thread; whatever happens, actors that were killed are started again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from random import Random

from shoal.cli.docker.chaos_report import ChaosReport
from shoal.cli.docker.containers import Container, names
from shoal.cli.docker.engine import Project
from shoal.cli.docker.interrupt import Interrupt
from shoal.cli.docker.measures import LEARNER_STEPS, OPEN_STEPS, Window, measure, open_steps, rate
from shoal.cli.docker.progress import Progress
from shoal.cli.docker.prometheus import Prometheus, PrometheusError
from shoal.cli.docker.spot import OpenSteps, SpotPlan, Storm, num_victims
from shoal.cli.figures import clock
from shoal.errors import UserError

TICK_S = 1.0
# How often the progress line asks Prometheus.
ASK_EVERY_S = 5.0
# The longest wait for actors to be at work again after the storm.
BACK_TIMEOUT_S = 60.0


class Actors:
    """The fleet of a storm: containers of the service `actor`."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def terminate(self, actor: str) -> bool:
        return self._project.kill(actor, "SIGTERM")

    def kill(self, actor: str) -> bool:
        return self._project.kill(actor)

    def start(self, actor: str) -> bool:
        return self._project.start(actor)


class LearnerWatch:
    """Counts how often the learner's containers began another life."""

    def __init__(self) -> None:
        self.num_restarts = 0
        # By the container's number: its id, and when it began.
        self._lives: dict[int, tuple[str, datetime | None]] = {}

    def look(self, containers: Sequence[Container]) -> Container | None:
        """Returns one that is over and will not come back."""
        learners = [each for each in containers if each.service == "learner"]
        for each in learners:
            life = each.id, each.started_at
            self.num_restarts += self._lives.get(each.number, life) != life
            self._lives[each.number] = life
        return next((each for each in learners if each.is_done or each.has_failed), None)


class Session:
    """One `shoal chaos --spot`."""

    def __init__(
        self,
        project: Project,
        server: Prometheus,
        plan: SpotPlan,
        random: Random,
        progress: Progress,
        interrupt: Interrupt,
    ) -> None:
        self._project = project
        self._server = server
        self._plan = plan
        self._progress = progress
        self._interrupt = interrupt
        self._learner = LearnerWatch()
        self._storm = Storm(Actors(project), plan, random, self._open_steps)
        self._containers: Sequence[Container] = ()
        self._speed: tuple[float, float | None] = (0.0, None)

    def check(self) -> int:
        """How many actors there are. Raises UserError if there is nothing to kill or to measure."""
        self._containers = self._project.running()
        num_actors = len(self._running())
        if num_actors == 0:
            raise UserError(f"project {self._project.name} has no running actor: `shoal scale actor=4`")
        if num_victims(num_actors, self._plan.fraction) == 0:
            raise UserError(
                f"project {self._project.name} has one actor, and one has to stay: `shoal scale actor=4`, "
                "or --fraction 1 to kill all"
            )
        if self._learner.look(self._containers) is not None or not self._server.now(LEARNER_STEPS):
            raise UserError(
                f"no learner of project {self._project.name} is training, as far as Prometheus at "
                f"{self._server.address} knows: start it with `shoal up`, or wait a little"
            )
        return num_actors

    def run(self, calm_s: float, chaos_s: float) -> ChaosReport | None:
        """None if the user ended it before there was anything to tell."""
        num_actors = self.check()
        before = self._calm(calm_s, "before")
        if before is None:
            # Says so if the learner is what ended it.
            self.check()
            return None
        started, start = time.time(), time.monotonic()
        ended = ""
        try:
            while not self._interrupt.is_set and time.monotonic() - start < chaos_s:
                self._containers = self._project.containers()
                ended = self._learner_ended()
                if ended:
                    break
                now = time.monotonic()
                self._storm.step(now, self._running())
                self._show(now - start, chaos_s, started, before)
                self._interrupt.wait(min(TICK_S, start + chaos_s - time.monotonic()))
            over = time.time()
        finally:
            self._storm.end(time.monotonic())
        after = None
        if not ended and not self._interrupt.is_set:
            self._until_at_work(num_actors)
            after = self._calm(calm_s, "after")
        self._containers = self._project.containers()
        ended = self._learner_ended()
        if self._interrupt.is_set:
            ended = "You ended it before the time was over; all actors were started again."
        called = names(self._containers)
        return ChaosReport(
            plan=self._plan,
            num_actors=num_actors,
            before=before,
            chaos=measure(self._server, started, over),
            after=after,
            kills=tuple(self._storm.kills),
            num_rounds=self._storm.num_rounds,
            learner_restarts=self._learner.num_restarts,
            missing=tuple(f"{called.get(who, who[:12])}: {why}" for who, why in self._storm.missing.items()),
            ended=ended,
        )

    def _calm(self, seconds: float, which: str) -> Window | None:
        """None if the user ended it, or the learner ended."""
        started, deadline = time.time(), time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._progress.show(f"calm {which}: measuring for {left:.0f} s more")
            self._containers = self._project.containers()
            if self._interrupt.wait(min(left, TICK_S)) or self._learner_ended():
                return None
        return measure(self._server, started, time.time())

    def _until_at_work(self, num_actors: int) -> None:
        """Or until it takes too long: what the last kills cost must not slow what they are compared with."""
        deadline = time.monotonic() + BACK_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                if len(open_steps(self._server.now(OPEN_STEPS))) >= num_actors:
                    return
            except PrometheusError:
                pass
            self._progress.show("waiting for the actors that came last")
            if self._interrupt.wait(TICK_S):
                return

    def _learner_ended(self) -> str:
        """What to say of it; empty if it has not."""
        learner = self._learner.look(self._containers)
        if learner is None:
            return ""
        return f"The learner ended with exit code {learner.exit_code} before the time was over."

    def _running(self) -> list[str]:
        return [each.id for each in self._containers if each.service == "actor" and each.is_running]

    def _open_steps(self, victims: Sequence[str]) -> Mapping[str, OpenSteps]:
        """By container. A Prometheus that is away does not stop a storm."""
        try:
            by_address = open_steps(self._server.now(OPEN_STEPS))
        except PrometheusError:
            return {}
        addresses = {each.id: each.addresses for each in self._containers if each.id in victims}
        return {
            actor: by_address[address]
            for actor, found in addresses.items()
            for address in found
            if address in by_address
        }

    def _show(self, elapsed_s: float, chaos_s: float, started: float, before: Window) -> None:
        asked_at, speed = self._speed
        if time.monotonic() - asked_at >= ASK_EVERY_S:
            try:
                speed = rate(self._server.between(LEARNER_STEPS, started, time.time()))
            except PrometheusError:
                speed = None
            self._speed = time.monotonic(), speed
        num_actors = sum(each.service == "actor" for each in self._containers)
        parts = [
            f"chaos {clock(elapsed_s)} of {clock(chaos_s)}",
            f"{len(self._storm.kills)} kills in {self._storm.num_rounds} rounds",
            f"actors {len(self._running())} of {num_actors} up",
        ]
        if speed is not None:
            parts.append(f"learner {speed:,.0f} env steps/s, before {before.learner_steps_per_s:,.0f}")
        self._progress.show(", ".join(parts))
