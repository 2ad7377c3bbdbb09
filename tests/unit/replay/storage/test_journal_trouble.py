"""The journal's thread in trouble beside writes: syncs while they fail, deletions that hang or break."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from services.replay.storage.segments import SegmentLog
from tests.unit.replay.storage.table_double import recovered
from tests.unit.replay.storage.test_journal import Rig, run, running


@pytest.mark.parametrize("is_synced", [True, False])
def test_wal_syncs_what_was_acked_though_writes_fail(tmp_path: Path, is_synced: bool) -> None:
    async def main() -> None:
        async with running(tmp_path / "t", durability="wal", sync_every_s=60.0) as rig:
            await rig.write(b"acked")
            rig.files.fail(errno.ENOSPC, "append", *(() if is_synced else ("fsync",)))
            refused = rig.table.insert(b"refused")
            # The file is ended, and then a new one is begun.
            await rig.until(lambda: rig.files.calls["create"] > 1)
            assert rig.files.calls["fsync"] > 0
            if is_synced:
                rig.files.lose_power(tmp_path / "full")
                assert recovered(tmp_path / "full").table.contents == {1: b"acked"}
            rig.files.heal()
            await rig.until(refused.done)
            if not is_synced:
                # It was written again, and for once not without a sync.
                rig.files.lose_power(tmp_path / "after")
                assert recovered(tmp_path / "after").table.contents == {1: b"acked", 2: b"refused"}

    run(main())


async def begin_deleting(rig: Rig) -> None:
    """Two more files, after which the first is not needed."""
    await rig.write(b"one")
    rig.table.remove(1)
    for _ in range(2):
        created = rig.files.calls["create"]
        rig.journal._rotate_soon()
        await rig.until(lambda created=created: rig.files.calls["create"] > created)


def test_a_deletion_that_hangs_shows(tmp_path: Path) -> None:
    now = 1000.0

    async def main() -> None:
        nonlocal now
        async with running(tmp_path / "t", clock=lambda: now) as rig:
            rig.files.may_delete.clear()
            try:
                await begin_deleting(rig)
                await rig.until(lambda: rig.files.calls["delete"] > 0)
                late = rig.table.insert(b"held up")
                now += 6.0
                assert "slow" in rig.journal.degraded
                assert not late.done()
            finally:
                rig.files.may_delete.set()
            await rig.until(late.done)
            assert rig.journal.degraded == ""

    run(main())


def test_a_bug_in_deleting_is_logged_and_acks_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(SegmentLog, "reclaim", broken)

    async def main() -> None:
        async with running(tmp_path / "t") as rig:
            await rig.write(b"one")
            await rig.write(b"two")
            assert rig.journal.degraded == ""

    run(main())
    assert "cannot delete old files" in caplog.text
    assert recovered(tmp_path / "t").table.contents == {1: b"one", 2: b"two"}
