"""What one damaged frame, one item that stays, or one error of close() may cost: nothing else."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.replay.shard import Shard
from services.replay.signature import UNROLL_LENGTH
from services.replay.storage.segments import UNKNOWN_KEY, Segment, holds_any
from shoal.clients.replay_shard import Append, Outcome
from shoal.config.connections import LimitsSection
from shoal.config.tables import AnyTable, QueueTable, SequenceTable, TransitionTable
from shoal.config.tree import ReplaySection
from shoal.journal.events import Inserted, TableState
from shoal.journal.reader import Entry, list_segments, read_segment
from shoal.records import ArraySpec, Life
from shoal.wire import encode_trajectory
from tests.unit.replay.payloads import payload, trajectory
from tests.unit.replay.storage.faulty_files import FaultyFiles
from tests.unit.replay.storage.test_segments import Rig, payloads

LIFE = Life("actor", "run")
SETTINGS: dict[str, AnyTable] = {
    "queue": QueueTable(durability="fsync"),
    "sequence": SequenceTable(durability="fsync"),
    "transition": TransitionTable(durability="fsync"),
}


async def opened(directory: Path, settings: AnyTable) -> Shard:
    shard = Shard(ReplaySection(tables={"t": settings}), LimitsSection(), directory)
    await shard.open()
    return shard


async def append(shard: Shard, sequence: int, **options: Any) -> Outcome:
    data = payload(options.pop("number", sequence), envs=1, **options)
    return (await shard.append(LIFE, "t", Append(sequence, (data,)))).outcome


def damage(directory: Path, kind: type) -> None:
    """The newest frame of a kind."""
    for path in reversed(list_segments(directory / "t")):
        parts = [part for part in read_segment(path) if isinstance(part, Entry)]
        of_kind = [part for part in parts if isinstance(part.record, kind)]
        if of_kind:
            data = bytearray(path.read_bytes())
            data[of_kind[-1].offset + of_kind[-1].length - 1] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError(f"no {kind}")


async def until_files(directory: Path, number: int) -> None:
    """Until as many were begun, and the newest of them holds a state."""
    async with asyncio.timeout(30.0):
        while True:
            path = list_segments(directory / "t")[-1]
            if int(path.stem) >= number and any(isinstance(part, Entry) for part in read_segment(path)):
                return
            await asyncio.sleep(0.001)


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("damaged", [None, TableState, Inserted])
def test_the_signature_outlives_kill_9_after_the_first_ack(
    tmp_path: Path, kind: str, damaged: type | None
) -> None:
    async def main() -> None:
        shard = await opened(tmp_path / "first", SETTINGS[kind])
        data = payload(1, envs=1)
        declared = [ArraySpec("action", "int64", (), 5)]
        ack = await shard.append(LIFE, "t", Append(1, (data,)), declared=declared)
        assert ack.outcome is Outcome.STORED
        if damaged is not None:
            await until_files(tmp_path / "first", 2)
        # What a process that is killed here leaves behind.
        shutil.copytree(tmp_path / "first", tmp_path / "second")
        if damaged is not None:
            damage(tmp_path / "second", damaged)
        again = await opened(tmp_path / "second", SETTINGS[kind])
        assert again.tables["t"].signature.specs == shard.tables["t"].signature.specs
        assert await append(again, 2, width=9) is Outcome.REJECTED
        assert await append(again, 3, number=7) is Outcome.REJECTED, "a category out of range"
        longer = Outcome.REJECTED if kind == "sequence" else Outcome.STORED
        assert await append(again, 4, rows=7) is longer
        assert await append(again, 1) is Outcome.DUPLICATE
        await shard.close()
        await again.close()

    run(main())


@pytest.mark.parametrize("kind", SETTINGS)
def test_no_column_has_a_name_that_makes_the_files_unreadable(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        shard = await opened(tmp_path, SETTINGS[kind])
        made = trajectory(envs=1)
        made.columns[UNROLL_LENGTH] = np.zeros((3, 1), np.float32)
        data = encode_trajectory(made)
        assert (await shard.append(LIFE, "t", Append(0, (data,)))).outcome is Outcome.REJECTED
        assert shard.tables["t"].table.ledger.num_rejected["invalid"] == 1
        assert await append(shard, 1) is Outcome.STORED
        await shard.close()
        again = await opened(tmp_path, SETTINGS[kind])
        assert again.tables["t"].num_recovered > 0
        assert await append(again, 2) is Outcome.STORED
        await again.close()

    run(main())


def test_categories_that_are_declared_later_are_known_with_the_next_ack(tmp_path: Path) -> None:
    async def main() -> None:
        shard = await opened(tmp_path / "first", SETTINGS["queue"])
        assert await append(shard, 1) is Outcome.STORED
        await until_files(tmp_path / "first", 2)
        shard.check_append(LIFE, "t", [ArraySpec("action", "int64", (), 5)])
        assert await append(shard, 2) is Outcome.STORED
        shutil.copytree(tmp_path / "first", tmp_path / "second")
        again = await opened(tmp_path / "second", SETTINGS["queue"])
        assert await append(again, 7) is Outcome.REJECTED
        await shard.close()
        await again.close()

    run(main())


@pytest.mark.parametrize("num_restarts", [1, 2, 3])
def test_a_flipped_bit_in_the_newest_state_costs_nothing(tmp_path: Path, num_restarts: int) -> None:
    directory = tmp_path / "shard"

    async def main() -> None:
        shard = await opened(directory, SETTINGS["queue"])
        for sequence in range(8):
            assert await append(shard, sequence) is Outcome.STORED
        assert [item.key for item in (await shard.sample("t", 5)).items] == [1, 2, 3, 4, 5]
        for _ in range(num_restarts):
            await shard.close()
            shard = await opened(directory, SETTINGS["queue"])
        await shard.close()
        files = [path.name for path in list_segments(directory / "t")]
        before = shard.stats()[0]
        damage(directory, TableState)
        shard = await opened(directory, SETTINGS["queue"])
        now = shard.stats()[0]
        print(f"newest state of {files} damaged: {now.num_items} items, {now.num_corrupt} corrupt")
        assert (now.num_items, now.num_inserted, now.num_sampled_out, now.num_corrupt) == (3, 8, 5, 0)
        assert (before.num_inserted, before.num_sampled_out) == (8, 5)
        assert [await append(shard, sequence) for sequence in range(8)] == [Outcome.DUPLICATE] * 8
        assert await append(shard, 8) is Outcome.STORED
        assert [item.key for item in (await shard.sample("t", 9)).items] == [6, 7, 8, 9]
        await shard.close()
        # Not all files are kept for that.
        assert len(list_segments(directory / "t")) <= 6

    run(main())


def test_kills_one_after_the_other_do_not_pile_up_files(tmp_path: Path) -> None:
    async def main() -> None:
        for number in range(10):
            shard = await opened(tmp_path / f"{number}", SETTINGS["queue"])
            await append(shard, number)
            await shard.sample("t", 9)
            async with asyncio.timeout(30.0):
                while shard.tables["t"].pending_bytes or len(list_segments(tmp_path / f"{number}" / "t")) > 3:
                    await asyncio.sleep(0.001)
            shutil.copytree(tmp_path / f"{number}", tmp_path / f"{number + 1}")
            await shard.close()

    run(main())


def test_an_item_that_stays_keeps_only_its_own_file(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "t")
    for data in payloads(100):
        rig.table.insert(data)
        rig.write()
        if rig.table.next_key > 3:
            rig.table.remove(rig.table.next_key - 2)
        if rig.table.next_key % 10 == 1:
            rig.rotate()
            rig.write()
            rig.log.reclaim()
    assert 1 in rig.table.items
    assert list_segments(rig.directory)[0].stem.endswith("01")
    assert len(list_segments(rig.directory)) <= 4
    assert rig.check_nothing_acked_is_lost() == 2


def test_which_keys_a_file_may_hold() -> None:
    keys = np.array([5, 90, 91], np.uint64)
    assert holds_any(Segment(1, 0, 1, 5), keys)
    assert not holds_any(Segment(1, 0, 6, 89), keys)
    assert holds_any(Segment(1, 0, 89, 90), keys)
    assert not holds_any(Segment(1, 0, 92, 100), keys)
    assert not holds_any(Segment(1, 0, 0, 0), keys)
    assert not holds_any(Segment(1, 0, 1, 100), keys[:0])
    assert holds_any(Segment(1, 0, 0, UNKNOWN_KEY), keys[:0])


class ClosesWithErrors(FaultyFiles):
    """As NFS or a quota do: the number is free again, whatever close() says."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: set[int] = set()
        self.num_misused = 0

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self.closed.discard(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        self.num_misused += descriptor in self.closed
        self.closed.add(descriptor)
        super().close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def append(self, descriptor: int, buffers: Any) -> None:
        self.num_misused += descriptor in self.closed
        super().append(descriptor, buffers)

    def fsync(self, descriptor: int) -> None:
        self.num_misused += descriptor in self.closed
        super().fsync(descriptor)


@pytest.mark.parametrize("durability", ["wal", "fsync"])
@pytest.mark.parametrize("calls", [(), ("fsync",), ("append", "truncate")])
def test_an_error_of_close_costs_nothing(tmp_path: Path, durability: str, calls: tuple[str, ...]) -> None:
    rig = Rig(tmp_path / "t", durability)
    files = rig.files = rig.log._files = ClosesWithErrors()
    for data in payloads(20):
        rig.table.insert(data)
        if rig.table.next_key % 5 == 0:
            rig.rotate()
            rig.files.fail(errno.EIO, *calls)
        rig.write()
        rig.files.heal()
        assert rig.write() or rig.write()
    rig.log.close()
    assert files.num_misused == 0
    assert rig.check_nothing_acked_is_lost() == 20
