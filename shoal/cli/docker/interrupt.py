"""Ctrl-C and its like as a request instead of an exception: what was begun is finished first.

A second one ends at once. Main thread only.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Used as a context, which puts the handlers back at its end."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._event = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
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

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    @property
    def exit_code(self) -> int:
        """As of a process that the signal ended; 0 without one."""
        return 0 if self.number is None else 128 + self.number

    def wait(self, seconds: float) -> bool:
        """Returns early, and True, if the user wants to end."""
        return self._event.wait(max(seconds, 0.0))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._event.is_set():
            raise KeyboardInterrupt
        self.number = number
        self._event.set()
