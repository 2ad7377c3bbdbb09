"""The C library's allocator, told to keep what it has. Called once by services that use large arrays.

By itself glibc gives large blocks back to the system as soon as they are freed, and each of their pages
has to be found and cleared again when the next batch needs them: a fifth of the time of training on frames.
The price is that a process stays as large as it has ever been.
"""

from __future__ import annotations

import contextlib
import ctypes

# Of malloc.h: parameters of mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_NEVER = (1 << 31) - 1


def keep_freed_memory() -> None:
    """Before large arrays are made and threads are started. Does nothing where there is no glibc."""
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        # Blocks of any size from the one heap, which never shrinks.
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
