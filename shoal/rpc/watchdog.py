"""Signals, and a bound on how long a process outlives them. Used by `shoal.rpc.process`.

The first SIGTERM or SIGINT asks the service to stop, the second ends the process at once, and a thread
ends it when it takes too long. Handlers run on the main thread between any two of its instructions, maybe
while it writes a log record or starts a thread: they only set values, wake and return.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

log = logging.getLogger(__name__)

# Beyond rpc.drain_s, for what a service does after its servers have drained.
MARGIN_S = 1.5

# For writing down why the process was ended.
LAST_WORDS_S = 0.3

# Before the service has started there is nothing to drain.
START_S = 5.0

# From the service's end to that of the process: leftover threads are not waited for any longer.
LINGER_S = 5.0

EXIT_CRASH = 1


class Watchdog:
    """`install` early, `attach` once the service can be asked to stop, `finished` when it has ended."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._limit_s = START_S
        self._on_stop: Callable[[int], object] | None = None
        self._signal = 0
        self._code = EXIT_CRASH
        self._finished = False
        self._deadline = float("inf")
        self._wake = threading.Event()

    def install(self) -> None:
        """From the main thread."""
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        # Not loop.add_signal_handler: a loop that is stuck could not see the second signal.
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def attach(self, drain_s: float, on_stop: Callable[[int], object]) -> None:
        """`on_stop` gets the first signal's number, from its handler, or at once if it has come already."""
        self._limit_s = drain_s + MARGIN_S
        self._on_stop = on_stop
        if self._signal:
            self._deadline = time.monotonic() + self._limit_s
            on_stop(self._signal)

    def finished(self, code: int) -> None:
        """From here on only leftover threads and tasks can hold up the exit, which will have this code."""
        self._code = code
        self._finished = True
        self._end_within(LINGER_S)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A forked child, such as an environment's worker, must not play the service: it just dies.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self._signal:
            os.write(2, f"second signal, {signal.Signals(number).name}: exiting at once\n".encode())
            os._exit(128 + number)
        self._signal = number
        self._end_within(self._limit_s)
        if self._on_stop is not None and not self._finished:
            self._on_stop(number)

    def _end_within(self, limit_s: float) -> None:
        self._deadline = min(self._deadline, time.monotonic() + limit_s)
        self._wake.set()

    def _watch(self) -> None:
        while (left := self._deadline - time.monotonic()) > 0:
            self._wake.wait(min(left, threading.TIMEOUT_MAX))
            self._wake.clear()
        # What is written below may block for ever, in a pipe that nobody reads.
        last_resort = threading.Timer(LAST_WORDS_S, os._exit, (self._code,))
        last_resort.daemon = True
        last_resort.start()
        if not self._finished:
            log.critical("not stopped %.1f s after the signal: giving up; every thread is at:", self._limit_s)
            faulthandler.dump_traceback()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(self._code)
