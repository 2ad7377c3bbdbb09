"""Reads that fail for a reason that may go away cost nothing: only what is damaged is dropped."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from services.replay import sequence_table
from services.replay.sequence_table import SequenceTable
from services.replay.storage import payload_store
from services.replay.storage.payload_store import PayloadStore
from services.replay.tables import NoJournal
from shoal.config.tables import SequenceTable as SequenceSettings
from shoal.journal.events import Inserted
from shoal.journal.reader import list_segments
from tests.unit.replay.storage.faulty_files import FaultyFiles
from tests.unit.replay.storage.table_double import LIFE
from tests.unit.replay.storage.test_payload_store import on_disk

PLENTY = 1 << 20
TRANSIENT = [
    (errno.EMFILE, "open"),
    (errno.ENFILE, "open"),
    (errno.EACCES, "open"),
    (errno.ENOMEM, "pread"),
    (errno.ESTALE, "pread"),
    (errno.ETIMEDOUT, "pread"),
]


class Rig:
    """A sequence table, of whose payloads none is in memory."""

    def __init__(self, directory: Path) -> None:
        self.files = FaultyFiles()
        self.store = PayloadStore(1000, 1, self.files, directory)
        settings = SequenceSettings(durability="wal", max_items=1000, max_ram_bytes=4096)
        self.table = SequenceTable("t", settings, NoJournal(), self.store)
        for key, payload in enumerate(on_disk(directory), 1):
            event = Inserted(key, 1, LIFE, key, (payload,), np.ones(1), (0,), (2 * key,), 2)
            self.table.apply(event)

    async def sample(self, timeout_s: float = 0.0) -> int:
        return len((await asyncio.wait_for(self.table.sample(8, PLENTY, timeout_s), 30.0)).items)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setattr(sequence_table, "MIN_READ_S", 0.05)
    monkeypatch.setattr(payload_store, "_READ_AGAIN_S", 0.001)
    made = Rig(tmp_path / "t")
    yield made
    made.store.close()


@pytest.mark.parametrize(("number", "call"), TRANSIENT)
def test_a_read_that_fails_for_now_drops_nothing_and_shows(
    rig: Rig, number: int, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    num_items = rig.table.num_items

    async def main() -> None:
        if call == "pread":
            # The file is open then.
            assert await rig.sample(30.0) == 8
        rig.files.fail(number, call)
        while not rig.store.degraded or rig.table.ledger.num_sample_timeouts < 3:
            assert await rig.sample() == 0
            assert (rig.table.num_items, rig.table.ledger.num_corrupt) == (num_items, 0)
        assert os.strerror(number) in rig.store.degraded
        print(rig.store.degraded.rpartition("/")[2])
        assert caplog.text.count("it is tried again until it can") == 1
        # Whoever waits meanwhile is served as soon as it works.
        waiting = asyncio.create_task(rig.sample(30.0))
        attempts = rig.files.calls[call]
        while rig.files.calls[call] == attempts:
            await asyncio.sleep(0)
        rig.files.heal()
        assert await waiting == 8
        while rig.store.degraded:
            assert await rig.sample(30.0) == 8
        assert (rig.table.num_items, rig.table.ledger.num_corrupt) == (num_items, 0)

    asyncio.run(main())
    assert "can be read again" in caplog.text


def test_what_the_disk_has_lost_is_dropped(rig: Rig) -> None:
    """Control."""

    async def main() -> None:
        rig.files.fail(errno.EIO, "pread")
        num_items = rig.table.num_items
        while rig.table.num_items:
            assert await rig.sample() == 0
        assert rig.table.ledger.num_corrupt == num_items
        assert rig.store.degraded == ""

    asyncio.run(main())


def test_a_file_whose_descriptor_is_out_of_order_is_opened_anew(rig: Rig, tmp_path: Path) -> None:
    async def main() -> None:
        assert await rig.sample(30.0) == 8
        rig.files.fail(errno.ESTALE, "pread")
        while not rig.store.degraded:
            assert await rig.sample() == 0
        # Others took their place, as after a restart of the server of the files.
        for path in list_segments(tmp_path / "t"):
            shutil.copy(path, path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)
        opened = rig.files.calls["open"]
        rig.files.heal()
        assert await rig.sample(30.0) == 8
        assert rig.files.calls["open"] > opened

    asyncio.run(main())


def test_a_file_that_is_gone_is_not_waited_for(rig: Rig, tmp_path: Path) -> None:
    async def main() -> None:
        rig.files.fail(errno.EMFILE, "open")
        while not rig.store.degraded:
            assert await rig.sample() == 0
        rig.files.heal()
        for path in list_segments(tmp_path / "t"):
            path.unlink()
            rig.store.segment_deleted(int(path.stem))
        assert rig.store.degraded == ""

    asyncio.run(main())


def test_a_read_that_fails_after_its_file_is_gone_shows_nothing(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever asked for it had to leave without an answer."""
    begun, may_fail = threading.Event(), threading.Event()

    def open_late(path: Path) -> int:
        begun.set()
        may_fail.wait()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def main() -> None:
        monkeypatch.setattr(rig.files, "open", open_late)
        while not begun.is_set():
            assert await rig.sample() == 0
        for path in list_segments(tmp_path / "t"):
            rig.store.segment_deleted(int(path.stem))
        may_fail.set()
        while rig.store._reading:
            await asyncio.sleep(0.001)
        assert rig.store.degraded == ""

    asyncio.run(main())
    gc.collect()
    assert caplog.text == ""
