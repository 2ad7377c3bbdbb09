"""A writer over real shards in this process, for the tests of its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from shoal.clients.replay_writer import ReplayWriter
from shoal.config.connections import RpcSection
from shoal.config.tree import ActorSection
from shoal.records import ArraySpec, Life
from tests.unit.clients.directories import ChangingDirectory
from tests.unit.replay.payloads import payload
from tests.unit.replay.virtual_time import settle

LIFE = Life("actor", "run")
RPC = RpcSection(max_backoff_s=0.5)
FAILOVER_S = 5.0
PAYLOADS = [payload(number) for number in range(200)]


@asynccontextmanager
async def writing(
    directory: ChangingDirectory,
    *,
    max_items: int = 4,
    max_bytes: int = 64 << 20,
    failover_after_s: float = FAILOVER_S,
    table: str = "train",
    life: Life = LIFE,
    declared: Sequence[ArraySpec] = (),
) -> AsyncIterator[ReplayWriter]:
    actor = ActorSection(
        max_unacked_items=max_items, max_unacked_bytes=max_bytes, failover_after_s=failover_after_s
    )
    writer = ReplayWriter(directory, directory.connect, life, table, actor, RPC, declared)
    writer.start()
    try:
        yield writer
    finally:
        await writer.close()
        await settle()
