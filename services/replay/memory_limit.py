"""How much memory the kernel lets this process have: that of its container, or the machine's."""

from __future__ import annotations

import os
from pathlib import Path

# Of the process's own control group, as a container sees it: version 2, version 1.
_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_limit_bytes(files: tuple[Path, ...] = _FILES) -> int:
    """The smallest limit that there is. Never fails: without any it is the machine's memory."""
    machine = os.sysconf("SC_PAGESIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for file in files if (limit := _read(file)) is not None)])


def _read(file: Path) -> int | None:
    """None for `max`, and where there is no such file."""
    try:
        limit = int(file.read_text())
    except (OSError, ValueError):
        return None
    return limit if limit > 0 else None
