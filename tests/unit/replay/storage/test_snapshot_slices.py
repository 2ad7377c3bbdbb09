"""A snapshot takes a table's items a slice at a time, so that the table goes on meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from services.replay.storage import snapshots
from shoal.journal.events import Inserted
from tests.unit.replay.storage.table_double import recovered
from tests.unit.replay.storage.test_recovery import served_wrong
from tests.unit.replay.storage.test_snapshots import Rig, run


def test_the_table_goes_on_while_a_snapshot_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_KEYS_PER_SLICE", 10)

    async def main() -> None:
        rig = Rig(tmp_path / "t")
        rig.table.max_items = 400
        rig.insert(300)
        task = asyncio.create_task(rig.snapshots.snapshot())
        await asyncio.sleep(0)
        # Those are for the next one, but some of the old ones go to make room for them.
        while not task.done():
            rig.insert(rig.table.next_key < 601)
            await asyncio.sleep(0)
        assert task.result()
        found = recovered(tmp_path / "t").table
        num_meanwhile = rig.table.next_key - 301
        print(f"{num_meanwhile} inserts while a snapshot of 300 items was written; {found.num_items} in it")
        assert num_meanwhile > 0
        assert found.num_corrupt == 0
        assert set(range(201, 301)) <= set(found.contents) <= set(range(1, 301))
        assert served_wrong(found) == 0
        assert await rig.snapshots.snapshot()
        assert recovered(tmp_path / "t").table.contents == rig.table.contents
        await rig.snapshots.close()

    run(main())


@pytest.mark.parametrize(
    ("item_bytes", "took_s", "slices"),
    [
        (10, 0.0, [256, 512, 1024, 1024, 184]),
        (10, 0.007, [256] * 11 + [184]),
        (10, 0.02, [256, 128, 64]),
        (1 << 19, 0.0, [2, 2, 1]),
        (1 << 21, 0.0, [1, 1, 1]),
    ],
)
def test_a_slice_is_small_in_items_in_bytes_and_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, item_bytes: int, took_s: float, slices: list[int]
) -> None:
    async def main() -> None:
        rig = Rig(tmp_path / "t")
        for _ in range(5 if item_bytes == 1 << 19 else 3000 if item_bytes == 10 else 3):
            rig.table.insert(bytes(item_bytes))
        now, taken, items_from = 0.0, [], rig.table.items_from
        monkeypatch.setattr(snapshots, "time", SimpleNamespace(perf_counter=lambda: now))

        def watched(key: int, below: int | None = None) -> list[Inserted]:
            nonlocal now
            now += took_s
            taken.append(len(items := items_from(key, below)))
            return items

        rig.table.items_from = watched  # type: ignore[method-assign]
        assert await rig.snapshots.snapshot()
        assert taken[: len(slices)] == slices
        assert sum(taken) == rig.table.num_items

    run(main())
