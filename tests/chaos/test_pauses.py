"""Snapshots, new segments and the deletion of old ones while a shard is at work: how long does it stop?

The requirement is 100 ms. A test asserts far less: here the shard, its load and others share the cores. The
probe inside the shard tells a pause of its own from one of the machine.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_shard import Append, Outcome, TableStats
from shoal.records import Life
from tests.chaos.faults import VictimShard, files_of
from tests.chaos.rigged import Pauses
from tests.chaos.run import run
from tests.chaos.traffic import Samplers, client_of, payload
from tests.chaos.validate import TABLE, stats_of
from tests.service.replay_server import shard_processes

NUM_ITEMS = 200_000
NUM_EVICTED = 40_000
ITEMS_PER_APPEND = 100
IN_FLIGHT = 2
# A payload of about 1.3 kB.
WIDTH = 100
SNAPSHOT_EVERY_S = 1.0
MIB = 1 << 20
GENEROUS_S = 10.0

MODES: dict[str, dict[str, object]] = {
    "no files": {"durability": "memory"},
    "snapshots": {"durability": "memory", "snapshot_every_s": SNAPSHOT_EVERY_S},
    # Full before the end: from there on every insert evicts, and segments are deleted behind it.
    "wal, segments rotated and reclaimed": {
        "durability": "wal",
        "segment_bytes": 8 * MIB,
        "max_items": NUM_ITEMS,
    },
}


class Inserter:
    """Two appends in flight, always; the items of a real group of environments in each."""

    def __init__(self) -> None:
        self.longest_gap_s = 0.0
        self._last = 0.0

    async def insert(self, client: GrpcReplayClient, num_items: int) -> None:
        stream = await client.open_append(Life("actor", "run"), TABLE)
        num_appends = num_items // ITEMS_PER_APPEND
        for sequence in range(num_appends + IN_FLIGHT):
            if sequence < num_appends:
                first = sequence * ITEMS_PER_APPEND
                payloads = [payload(0, first + index, WIDTH) for index in range(ITEMS_PER_APPEND)]
                await stream.send(Append(sequence, tuple(payloads)))
            if sequence >= IN_FLIGHT:
                assert (await stream.receive()).outcome is Outcome.STORED
                self._answered()
        await stream.close()

    def _answered(self) -> None:
        now = time.monotonic()
        if self._last:
            self.longest_gap_s = max(self.longest_gap_s, now - self._last)
        self._last = now


@pytest.mark.parametrize("mode", MODES)
def test_longest_pause_of_a_large_table_under_load(tmp_path: Path, mode: str) -> None:
    async def test() -> None:
        probe = tmp_path / "probe"
        shard, inserter = VictimShard(tmp_path, table=MODES[mode], rig=f"probe:{probe}"), Inserter()
        num_files: set[str] = set()
        async with shard_processes(shard), client_of(shard.address) as client:
            watching = asyncio.create_task(watch_files(shard, num_files))
            # Not of its start.
            probe.unlink(missing_ok=True)
            async with Samplers(shard.address, batch=8, prefetch=1) as samplers:
                await inserter.insert(client, NUM_ITEMS + (NUM_EVICTED if "wal" in mode else 0))
                stats = await stats_of(client)
            watching.cancel()
            pauses = Pauses(**json.loads(probe.read_text()))
            present = len(files_of(shard.data))
        print(
            f"{mode}: {stats.num_items} items, {stats.num_bytes / MIB:.0f} MiB, "
            f"{len(num_files)} files written and {len(num_files) - present} deleted meanwhile; "
            f"longest wait of an insert {inserter.longest_gap_s * 1000:.0f} ms, "
            f"of a sample {samplers.longest_gap_s * 1000:.0f} ms; event loop of the shard: longest pause "
            f"{pauses.loop_s * 1000:.0f} ms, {pauses.own_s * 1000:.0f} ms less what other processes took; "
            f"longest garbage collection {pauses.collection_s * 1000:.0f} ms"
        )
        check_mode(mode, stats, len(num_files), len(num_files) - present)
        assert inserter.longest_gap_s < GENEROUS_S
        assert samplers.longest_gap_s < GENEROUS_S

    run(test)


def check_mode(mode: str, stats: TableStats, num_files: int, num_deleted: int) -> None:
    """It did what it was measured for."""
    if mode == "no files":
        assert num_files == 0
    elif mode == "snapshots":
        assert num_files >= 1
        assert stats.disk_bytes > stats.num_bytes // 8
    else:
        assert stats.num_evicted > 0
        assert num_deleted > 0


async def watch_files(shard: VictimShard, seen: set[str]) -> None:
    while True:
        seen.update(path.name for path in files_of(shard.data))
        await asyncio.sleep(0.05)
