"""The watch over environments that are stepped in this process: one that hangs ends the process.

Nothing in Python can stop a step that does not return. The watch reports which environment it is and where
its code is, then the process ends and whoever supervises it starts another. Environments in worker processes
have their own limit (`shoal.envs.workers`). Wired by the actor: `HangWatch` watches from a thread of its own.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from shoal.envs.batch import BatchEnv, EnvStep, Slots

log = logging.getLogger(__name__)

# Environments that hold Python's lock stop the watch too; then this much later the process ends all the same.
_LOCKED_S = 30.0
_MAX_POLL_S = 1.0


@runtime_checkable
class Tells(Protocol):
    """A `BatchEnv` that says, to any thread, which of its environments it is at, and where that one is."""

    def doing(self) -> str: ...


class WatchedEnv:
    """A `BatchEnv` that leaves a note when a call begins and when it is back."""

    def __init__(self, env: BatchEnv) -> None:
        self._env = env
        # Written here and read by the watch. Odd: a call is under way.
        self.num_turns = 0
        self.thread = 0

    @property
    def slots(self) -> Mapping[str, Slots]:
        return self._env.slots

    @property
    def waits(self) -> bool:
        return self._env.waits

    @property
    def num_restarts(self) -> int:
        return self._env.num_restarts

    def doing(self) -> str:
        if isinstance(self._env, Tells):
            return self._env.doing()
        return f"environment {next(iter(self._env.slots.values())).spec.env_id!r}"

    def reset(self, seed: int) -> dict[str, EnvStep]:
        self.thread = threading.get_ident()
        self.num_turns += 1
        try:
            return self._env.reset(seed)
        finally:
            self.num_turns += 1

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, EnvStep]:
        self.thread = threading.get_ident()
        self.num_turns += 1
        try:
            return self._env.step(actions)
        finally:
            self.num_turns += 1

    def close(self) -> None:
        self._env.close()


class HangWatch:
    """Watches environments in a thread between `start` and `close`."""

    def __init__(
        self,
        timeout_s: float,
        on_hang: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`timeout_s` is `env.step_timeout_s`; `on_hang` is called instead of ending the process."""
        self._timeout_s = timeout_s
        self._poll_s = min(_MAX_POLL_S, timeout_s / 4)
        self._on_hang = on_hang
        self._clock = clock
        self._envs: list[WatchedEnv] = []
        # Per environment: what it was at, and since when.
        self._seen: dict[int, tuple[tuple[int, str], float]] = {}
        self._last_look = clock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hang-watch", daemon=True)

    def watch(self, env: BatchEnv) -> BatchEnv:
        """The same environments, watched; those that wait for other processes are left to those."""
        if env.waits:
            return env
        watched = WatchedEnv(env)
        self._envs.append(watched)
        return watched

    def start(self) -> None:
        self._arm()
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._on_hang is None:
            faulthandler.cancel_dump_traceback_later()

    def look(self) -> bool:
        """One look at all environments; True if one hangs, which is reported."""
        now = self._clock()
        # The process was stopped or starved: that is not the environment's time.
        if now - self._last_look > self._timeout_s / 2 + self._poll_s:
            self._seen.clear()
        self._last_look = now
        hanging = [index for index, env in enumerate(self._envs) if self._hangs(index, env, now)]
        return bool(hanging)

    def _hangs(self, index: int, env: WatchedEnv, now: float) -> bool:
        turns = env.num_turns
        if turns % 2 == 0:
            self._seen.pop(index, None)
            return False
        at = (turns, env.doing())
        seen, since = self._seen.get(index, (None, now))
        if seen != at:
            self._seen[index] = (at, now)
            return False
        if now - since < self._timeout_s:
            return False
        self._report(env, now - since)
        self._seen.pop(index)
        return True

    def _report(self, env: WatchedEnv, age_s: float) -> None:
        frame = sys._current_frames().get(env.thread)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "  its thread is gone\n"
        log.error(
            "%s hangs: it has not come back for %.1f s (env.step_timeout_s is %g); it is at\n%s",
            env.doing(),
            age_s,
            self._timeout_s,
            stack.rstrip(),
        )

    def _run(self) -> None:
        while not self._closing.wait(self._poll_s):
            self._arm()
            if self.look():
                if self._on_hang is None:
                    _end_process()
                else:
                    self._on_hang()

    def _arm(self) -> None:
        """Has the process end unless this is called again in time. That needs no lock of Python's, so it also
        ends one whose lock is never given back."""
        if self._on_hang is None:
            with contextlib.suppress(RuntimeError, OSError, AttributeError):  # no stderr to write to
                faulthandler.dump_traceback_later(self._timeout_s + _LOCKED_S, exit=True)


def _end_process() -> None:
    """Without waiting for anything: the thread that hangs would be waited for."""
    logging.shutdown()
    os._exit(1)
