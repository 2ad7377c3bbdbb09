"""The memory limit that a shard shows: its container's if that is smaller than the machine."""

from __future__ import annotations

from pathlib import Path

import psutil

from services.replay.memory_limit import memory_limit_bytes


def test_the_smallest_limit_counts(tmp_path: Path) -> None:
    small, none, huge, gone = tmp_path / "small", tmp_path / "none", tmp_path / "huge", tmp_path / "gone"
    small.write_text("268435456\n")
    none.write_text("max\n")
    huge.write_text(f"{1 << 62}\n")
    assert memory_limit_bytes((none, small)) == 1 << 28
    machine = memory_limit_bytes((none, gone, huge))
    assert machine == psutil.virtual_memory().total
