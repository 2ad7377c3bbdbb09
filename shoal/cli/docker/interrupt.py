"""Ctrl-C and its like as a request instead of an exception: what was begun is finished first.

A second one ends at once. Main thread only.
"""

from __future__ import annotations

import os
import select
import signal
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Used as a context, which puts the handlers back at its end."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Not an event: its lock may be held by the very code that a handler interrupts.
        self._wakes, self._wake = os.pipe()
        for number in SIGNALS:
            # Whoever had a signal ignored, as `nohup` does, meant it.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._wake)
        os.close(self._wakes)

    @property
    def is_set(self) -> bool:
        return self.number is not None

    @property
    def exit_code(self) -> int:
        """As of a process that the signal ended; 0 without one."""
        return 0 if self.number is None else 128 + self.number

    def wait(self, seconds: float) -> bool:
        """Returns early, and True, if the user wants to end."""
        select.select([self._wakes], [], [], max(seconds, 0.0))
        return self.is_set

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise KeyboardInterrupt
        self.number = number
        os.write(self._wake, b"!")
