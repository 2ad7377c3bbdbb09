"""Runs the processes of a local run: starts them, restarts the crashed, and stops all in order.

Called by `shoal train`. One asyncio loop on the main thread; a task per unit of processes: a single one, or
all learners that train together. `Supervisor.run` returns only when every process is gone; if the program
itself is killed, the guard sees to that.

Order of a stop: actors first, so that nothing new is collected; then the learner, which writes its
checkpoint; then inference and replay. A stage that misses its deadline is killed: 12 s at most in all.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from shoal.cli.child import Child, describe_exit
from shoal.cli.guard import Guard
from shoal.cli.plan import ProcessSpec
from shoal.cli.restarts import GiveUp, RestartPolicy
from shoal.cli.run_dir import RunDir
from shoal.cli.unit import Unit, units_of

# Exit code with which a service reports the user's mistake (see shoal.rpc.process).
USER_ERROR_CODE = 2
# Roles of each stage of a stop, and the time since its beginning at which those left are killed. Longer
# than the services' own limits: MAX_DRAIN_S and the margin of their watchdog.
STOP_ORDER: tuple[tuple[tuple[str, ...], float], ...] = (
    (("actor", "evaluator"), 3.6),
    (("learner",), 9.2),
    (("inference", "replay"), 11.8),
)
# After the learner is done there is nothing left to save: all go at once.
STOP_AT_ONCE: tuple[tuple[tuple[str, ...], float], ...] = (
    (("actor", "evaluator", "learner", "inference", "replay"), 6.0),
)


class End(Enum):
    """Why a run is over."""

    FINISHED = "finished"
    TIME_LIMIT = "time limit"
    INTERRUPTED = "interrupted"
    USER_ERROR = "user error"
    GAVE_UP = "gave up"


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `exit_code` for the program, `message` for the user."""

    end: End
    exit_code: int
    message: str


FINISHED = Outcome(End.FINISHED, 0, "the learner reached its stop condition")


class Supervisor:
    """All processes of one run."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        *,
        config_file: Path,
        run_dir: RunDir,
        environment: Mapping[str, str],
        guard: Guard,
        max_restarts: int,
        on_event: Callable[[str], None],
        on_over: Callable[[Outcome], None],
    ) -> None:
        self.children = tuple(Child(spec, run_dir.log(spec.name)) for spec in specs)
        self._config_file = config_file
        self._run_dir = run_dir
        self._environment = environment
        self._guard = guard
        self._units = units_of(self.children)
        self._policies = {
            child.name: policy
            for unit in self._units
            for policy in (RestartPolicy(max_restarts, time.monotonic),)
            for child in unit.children
        }
        self._on_event = on_event
        self._on_over = on_over
        self._over: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    async def run(self, time_limit_s: float | None) -> Outcome:
        """Runs until the run is over and everything has stopped."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_IGN:
                continue  # as whoever started us wants it, such as nohup
            loop.add_signal_handler(number, self._on_signal, number)
        if time_limit_s is not None:
            text = f"time limit of {time_limit_s / 60:g} min reached"
            loop.call_later(time_limit_s, self._end, Outcome(End.TIME_LIMIT, 0, text))
        tasks = [asyncio.create_task(self._keep_running(unit)) for unit in self._units]
        order = STOP_ORDER
        try:
            outcome = await self._over
            self._on_over(outcome)
            if outcome.end is End.FINISHED:
                order = STOP_AT_ONCE
            return outcome
        finally:
            try:
                await stop_in_order(self.children, order, self._on_event)
            finally:
                # Ends what services may have left, such as workers of environments.
                self._guard.close()
                await asyncio.gather(*tasks, return_exceptions=True)

    def fail(self, error: BaseException) -> None:
        """Ends the run, in order, by an error of this program; `run` raises it."""
        if not self._over.done():
            self._over.set_exception(error)

    def check(self) -> None:
        """Notices processes that came up and a run that is done. Called several times a second."""
        for child in self.children:
            if child.check_announcement():
                self._policies[child.name].came_up()
        # Without waiting for the learner's process to end: unloading torch takes it up to a second.
        if self._is_finished():
            self._end(FINISHED)
        if not self._guard.alive:
            self._end(Outcome(End.GAVE_UP, 1, "the process that guards the run was killed from outside"))

    async def _keep_running(self, unit: Unit) -> None:
        """One unit over all its lives."""
        try:
            while not unit.is_stopping:
                await unit.start(self._config_file, self._environment, self._guard.group)
                end = await unit.ended(self._on_stopped)
                if end is None:
                    break
                delay_s = self._on_exit(*end, unit)
                if delay_s is None:
                    break
                await unit.pause(delay_s)
        except OSError as error:
            self._end(Outcome(End.GAVE_UP, 1, f"cannot start {unit.name}: {error}"))
        except Exception as error:
            self.fail(error)
        finally:
            unit.gone()

    def _on_exit(self, child: Child, code: int, unit: Unit) -> float | None:
        """What a process's own end means: a pause before its restart, or None if the run is over."""
        if self._over.done():
            return None
        if code == 0 and child.spec.role == "learner" and self._is_finished():
            self._end(FINISHED)
            return None
        if code == USER_ERROR_CODE and (line := child.error_line()):
            self._end(Outcome(End.USER_ERROR, USER_ERROR_CODE, line))
            return None
        lived_s = time.monotonic() - child.started_at
        decision = self._policies[child.name].crashed(lived_s, code)
        hint = f": {child.last_line()}" if code > 0 and child.last_line() else ""
        if isinstance(decision, GiveUp):
            last = f"the last time it {describe_exit(code)}{hint}"
            self._end(Outcome(End.GAVE_UP, 1, f"{child.name} {decision.reason}; {last}; see {child.log}"))
            return None
        what = f" all {len(unit.children)} {child.spec.role}s" if len(unit.children) > 1 else ""
        self._on_event(
            f"{child.name} {describe_exit(code)}{hint}; restarting{what} in {decision.delay_s:g} s"
        )
        return decision.delay_s

    def _is_finished(self) -> bool:
        # A learner that somebody else stopped also leaves a result, with the reason `stopped`.
        return bool(self._run_dir.read_result().get("reason", "stopped") != "stopped")

    def _on_stopped(self, child: Child, code: int) -> None:
        """A process ended after it was asked to."""
        if code not in (0, -signal.SIGTERM, -signal.SIGKILL):
            self._on_event(f"{child.name} {describe_exit(code)} while stopping; see {child.log}")

    def _on_signal(self, number: int) -> None:
        if self._over.done():
            if number == signal.SIGHUP:
                return  # a closing terminal sends more than one
            self._on_event("killing everything")
            self._guard.kill_group()
            return
        name = signal.Signals(number).name
        self._end(Outcome(End.INTERRUPTED, 128 + number, f"interrupted by {name}"))

    def _end(self, outcome: Outcome) -> None:
        if not self._over.done():
            self._over.set_result(outcome)


async def stop_in_order(
    children: Sequence[Child],
    order: Sequence[tuple[tuple[str, ...], float]],
    on_event: Callable[[str], None],
) -> None:
    """Stops stage after stage; those that miss their stage's deadline are killed."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    for roles, deadline_s in order:
        stage = [child for child in children if child.spec.role in roles]
        for child in stage:
            child.stop()
        gone = asyncio.gather(*(child.gone.wait() for child in stage))
        try:
            await asyncio.wait_for(gone, began + deadline_s - loop.time())
        except TimeoutError:
            for child in stage:
                if not child.gone.is_set():
                    on_event(f"{child.name} did not stop in time and was killed")
                    child.send(signal.SIGKILL)
