"""How something is going, while the user waits: a line that changes in place, or lines without a terminal.

Standard library only; called from the main thread.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from shoal.cli.say import say

CLEAR = "\r\x1b[2K"


class Progress:
    """Used as a context: what is left of the line is wiped at the end."""

    def __init__(
        self,
        out: TextIO | None = None,
        *,
        plain_every_s: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a terminal a line is printed when the text has changed, but not more often than that."""
        self._out = out or sys.stdout
        self._is_terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._plain_every_s = plain_every_s
        self._now = now
        self._last: str | None = None
        self._last_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wipe()

    def show(self, text: str) -> None:
        """The state of things now."""
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(CLEAR + text[:width])
        elif text == self._last or not self._is_due():
            return
        else:
            self._last_at = self._now()
            say(text, self._out)
        self._last = text

    def _is_due(self) -> bool:
        return self._last is None or self._now() - self._last_at >= self._plain_every_s

    def tell(self, text: str) -> None:
        """Something that happened: a line that stays."""
        self._wipe()
        say(text, self._out)

    def _wipe(self) -> None:
        if self._is_terminal and self._last is not None:
            self._write(CLEAR)

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except OSError:  # a terminal that was closed
            self._is_terminal = False
