"""A table with fewer than `min_items` items offers none: a sampler of several shards goes on without it.

One that can never hold as many says so.
"""

from __future__ import annotations

import asyncio

import pytest

from services.replay.n_step import build_transitions
from services.replay.shard import Shard
from shoal.clients.replay_local import InProcessReplayClient
from shoal.clients.replay_shard import Append, Outcome, ReplayShardClient
from shoal.config.connections import LimitsSection
from shoal.config.tables import AnyTable, SequenceTable, TransitionTable
from shoal.config.tree import ReplaySection
from shoal.rpc.addresses import Address
from tests.unit.clients.directories import ChangingDirectory
from tests.unit.clients.sampling import sampling
from tests.unit.replay.payloads import payload, trajectory
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


ROW_BYTES = sum(rows[0].nbytes for rows in build_transitions(trajectory(rows=2, envs=1), 1, 0.99)[0].values())


@pytest.mark.parametrize(
    ("table", "setting"),
    [
        (SequenceTable(min_items=4, max_bytes=4 * len(payload(rows=2, envs=1)) - 1), "max_bytes"),
        (TransitionTable(min_items=4, max_bytes=4 * ROW_BYTES - 1), "max_bytes"),
        # Each unroll is of another stream: none of four becomes a sequence of four.
        (SequenceTable(min_items=1, max_items=4, unrolls=4), "max_items"),
        (TransitionTable(min_items=4, max_items=4), None),
    ],
)
def test_a_table_that_never_holds_enough_says_once_what_to_raise(
    table: AnyTable, setting: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        local = LocalShard("a", table)
        for sequence in range(12):
            one = payload(rows=2, envs=1, stream=sequence)
            assert (
                await local.shard.append(LIFE, "train", Append(sequence, (one,)))
            ).outcome is Outcome.STORED
        assert stats_of(local.shard).num_evicted > 0

    run(main())
    warnings = [record.getMessage() for record in caplog.records if "min_items" in record.getMessage()]
    assert len(warnings) == (setting is not None)
    for warning in warnings:
        assert f"nothing is sampled; raise {setting}, or lower min_items" in warning
