"""Lines for the user that never fail: output that cannot be written does not end a run, it goes on unseen.

Standard library only; called by the commands and the views, from the main thread.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO


def say(line: str, out: TextIO | None = None) -> None:
    """Prints a line on `out`, by default stdout."""
    try:
        print(line, file=out or sys.stdout, flush=True)
    except OSError:  # a reader that is gone (`| head`), a full disk, a closed terminal
        _silence(out or sys.stdout)


def complain(line: str) -> None:
    """Prints a line on stderr, if there is one: `print` would take stdout instead."""
    if sys.stderr is not None:
        say(line, sys.stderr)


def open_missing_streams() -> None:
    """Opens closed standard descriptors (`>&-`) on nothing: the next file opened would take their number,
    and a child's output would go into it."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _silence(out: TextIO) -> None:
    """Lets everything go nowhere, what is still in the buffer too: the interpreter flushes it at its end."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), out.fileno())
