"""A table with fewer than `min_items` items offers none: a sampler of several shards goes on without it."""

from __future__ import annotations

import asyncio

import pytest

from services.replay.shard import Shard
from shoal.clients.replay_local import InProcessReplayClient
from shoal.clients.replay_shard import Append, ReplayShardClient
from shoal.config.tables import AnyTable, SequenceTable, TransitionTable
from shoal.config.tree import LimitsSection, ReplaySection
from shoal.rpc.addresses import Address
from tests.unit.clients.directories import ChangingDirectory
from tests.unit.clients.sampling import sampling
from tests.unit.replay.payloads import payload
from tests.unit.replay.shards import LIFE, stats_of
from tests.unit.replay.virtual_time import run

TABLES = [SequenceTable(min_items=4, alpha=1.0), TransitionTable(min_items=4, alpha=1.0)]


class LocalShard:
    """A real one, in this process."""

    def __init__(self, name: str, table: AnyTable) -> None:
        self.address = Address(name)
        self.shard = Shard(
            ReplaySection(tables={"train": table}),
            LimitsSection(),
            clock=asyncio.get_running_loop().time,
        )

    def connect(self) -> ReplayShardClient:
        return InProcessReplayClient(self.shard)

    async def add(self, *sequences: int) -> None:
        """An item each, whatever the kind."""
        for sequence in sequences:
            await self.shard.append(LIFE, "train", Append(sequence, (payload(rows=2, envs=1),)))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_a_table_offers_nothing_until_it_may_be_sampled(table: AnyTable) -> None:
    async def main() -> None:
        local = LocalShard("a", table)
        await local.add(1, 2, 3)
        state = await local.shard.sample("train", 0)
        assert (state.num_items, state.priority_mass) == (0, 0.0)
        assert (await local.shard.sample("train", 1, 0.1)).priority_mass == 0.0
        assert (stats_of(local.shard).num_items, stats_of(local.shard).priority_mass) == (3, 3.0)
        await local.add(4)
        state = await local.shard.sample("train", 0)
        assert (state.num_items, state.priority_mass) == (4, 4.0)

    run(main())


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.kind)
def test_batches_flow_while_one_of_two_shards_has_too_few_items(table: AnyTable) -> None:
    async def main() -> None:
        full, short = LocalShard("a", table), LocalShard("b", table)
        await full.add(1, 2, 3, 4)
        await short.add(1, 2, 3)
        async with sampling(ChangingDirectory(full, short), 32) as sampler:
            for _ in range(5):
                batch = await sampler.next(timeout_s=1.0)
                assert {source.address.target for source in batch.refs.sources} == {"a"}
                assert (batch.weights == 1.0).all()
            await short.add(4)
            for _ in range(5):
                batch = await sampler.next(timeout_s=1.0)
            assert {source.address.target for source in batch.refs.sources} == {"a", "b"}

    run(main())
