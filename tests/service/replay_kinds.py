"""What differs between the kinds of tables, for tests that run over all of them, over both clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.replay.shard import Shard
from shoal.clients.replay_local import InProcessReplayClient
from shoal.clients.replay_shard import Ack, Append, Outcome, ReplayShardClient, Sampled
from shoal.config.tables import AnyTable, QueueTable, SequenceTable, TransitionTable
from shoal.records import OBSERVATION, Life
from shoal.wire import decode_trajectory
from tests.service.replay_items import STEPS, encoded
from tests.service.replay_server import LIMITS, opened, served

KINDS: dict[str, type[QueueTable | SequenceTable | TransitionTable]] = {
    "queue": QueueTable,
    "sequence": SequenceTable,
    "transition": TransitionTable,
}
DURABILITIES = ("memory", "wal", "fsync")
TRANSPORTS = ("in-process", "grpc")


LIFE = Life("actor", "run")


class Kind:
    """A kind of table with a durability."""

    def __init__(self, kind: str, durability: str) -> None:
        self.kind = kind
        self.durability = durability

    @property
    def is_sampled(self) -> bool:
        """Again and again, that is."""
        return self.kind != "queue"

    def table(self, **settings: Any) -> AnyTable:
        patient = {"insert_timeout_s": 30.0, "sample_timeout_s": 30.0, "max_items": 1000}
        table: AnyTable = KINDS[self.kind].model_validate(
            patient | {"durability": self.durability} | settings
        )
        return table

    def items(self, num_payloads: int) -> int:
        """How many items so many trajectories make."""
        return num_payloads * (STEPS if self.kind == "transition" else 1)

    def append(self, sequence: int, *numbers: int, timeout_s: float = 0.0) -> Append:
        """One trajectory per number."""
        return Append(sequence, tuple(encoded(number) for number in numbers), timeout_s=timeout_s)

    def numbers(self, sampled: Sampled) -> list[int]:
        """Which numbers came out, one per item."""
        if sampled.transitions is not None:
            return [int(row[0]) for row in sampled.transitions.columns[OBSERVATION]]
        trajectories = [decode_trajectory(item.payloads[0], LIMITS) for item in sampled.items]
        return [int(trajectory.columns[OBSERVATION][0, 0, 0]) for trajectory in trajectories]

    def keys(self, sampled: Sampled) -> list[int]:
        if sampled.transitions is not None:
            return [int(key) for key in sampled.transitions.keys]
        return [item.key for item in sampled.items]


@asynccontextmanager
async def reached(
    transport: str, directory: Path, tables: dict[str, AnyTable]
) -> AsyncIterator[tuple[ReplayShardClient, Shard]]:
    """A shard with its files in the directory, and a client of it."""
    client: ReplayShardClient
    if transport == "grpc":
        async with served(directory, tables=tables) as server:
            client = server.client()
            yield client, server.shard
            await client.close()
    else:
        async with opened(directory / "shard.files", tables) as shard:
            client = InProcessReplayClient(shard)
            yield client, shard
            await client.close()


Test = Callable[[ReplayShardClient, Shard, Kind], Awaitable[None]]


class Check:
    """Runs a coroutine with a client and the shard behind it, which has one table, `train`."""

    def __init__(self, transport: str, directory: Path, kind: Kind) -> None:
        self._transport = transport
        self._directory = directory
        self.kind = kind

    def __call__(self, *lives: Test, **settings: Any) -> None:
        """One life of the shard after the other, with the same files."""

        async def main() -> None:
            for test in lives:
                tables = {"train": self.kind.table(**settings)}
                async with (
                    asyncio.timeout(60),
                    reached(self._transport, self._directory, tables) as (client, shard),
                ):
                    await test(client, shard, self.kind)

        asyncio.run(main())


async def stored(client: ReplayShardClient, *appends: Append, life: Life = LIFE) -> None:
    stream = await client.open_append(life, "train")
    for append in appends:
        await stream.send(append)
        assert await stream.receive() == Ack(append.sequence, Outcome.STORED)
    await stream.close()
