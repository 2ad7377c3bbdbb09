"""A disk that is full of files whose items are all gone: it is freed without anybody's help."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
from pathlib import Path

import numpy as np
import pytest

from services.replay.shard import Shard
from services.replay.storage.payload_store import PayloadStore
from shoal.clients.replay_shard import Append, Outcome
from shoal.config.connections import LimitsSection
from shoal.config.tables import QueueTable
from shoal.config.tree import ReplaySection
from shoal.journal.reader import list_segments
from shoal.records import Life
from tests.unit.replay.payloads import payload
from tests.unit.replay.storage.faulty_files import FaultyFiles
from tests.unit.replay.storage.table_double import recovered
from tests.unit.replay.storage.test_journal import WAIT_S, Rig, as_it_is, run, running, within

SEGMENT_BYTES = 1 << 13
ITEM = bytes(1000)


def used(directory: Path) -> int:
    """Files come and go meanwhile."""
    total = 0
    for path in list_segments(directory):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


async def fill(rig: Rig) -> list[asyncio.Future[None]]:
    """More is waiting to be written than there is room; a state would fit."""
    for _ in range(60):
        await rig.write(ITEM)
    rig.files.capacity = used(rig.directory) + 6000
    waiting = [rig.table.insert(ITEM) for _ in range(20)]
    await rig.until(lambda: bool(rig.journal.degraded))
    return waiting


async def until_freed(rig: Rig, before: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while used(rig.directory) > before // 2:
            # As the table does it every second.
            rig.journal.reclaim(rig.table.oldest_key)
            await asyncio.sleep(0.001)


async def until_tried(rig: Rig) -> None:
    attempts = rig.files.calls["create"]
    await rig.until(lambda: rig.files.calls["create"] > attempts + 3)


@pytest.mark.parametrize("durability", ["wal", "fsync"])
def test_a_queue_that_is_drained_frees_the_disk_and_goes_on(tmp_path: Path, durability: str) -> None:
    async def main() -> None:
        async with running(tmp_path / "t", durability=durability, segment_bytes=SEGMENT_BYTES) as rig:
            waiting = await fill(rig)
            await until_tried(rig)
            assert not any(future.done() for future in waiting), "what is there has to be written"
            before = used(rig.directory)
            while rig.table.items:
                rig.table.remove(rig.table.oldest_key)
                await asyncio.sleep(0)
            await within(asyncio.gather(*waiting))
            await until_freed(rig, before)
            await rig.until(lambda: rig.journal.pending_bytes == 0)
            await rig.write(*[ITEM] * 20)
            assert rig.journal.degraded == ""
            print(f"{before} bytes of dead files on a full disk, {used(rig.directory)} after it was drained")
        found = recovered(tmp_path / "t").table
        assert found.contents == rig.table.contents
        assert found.next_key == rig.table.next_key

    run(main())


def test_states_that_never_got_to_the_disk_do_not_count_as_those_that_free_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "t", segment_bytes=SEGMENT_BYTES) as rig:
            waiting = await fill(rig)
            before = used(rig.directory)
            rig.files.fail(errno.ENOSPC, "append")
            *most, last = sorted(rig.table.items)
            for keys in (most, [last]):
                rig.table.remove(*keys)
                await until_tried(rig)
            rig.files.failing = {}
            await within(asyncio.gather(*waiting))
            await until_freed(rig, before)

    run(main())


def test_of_what_waits_only_what_is_gone_is_left_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "t", segment_bytes=SEGMENT_BYTES) as rig:
            waiting = await fill(rig)
            # All but the last two, for which there is room.
            rig.table.remove(*sorted(rig.table.items)[:-2])
            await within(asyncio.gather(*waiting))
            found = as_it_is(tmp_path / "t")
            assert sorted(found.items) == [79, 80]
            assert found.contents == rig.table.contents
            await rig.until(lambda: rig.journal.pending_bytes == 0)

    run(main())


def test_memory_is_let_go_though_an_item_that_went_was_never_written(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "t") as rig:
            store = PayloadStore(1000, 1, rig.files, rig.directory)
            rig.files.fail(errno.ENOSPC, "append")
            for key in (1, 2, 3):
                rig.table.insert(b"an item %d" % key)
                store.add(key, rig.table.items[key].payloads[0])
            await rig.until(lambda: bool(rig.journal.degraded))
            written = rig.table.items[3].payloads[0]
            rig.table.remove(1, 2)
            store.forget(np.array([1, 2], np.uint64))
            await until_tried(rig)
            rig.files.heal()
            await rig.until(lambda: written.is_synced)
            assert store.find(np.array([3], np.uint64)).data == [None]
            assert store.ram_bytes == 0

    run(main())


async def opened(directory: Path, files: FaultyFiles) -> Shard:
    settings = QueueTable(durability="fsync", segment_bytes=1 << 20)
    shard = Shard(ReplaySection(tables={"t": settings}), LimitsSection(), directory)
    shard.tables["t"]._files = files
    await shard.open()
    return shard


def test_an_append_that_was_sampled_before_it_was_written_is_acked_and_known_ever_after(
    tmp_path: Path,
) -> None:
    life = Life("actor", "run")
    first, second = (
        Append(sequence, (payload(sequence, envs=1, width=500),), timeout_s=WAIT_S) for sequence in (1, 2)
    )

    async def main() -> None:
        files = FaultyFiles()
        shard = await opened(tmp_path / "first", files)
        assert (await shard.append(life, "t", first)).outcome is Outcome.STORED
        # A state fits, and the payload does not.
        files.capacity = used(tmp_path / "first" / "t") + 3000
        waiting = asyncio.ensure_future(shard.append(life, "t", second))
        async with asyncio.timeout(WAIT_S):
            while not shard.stats()[0].degraded:
                await asyncio.sleep(0.001)
        assert len((await shard.sample("t", 2)).items) == 2
        assert (await within(waiting)).outcome is Outcome.STORED
        shutil.copytree(tmp_path / "first", tmp_path / "killed")
        again = await opened(tmp_path / "killed", FaultyFiles())
        stats = again.stats()[0]
        assert (stats.num_items, stats.num_inserted, stats.num_sampled_out) == (0, 2, 2)
        for append in (first, second):
            assert (await again.append(life, "t", append)).outcome is Outcome.DUPLICATE
        files.heal()
        await shard.close()
        await again.close()

    run(main())
