"""CPUs of a process: those it may run on, cut down to what its container is given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal.cpus import num_cpus


@pytest.fixture(autouse=True)
def _eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def test_all_without_a_limit(tmp_path: Path) -> None:
    assert num_cpus(tmp_path) == 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("250000 100000", 3),
        ("20000 100000", 1),
        ("1600000 100000", 8),
        ("nonsense", 8),
    ],
)
def test_limits_of_version_2(tmp_path: Path, text: str, expected: int) -> None:
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert num_cpus(tmp_path) == expected


@pytest.mark.parametrize(
    ("quota", "period", "expected"), [("-1", "100000", 8), ("150000", "50000", 3), ("1", "0", 8)]
)
def test_limits_of_version_1(tmp_path: Path, quota: str, period: str, expected: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text(quota + "\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text(period + "\n")
    assert num_cpus(tmp_path) == expected
