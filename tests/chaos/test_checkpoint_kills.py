"""`kill -9` while checkpoints are written, at 200 random moments: what is there is whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.learner.killing import kill_writers

SEED = int(os.environ.get("CHAOS_SEED", "1"))


@pytest.mark.timeout(300)
def test_200_kills_during_writes_never_leave_a_torn_one(tmp_path: Path) -> None:
    """After each kill the newest checkpoint that was said to be safe is loaded, and its content checked."""
    found = kill_writers("checkpoints", tmp_path / "c", 200, SEED, timeout_s=280)
    print(
        f"{found['rounds']} kills, {found['leftovers']} inside a write: {found['loaded']} loaded, "
        f"{found['torn']} torn accepted"
    )
    assert found["loaded"] == found["rounds"] == 200
    assert found["torn"] == 0
    assert found["leftovers"] > 50, "too few kills landed inside a write: the test shows nothing"


def test_control_kills_without_the_rename_are_seen(tmp_path: Path) -> None:
    found = kill_writers("unprotected", tmp_path / "c", 20, SEED, timeout_s=100)
    print(f"control, {found['rounds']} kills of unprotected writers: {found['torn']} torn")
    assert 0 < found["torn"] <= found["rounds"]
