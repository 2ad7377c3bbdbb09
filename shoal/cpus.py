"""How many CPUs this process may use. No torch, any thread."""

from __future__ import annotations

import math
import os
from pathlib import Path

# Where a container sees its own control group.
CONTROL_GROUP = Path("/sys/fs/cgroup")


def num_cpus(control_group: Path = CONTROL_GROUP) -> int:
    """Those that it is allowed to run on, or the time of so many, if a container has a limit: rounded up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota_cpus(control_group)
    return allowed if quota is None else min(allowed, max(1, math.ceil(quota)))


def _quota_cpus(control_group: Path) -> float | None:
    """CPUs' worth of time per period; None without a limit, and where there are no control groups."""
    try:
        if (control_group / "cpu.max").exists():
            quota, period = (control_group / "cpu.max").read_text().split()
        else:  # version 1
            quota = (control_group / "cpu/cpu.cfs_quota_us").read_text()
            period = (control_group / "cpu/cpu.cfs_period_us").read_text()
        cpus = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
    return cpus if cpus > 0 else None
