"""Payloads beyond memory: the newest stay, the others are read back, and damage is never handed out."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from services.replay import sequence_table
from services.replay.sequence_table import SequenceTable
from services.replay.shard import Shard
from services.replay.storage import payload_store
from services.replay.storage.files import Files
from services.replay.storage.payload_store import PayloadStore, Place
from services.replay.tables import NoJournal
from shoal.config.connections import LimitsSection
from shoal.config.tables import SequenceTable as SequenceSettings
from shoal.config.tree import ReplaySection
from shoal.journal.events import Inserted, Location, StoredPayload
from shoal.journal.reader import segment_name
from tests.unit.replay.storage.faulty_files import FaultyFiles
from tests.unit.replay.storage.table_double import LIFE, recovered, stored
from tests.unit.replay.storage.test_recovery import data_of, make_journal
from tests.unit.replay.storage.test_segments import SYNC_EVERY_S, Rig


def on_disk(directory: Path) -> list[StoredPayload]:
    """Payloads without data, as recovery finds them."""
    make_journal(directory)
    found = recovered(directory, max_ram_bytes=0)
    return [item.payloads[0] for item in found.table.items.values()]


def store_of(
    payloads: list[StoredPayload],
    directory: Path | None = None,
    files: Files | None = None,
    max_ram_bytes: int | None = 1000,
) -> PayloadStore:
    """Keys count up from 1."""
    store = PayloadStore(1000, max_ram_bytes, files or FaultyFiles(), directory)
    for key, payload in enumerate(payloads, 1):
        store.add(key, payload)
    return store


def keys(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def fetch(store: PayloadStore, *numbers: int) -> list[bytes | None]:
    return asyncio.run(store.fetch(store.find(keys(*numbers))))


def in_ram(store: PayloadStore, num_payloads: int) -> list[bool]:
    found = store.find(np.arange(1, num_payloads + 1, dtype=np.uint64))
    assert [data is None for data in found.data] == [i in found.places for i in range(num_payloads)]
    return [data is not None for data in found.data]


def say_synced(payload: StoredPayload, offset: int = 0) -> None:
    payload.location = Location(1, offset)
    payload.is_synced = True


def test_the_newest_stay_in_memory() -> None:
    payloads = [stored(bytes(300)) for _ in range(10)]
    for i, payload in enumerate(payloads):
        payload.location = Location(1, 300 * i)
    store = store_of(payloads)
    assert in_ram(store, 10) == [False] * 7 + [True] * 3
    assert store.ram_bytes == 900
    assert store.find(keys(3)).places == {0: Place(1, 600, 300, payloads[0].crc32c)}
    store.forget(keys(10, 1))
    assert store.ram_bytes == 600


def test_what_is_not_on_the_disk_yet_is_never_dropped() -> None:
    payloads = [stored(bytes(300)) for _ in range(10)]
    store = store_of(payloads)
    assert store.ram_bytes == 3000
    for payload in payloads:
        payload.location = Location(1, 0)
    for payload in payloads[:6]:
        say_synced(payload)
    store.add(11, stored(bytes(300)))
    assert in_ram(store, 11) == [False] * 6 + [True] * 5
    for payload in payloads:
        say_synced(payload)
    # Samples go on when no inserts come.
    store.find(keys(11))
    assert store.ram_bytes <= 1000


def test_slots_are_used_again_and_what_is_gone_is_not_placed() -> None:
    store = PayloadStore(4, 1000, FaultyFiles(), None)
    payloads = {}
    for key in range(1, 12):
        if key > 4:
            store.forget(keys(key - 4))
        payloads[key] = stored(bytes([key]) * 300)
        store.add(key, payloads[key])
        assert store.ram_bytes == 300 * min(key, 4)
    for key, payload in payloads.items():
        say_synced(payload, offset=key)
    store.forget(keys(8))
    store.add(12, stored(bytes([12]) * 300))
    assert store.ram_bytes == 900
    assert store.find(keys(9)).places[0].offset == 9
    assert fetch(store, 10, 11, 12) == [bytes([key]) * 300 for key in (10, 11, 12)]
    assert (store.get(12).location, store.get(9).location) == (None, Location(1, 9))


def test_what_was_found_is_fetched_though_its_item_goes() -> None:
    store = PayloadStore(1, None, None, None)
    store.add(1, stored(b"old"))
    found = store.find(keys(1))
    store.forget(keys(1))
    store.add(2, stored(b"new"))
    assert asyncio.run(store.fetch(found)) == [b"old"]


def test_without_a_limit_all_of_it_stays() -> None:
    payloads = [stored(bytes(300)) for _ in range(10)]
    for payload in payloads:
        payload.location = Location(1, 0)
    assert store_of(payloads, max_ram_bytes=None).ram_bytes == 3000


def test_payloads_are_read_back_in_the_order_asked_for(tmp_path: Path) -> None:
    payloads = on_disk(tmp_path / "t")
    store = store_of([*payloads, stored(b"in memory")], tmp_path / "t")
    newest = len(payloads) + 1
    order = [*range(newest - 1, 0, -3), newest, 1, newest - 1, 1]
    wanted = [b"in memory" if number == newest else data_of(8 + number) for number in order]
    assert fetch(store, *order) == wanted
    store.close()


def test_damage_and_what_is_gone_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    payloads = on_disk(tmp_path / "t")
    victim = payloads[10]
    assert victim.location is not None
    path = tmp_path / "t" / segment_name(victim.location.segment)
    data = bytearray(path.read_bytes())
    data[victim.location.offset + 5] ^= 1
    path.write_bytes(data)
    missing = StoredPayload(10, 0, None, Location(77, 0))
    beyond = StoredPayload(10, 0, None, Location(1, 1 << 40))
    store = store_of([payloads[9], victim, payloads[11], missing, beyond], tmp_path / "t")
    found = fetch(store, 1, 2, 3, 4, 5)
    assert [data is not None for data in found] == [True, False, True, False, False]
    assert "is damaged" in caplog.text
    print("1 flipped bit: damaged payloads handed out 0")
    store.close()


def test_control_without_the_crc_the_damaged_payload_is_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = on_disk(tmp_path / "t")
    payloads[10].crc32c ^= 1
    store = store_of(payloads, tmp_path / "t")
    assert fetch(store, 11) == [None]
    monkeypatch.setattr(payload_store, "crc32c", lambda data: payloads[10].crc32c)
    assert fetch(store, 11) != [None]
    store.close()


def test_a_segment_that_is_deleted_while_it_is_open_can_still_be_read(tmp_path: Path) -> None:
    payloads = on_disk(tmp_path / "t")
    store = store_of(payloads, tmp_path / "t")
    assert fetch(store, 1) != [None]
    assert payloads[0].location is not None
    (tmp_path / "t" / segment_name(payloads[0].location.segment)).unlink()
    assert fetch(store, 2, 3) == [data_of(10), data_of(11)]
    store.close()


def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload_store, "_MAX_OPEN_FILES", 1)
    opened: list[int] = []
    closed: list[int] = []

    class Counting(FaultyFiles):
        def open(self, path: Path) -> int:
            opened.append(super().open(path))
            return opened[-1]

        def close(self, descriptor: int) -> None:
            closed.append(descriptor)
            super().close(descriptor)

    payloads = on_disk(tmp_path / "t")
    store = store_of(payloads, tmp_path / "t", Counting())
    assert None not in fetch(store, *range(1, len(payloads) + 1))
    assert len(opened) >= 4
    # A thread lets go of what it read a moment after it has answered.
    assert store._pool is not None
    store._pool.shutdown(wait=True)
    del store
    assert sorted(opened) == sorted(closed)


def test_a_disk_that_cannot_read_gives_none_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    payloads = on_disk(tmp_path / "t")
    files = FaultyFiles()
    files.fail(errno.EIO, "pread")
    store = store_of(payloads, tmp_path / "t", files)
    assert fetch(store, 1, 2) == [None, None]
    assert "the disk reports an error" in caplog.text
    store.close()


@pytest.mark.parametrize("durability", ["fsync", "wal"])
def test_what_the_journal_may_write_again_stays_in_memory(tmp_path: Path, durability: str) -> None:
    rig = Rig(tmp_path / "t", durability)
    store = store_of([], tmp_path / "t", max_ram_bytes=1)
    for key in range(1, 6):
        rig.table.insert(data_of(key))
        store.add(key, rig.table.items[key].payloads[0])
    assert rig.write()
    store.add(6, stored(b"newer"))
    # Of `wal` nothing is known to be on the disk yet.
    assert in_ram(store, 6) == [durability == "wal"] * 5 + [True]
    rig.files.fail(errno.EIO, "fsync")
    rig.clock.now += SYNC_EVERY_S
    assert rig.sync() == (durability == "fsync")
    rig.files.heal()
    while rig.log.is_lost:
        rig.write()
    segment = 1 if durability == "fsync" else 2
    assert {place.segment for place in store.find(keys(1, 2, 3, 4, 5)).places.values()} == {segment}
    assert fetch(store, 1, 2, 3, 4, 5) == [data_of(key) for key in range(1, 6)]
    store.close()


class HangingFiles(FaultyFiles):
    def __init__(self) -> None:
        super().__init__()
        self.may_read = threading.Event()

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        self.may_read.wait()
        return super().pread(descriptor, size, offset)


def test_a_disk_that_hangs_holds_up_no_sample_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence_table, "MIN_READ_S", 0.01)
    make_journal(tmp_path / "t", num_segments=1)
    found = [item.payloads[0] for item in recovered(tmp_path / "t", max_ram_bytes=0).table.items.values()]
    files, now = HangingFiles(), 100.0
    settings = SequenceSettings(durability="wal", max_items=1000, max_ram_bytes=4096)
    store = PayloadStore(1000, 1, files, tmp_path / "t", clock=lambda: now)
    table = SequenceTable("t", settings, NoJournal(), store)
    for key, payload in enumerate(found, 1):
        first_step = 2 * key
        table.apply(Inserted(key, 1, LIFE, key, (payload,), np.ones(1), (0,), (first_step,), 2))

    async def main() -> None:
        nonlocal now
        for _ in range(5):
            sampled = await asyncio.wait_for(table.sample(8, 1 << 20, 0.0), 30.0)
            assert sampled.items == ()
            assert sampled.num_items == len(found), "nothing counts as damaged"
        assert table.ledger.num_sample_timeouts == 5
        assert store.degraded == ""
        now += 6.0
        assert "the disk is slow: a read has taken 6 s so far" in store.degraded
        # What waits for a thread takes none when its time is up.
        assert len(store._reading) == payload_store._NUM_THREADS
        files.may_read.set()
        sampled = await table.sample(8, 1 << 20, 30.0)
        assert len(sampled.items) == 8
        # The reads that nobody waits for any more end in their own time.
        async with asyncio.timeout(30.0):
            while store.degraded:
                await asyncio.sleep(0.001)

    asyncio.run(main())
    store.close()


class SlowToOpen(FaultyFiles):
    def __init__(self) -> None:
        super().__init__()
        self.may_open = threading.Event()

    def open(self, path: Path) -> int:
        self.may_open.wait()
        return super().open(path)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_file_that_is_being_read_is_deleted_afterwards(tmp_path: Path, is_cancelled: bool) -> None:
    rig = Rig(tmp_path / "t")
    files = SlowToOpen()
    store = store_of([], tmp_path / "t", files, max_ram_bytes=1)
    rig.log._is_read = store.is_read
    for key in range(1, 4):
        rig.table.insert(data_of(key))
        store.add(key, rig.table.items[key].payloads[0])
    assert rig.write()
    store.add(4, stored(b"newer"))
    path = tmp_path / "t" / segment_name(1)

    async def main() -> None:
        # Two samplers, one of which is quicker.
        reading = [asyncio.create_task(store.fetch(store.find(keys(*some)))) for some in ((1, 2), (2, 3))]
        await asyncio.sleep(0)
        rig.table.remove(1, 2, 3)
        for _ in range(3):
            rig.rotate()
            assert rig.write()
            rig.log.reclaim()
        assert path.exists()
        if is_cancelled:
            for task in reading:
                task.cancel()
                await asyncio.wait((task,))
        else:
            files.may_open.set()
            wanted = [[data_of(1), data_of(2)], [data_of(2), data_of(3)]]
            assert await asyncio.gather(*reading) == wanted
        rig.log.reclaim()
        assert not path.exists()

    try:
        asyncio.run(main())
    finally:
        files.may_open.set()
        store.close()


def test_the_journal_of_a_table_asks_its_store_what_is_being_read(tmp_path: Path) -> None:
    async def main() -> None:
        settings = SequenceSettings(durability="wal", max_ram_bytes=4096)
        shard = Shard(ReplaySection(tables={"t": settings}), LimitsSection(), tmp_path)
        await shard.open()
        table = shard.tables["t"]
        assert table._journal is not None
        assert table._payloads is not None
        table._payloads._pins[7] += 1
        assert [table._journal._log._is_read(number) for number in (6, 7)] == [False, True]
        await shard.close()

    asyncio.run(main())


def test_files_that_are_deleted_do_not_stay_open(tmp_path: Path) -> None:
    payloads = on_disk(tmp_path / "t")
    store = store_of(payloads, tmp_path / "t")
    everything = range(1, len(payloads) + 1)
    assert None not in fetch(store, *everything)
    path = tmp_path / "t" / segment_name(1)
    assert path.name in open_files(tmp_path / "t")
    path.unlink()
    # Control: until it is told, its disk space stays taken.
    assert f"{path.name} (deleted)" in open_files(tmp_path / "t")
    store.segment_deleted(1)
    assert store._pool is not None
    store._pool.shutdown(wait=True)
    assert sorted(open_files(tmp_path / "t")) == [segment_name(number) for number in (2, 3, 4)]
    store.close()


def open_files(directory: Path) -> list[str]:
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue
        if path.startswith(str(directory)):
            found.append(Path(path).name)
    return found
