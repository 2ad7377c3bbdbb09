"""A shard whose tables are kept by snapshots: what a resend is told after a crash, and how the shard ends."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.replay.shard import Shard
from shoal.clients.replay_shard import Outcome
from shoal.config.connections import LimitsSection
from shoal.config.tables import AnyTable, QueueTable, SequenceTable, TransitionTable
from shoal.config.tree import ReplaySection
from shoal.journal.reader import list_segments, segment_number
from tests.unit.replay.payloads import payload
from tests.unit.replay.shards import LIFE, an, stats_of
from tests.unit.replay.storage.faulty_files import FaultyFiles
from tests.unit.replay.virtual_time import settle

# A snapshot hangs, and then the process is to end.
PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.unit.replay.storage.faulty_files import FaultyFiles
from tests.unit.replay.test_shard_snapshots import hanging_snapshot, open_shard

async def main():
    shard = await open_shard(Path(sys.argv[1]), files := FaultyFiles())
    await hanging_snapshot(shard, files)
    await shard.close(0.1)

asyncio.run(main())
"""


async def open_shard(
    directory: Path,
    files: FaultyFiles | None = None,
    snapshot_every_s: float = 1000.0,
    settings: AnyTable | None = None,
) -> Shard:
    table = settings or QueueTable(snapshot_every_s=snapshot_every_s)
    shard = Shard(ReplaySection(tables={"train": table}), LimitsSection(), directory)
    shard.tables["train"]._files = files or FaultyFiles()
    await shard.open()
    return shard


async def hanging_snapshot(shard: Shard, files: FaultyFiles) -> asyncio.Future[bool]:
    """Of one item. It ends when appends to files go on."""
    files.may_append.clear()
    assert (await shard.append(LIFE, "train", an(1))).outcome is Outcome.STORED
    snapshots = shard.tables["train"]._snapshots
    assert snapshots is not None
    snapshot = asyncio.ensure_future(snapshots.snapshot())
    await is_appending(files)
    return snapshot


async def is_appending(files: FaultyFiles) -> None:
    async with asyncio.timeout(30):
        while not files.appending.is_set():
            await asyncio.sleep(0.001)


def test_a_resend_of_what_a_snapshot_left_out_is_stored(tmp_path: Path) -> None:
    async def main() -> None:
        shard = await open_shard(tmp_path / "data", files := FaultyFiles())
        snapshot = await hanging_snapshot(shard, files)
        assert (await shard.append(LIFE, "train", an(2))).outcome is Outcome.STORED
        files.may_append.set()
        assert await snapshot
        shutil.copytree(tmp_path / "data", tmp_path / "crash")
        await shard.close()
        after = await open_shard(tmp_path / "crash")
        assert stats_of(after).num_items == 1
        assert (await after.append(LIFE, "train", an(1))).outcome is Outcome.DUPLICATE
        assert (await after.append(LIFE, "train", an(2))).outcome is Outcome.STORED
        assert [item.sequence for item in (await after.sample("train", 9)).items] == [1, 2]
        await after.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "settings",
    [
        QueueTable(snapshot_every_s=1000.0, max_items=2),
        SequenceTable(snapshot_every_s=1000.0, samples_per_insert=1.0, ratio_tolerance=1.0),
        TransitionTable(snapshot_every_s=1000.0, samples_per_insert=1.0, ratio_tolerance=1.0),
    ],
    ids=lambda settings: settings.kind,
)
def test_a_snapshot_that_has_an_item_knows_its_append(tmp_path: Path, settings: AnyTable) -> None:
    """Also if it is stored by whoever makes room, and its own task has not heard of that yet."""

    async def main() -> None:
        one = payload(rows=2, envs=1)
        shard = await open_shard(tmp_path / "data", settings=settings)
        for sequence in (1, 2):
            assert (await shard.append(LIFE, "train", an(sequence, one))).outcome is Outcome.STORED
        waiting = asyncio.ensure_future(shard.append(LIFE, "train", an(3, one, timeout_s=30.0)))
        await settle()
        assert not waiting.done()
        assert (await shard.sample("train", 1)).num_sampled == 1
        assert not waiting.done()
        snapshots = shard.tables["train"]._snapshots
        assert snapshots is not None
        assert await snapshots.snapshot()
        assert (await waiting).outcome is Outcome.STORED
        shutil.copytree(tmp_path / "data", tmp_path / "crash")
        await shard.close()
        after = await open_shard(tmp_path / "crash", settings=settings)
        num_items = stats_of(after).num_items
        assert num_items == stats_of(shard).num_items
        resent = await after.append(LIFE, "train", an(3, one, timeout_s=0.1))
        assert (resent.outcome, stats_of(after).num_items) == (Outcome.DUPLICATE, num_items)
        await after.close()

    asyncio.run(main())


class HangsInAll(FaultyFiles):
    """What was begun cannot be deleted either."""

    def delete(self, path: Path) -> None:
        if self.appending.is_set():
            self.may_append.wait()
        super().delete(path)


@pytest.mark.parametrize("is_under_way", [True, False])
def test_a_shard_leaves_a_hanging_disk_in_time_and_says_what_is_lost(
    tmp_path: Path, is_under_way: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        shard = await open_shard(tmp_path, files := HangsInAll())
        if is_under_way:
            await hanging_snapshot(shard, files)
        else:
            await shard.append(LIFE, "train", an(1))
            files.may_append.clear()
        started = time.monotonic()
        closing = asyncio.ensure_future(shard.close(0.1))
        done, _ = await asyncio.wait((closing,), timeout=30)
        print(f"close(0.1) on a disk that hangs took {time.monotonic() - started:.2f} s")
        files.may_append.set()
        assert done

    asyncio.run(main())
    assert "1 items are in no snapshot and are lost" in caplog.text


def test_a_process_ends_well_while_its_disk_hangs(tmp_path: Path) -> None:
    ended = subprocess.run((sys.executable, "-c", PROGRAM, str(tmp_path)), timeout=60, check=False)
    assert ended.returncode == 0


def test_closing_waits_for_the_snapshot_that_is_written_and_adds_the_rest(tmp_path: Path) -> None:
    async def main() -> None:
        files = FaultyFiles()
        files.may_append.clear()
        shard = await open_shard(tmp_path, files, snapshot_every_s=0.001)
        await is_appending(files)
        await shard.append(LIFE, "train", an(1))
        closing = asyncio.ensure_future(shard.close(30))
        await asyncio.sleep(0)
        files.may_append.set()
        await closing
        # The state without the item; the item, and the state with it.
        assert [segment_number(path.name) for path in list_segments(tmp_path / "train")] == [1, 2, 3]
        after = await open_shard(tmp_path)
        assert stats_of(after).num_items == 1
        await after.close()

    asyncio.run(main())
