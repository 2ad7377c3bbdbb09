"""Memory that was freed, given back to the system: the allocator keeps it, in case it is needed again."""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_EVERY_BYTES = 64 << 20


class HeapTrimmer:
    """Told of large blocks that go while memory of another kind fills up. From one thread."""

    def __init__(self) -> None:
        self._freed_bytes = 0

    def freed(self, num_bytes: int) -> None:
        self._freed_bytes += num_bytes
        if self._freed_bytes >= _TRIM_EVERY_BYTES:
            self._freed_bytes = 0
            # Of glibc; elsewhere large blocks go back by themselves.
            with contextlib.suppress(AttributeError, OSError):
                ctypes.CDLL(None).malloc_trim(0)
