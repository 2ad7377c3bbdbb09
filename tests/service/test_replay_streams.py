"""Where a writer's appends go, with real shards: spread or together, and never to two of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import psutil
import pytest

from shoal.clients.replay import ReplayClient, TableStats
from tests.service.replay_server import PATIENCE_S, ShardProcess, stats_of_all

TABLES = {
    "train": {"kind": "queue", "durability": "fsync", "max_items": 10000},
    "singles": {"kind": "sequence", "durability": "fsync"},
    "pairs": {"kind": "sequence", "durability": "fsync", "unrolls": 2, "overlap_unrolls": 1},
}
# Long, so that a shard that has to wait for its turn on a busy machine does not count as silent.
FAILOVER_S = 6.0
# Not even a new file takes a frame then.
LIMIT_BYTES = 100


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ShardProcess]]:
    directory: Path = tmp_path_factory.mktemp("shards")
    started = [ShardProcess(directory, name, f"replay.tables={json.dumps(TABLES)}") for name in ("a", "b")]
    try:
        for shard in started:
            asyncio.run(shard.start())
        yield {shard.address.target: shard for shard in started}
    finally:
        for shard in started:
            shard.kill()


def unroll() -> dict[str, np.ndarray]:
    return {"observation": np.zeros((3, 1, 4), np.float32), "first": np.zeros((3, 1), np.bool_)}


def by_shard(client: ReplayClient, table: str) -> dict[str, TableStats]:
    return {
        address: stats
        for address, tables in stats_of_all(client).shards.items()
        for stats in tables
        if stats.table == table
    }


def limit_files(shard: ShardProcess, num_bytes: int) -> None:
    psutil.Process(shard.pid).rlimit(psutil.RLIMIT_FSIZE, (num_bytes, psutil.RLIM_INFINITY))


@pytest.mark.parametrize("table", TABLES)
def test_while_a_disk_refuses_appends_are_stored_once_and_new_ones_go_to_the_other_shard(
    shards: dict[str, ShardProcess], table: str
) -> None:
    with (
        ReplayClient(list(shards)) as client,
        client.writer(table, failover_after_s=FAILOVER_S) as writer,
    ):
        num_appended = 0

        def append(number: int) -> None:
            nonlocal num_appended
            for _ in range(number):
                writer.append(unroll())
                num_appended += 1

        for _ in range(20):
            append(1)
            writer.flush()
        before = by_shard(client, table)
        assert {stats.unrolls for stats in before.values()} == {2 if table == "pairs" else 1}
        used = [address for address, stats in before.items() if stats.num_items]
        assert len(used) == (1 if table == "pairs" else 2), "only what makes sequences stays together"
        victim = used[0]
        (other,) = set(shards) - {victim}
        limit_files(shards[victim], LIMIT_BYTES)
        try:
            deadline = monotonic() + PATIENCE_S
            while not (writer.stats.num_timed_out and by_shard(client, table)[victim].degraded):
                assert monotonic() < deadline
                append(2)
                sleep(0.05)
            # However long the trouble lasts.
            meanwhile = by_shard(client, table)[other].num_items
            while by_shard(client, table)[other].num_items < meanwhile + 40:
                assert monotonic() < deadline
                append(1)
        finally:
            limit_files(shards[victim], psutil.RLIM_INFINITY)
        writer.flush()
        after = by_shard(client, table)
        num_stored = sum(stats.num_items for stats in after.values())
        print(
            f"{table}: appended {num_appended}, stored {num_stored}; timed out {writer.stats.num_timed_out}, "
            f"repeats {sum(stats.num_duplicates for stats in after.values())}"
        )
        assert writer.stats.num_moved == 0
        assert num_stored == num_appended
