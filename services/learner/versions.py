"""The policy version: strictly rising, across restarts and `kill -9` too.

A file in the run directory holds a ceiling that no used version has reached (hi-lo). Versions below it are
free to use without touching the disk; a restart goes on at the ceiling, so at most one block of numbers is
skipped. `next` is called by the training thread and waits for the disk once per block; `raise_above` is
called by the event loop, once per subscription.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from services.learner.files import replace_durably
from shoal.errors import InvalidArgumentError, UserError
from shoal.metrics import Clock

log = logging.getLogger(__name__)

# Room above any version that is taken from a peer: int64 never overflows.
MAX_FOREIGN_VERSION = 1 << 62

_RETRY_S = 10.0


class VersionCounter:
    """Hands out versions. The directory of `path` must exist."""

    def __init__(self, path: Path, block: int = 4096, clock: Clock = time.monotonic) -> None:
        self._path = path
        self._block = block
        self._clock = clock
        self._lock = threading.Lock()
        self._ceiling = self._read()
        self._next = self._ceiling
        self._not_before = clock()

    def next(self) -> int:
        """A version above all before it."""
        with self._lock:
            version = self._next
            if version >= self._ceiling and self._clock() >= self._not_before:
                self._reserve(version + self._block)
            self._next = version + 1
            return version

    def raise_above(self, version: int) -> None:
        """All further versions are above this one, which somebody already has."""
        if not -1 <= version < MAX_FOREIGN_VERSION:
            raise InvalidArgumentError(
                f"policy version {version} is out of range (limits -1 and {MAX_FOREIGN_VERSION - 1}): "
                "restart the process that sent it"
            )
        with self._lock:
            self._next = max(self._next, version + 1)

    def _reserve(self, ceiling: int) -> None:
        """Returns when the new ceiling is on the disk, or has been found not to get there."""
        try:
            replace_durably(self._path, f"{ceiling}\n".encode())
            self._ceiling = ceiling
        except OSError as error:
            # Versions still rise in this life, and subscribers tell the next one what they have.
            log.error("cannot write %s: %s; versions may repeat after a crash", self._path, error.strerror)
            self._not_before = self._clock() + _RETRY_S

    def _read(self) -> int:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise UserError(f"cannot read {self._path}: {error.strerror}") from None
        digits = text.removesuffix(b"\n")
        if not digits.isdigit() or len(digits) > 19:
            raise UserError(
                f"{self._path} holds {text[:40]!r} instead of a policy version: write a number there that is "
                "above every version in use"
            )
        return int(digits)
