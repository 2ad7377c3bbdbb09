"""How many CPUs this process may use. No torch, any thread."""

from __future__ import annotations

import os


def num_cpus() -> int:
    """Those that it is allowed to run on, where the system says; containers and `taskset` may give fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
