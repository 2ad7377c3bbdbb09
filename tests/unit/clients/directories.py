"""A directory of shards that come and go as the test says."""

from __future__ import annotations

import asyncio
from typing import Protocol

from shoal.clients.replay_shard import ReplayShardClient
from shoal.rpc.addresses import Address
from shoal.sharding import OnChange


class Shard(Protocol):
    """`FaultyShard` or `MemoryShard`."""

    address: Address

    def connect(self) -> ReplayShardClient: ...


class ChangingDirectory:
    """Begins with the given shards."""

    def __init__(self, *shards: Shard) -> None:
        self._shards = {shard.address: shard for shard in shards}
        self._listed = tuple(self._shards)
        self._on_change: OnChange | None = None

    @property
    def current(self) -> tuple[Address, ...]:
        return self._listed

    async def watch(self, on_change: OnChange) -> None:
        self._on_change = on_change
        await asyncio.Event().wait()

    def connect(self, address: Address) -> ReplayShardClient:
        return self._shards[address].connect()

    def list(self, *shards: Shard) -> None:
        """From now on these are the shards that there are."""
        self._shards |= {shard.address: shard for shard in shards}
        self._listed = tuple(shard.address for shard in shards)
        assert self._on_change is not None
        self._on_change(self._listed)
