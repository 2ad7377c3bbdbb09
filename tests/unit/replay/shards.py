"""Shards in memory and what is asked of them, for the tests of `Shard`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from services.replay.shard import Shard
from shoal.clients.replay_shard import Append, TableStats
from shoal.config.connections import LimitsSection
from shoal.config.tables import AnyTable, QueueTable
from shoal.config.tree import ReplaySection
from shoal.records import Life
from tests.unit.replay.payloads import payload

LIFE = Life("actor", "run")
PAYLOAD = payload()


def make_shard(limits: LimitsSection | None = None, **bounds: float | str) -> Shard:
    tables: dict[str, AnyTable] = {"train": QueueTable.model_validate(bounds), "other": QueueTable()}
    return Shard(
        ReplaySection(tables=tables), limits or LimitsSection(), Path(), asyncio.get_running_loop().time
    )


def an(sequence: int, *payloads: bytes, timeout_s: float = 0.0) -> Append:
    return Append(sequence, payloads or (PAYLOAD,), timeout_s=timeout_s)


def stats_of(shard: Shard, table: str = "train") -> TableStats:
    return next(stats for stats in shard.stats() if stats.table == table)


def assert_adds_up(stats: TableStats) -> None:
    gone = stats.num_sampled_out + stats.num_evicted + stats.num_rejected
    assert stats.num_inserted == stats.num_items + gone
    assert stats.num_items <= stats.max_items
