"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("torch", "grpcio", "numpy", "gymnasium", "lz4")


def describe_machine() -> str:
    """CPU, cores, memory and versions, one line each."""
    cores = len(os.sched_getaffinity(0))
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return "\n".join(
        [
            f"machine   {_cpu_model()}, {cores} cores, {memory_gib:.0f} GiB, load {os.getloadavg()[0]:.1f}",
            f"software  Python {platform.python_version()}, {versions}",
        ]
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown CPU"
