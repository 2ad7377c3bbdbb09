"""Real shards are killed, drained or cut off while a writer appends and a sampler samples."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.replay.dedup import Claim, Dedup
from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_sampler import ReplaySampler
from shoal.clients.replay_shard import Outcome
from shoal.clients.replay_writer import ReplayWriter
from shoal.config.tables import QueueTable
from shoal.config.tree import ActorSection
from shoal.records import Item, Life
from shoal.rpc.addresses import Address, AddressBook
from tests.service.replay_server import (
    LIMITS,
    OPEN,
    RPC,
    ShardProcess,
    append_of,
    served,
    shard_processes,
    until,
)
from tests.unit.replay.payloads import payload

LIFE = Life("actor", "run")
PAYLOAD = payload()
WINDOW = 8
PREFETCH = 2
MAX_ITEMS = 16


class Forgetful(Dedup):
    """The control: every item is new."""

    async def claim(self, life: Life, sequence: int, timeout_s: float) -> Claim:
        return Claim.GRANTED

    def settle(self, life: Life, sequence: int) -> None:
        return None


def connect(address: Address) -> GrpcReplayClient:
    return GrpcReplayClient(address, OPEN, LIMITS, RPC)


def book(*shards: ShardProcess) -> AddressBook:
    return AddressBook([shard.address.target for shard in shards], RPC)


@asynccontextmanager
async def writing(directory: AddressBook, failover_after_s: float = 60.0) -> AsyncIterator[ReplayWriter]:
    actor = ActorSection(max_unacked_items=WINDOW, failover_after_s=failover_after_s)
    writer = ReplayWriter(directory, connect, LIFE, "train", actor, RPC)
    writer.start()
    try:
        yield writer
    finally:
        await writer.close()


class Collector:
    """Samples for ever and keeps the sequences."""

    def __init__(self, directory: AddressBook) -> None:
        self.items: list[Item] = []
        self.sampler = ReplaySampler(directory, connect, "train", PREFETCH, RPC)

    async def __aenter__(self) -> Collector:
        self.sampler.start()
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        await self.sampler.close()

    async def _run(self) -> None:
        while True:
            self.items.append(await self.sampler.next())

    @property
    def sequences(self) -> Counter[int]:
        return Counter(item.sequence for item in self.items)

    async def have(self, number: int) -> None:
        """Wait for that many different ones."""

        async def enough() -> bool:
            return len(self.sequences) >= number

        await until(enough, patience_s=30.0)


class Feeder:
    """Appends for ever, until told to stop."""

    def __init__(self, writer: ReplayWriter) -> None:
        self._writer = writer
        self._stop = False
        self.num_appended = 0

    async def __aenter__(self) -> Feeder:
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stop = True
        await self._task

    async def _run(self) -> None:
        while not self._stop:
            await self._writer.append(PAYLOAD)
            self.num_appended += 1


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(100):
            await test()

    asyncio.run(main())


def test_kill_9_of_the_only_shard_and_its_return(tmp_path: Path) -> None:
    """Nothing unacked is lost; of what was acked into memory at most what the queue and the wire held."""

    async def test() -> None:
        shard = ShardProcess(tmp_path, "only", f"replay.tables={{train: {{max_items: {MAX_ITEMS}}}}}")
        async with (
            shard_processes(shard),
            Collector(book(shard)) as collector,
            writing(book(shard)) as writer,
        ):
            async with Feeder(writer) as feeder:
                await collector.have(100)
                shard.kill()
                acked = writer.stats.num_acked
                await shard.start()
                back = time.monotonic()
                await until(lambda: _true(writer.stats.num_acked > acked))
                back = time.monotonic() - back
                await collector.have(len(collector.sequences) + 100)
            assert await writer.flush(30.0) == 0
            client = shard.client()
            await until(lambda: _drained(client))
            await client.close()
            sequences = collector.sequences
            appended = feeder.num_appended
            lost = appended - len(sequences)
            repeats = sum(sequences.values()) - len(sequences)
            print(
                f"kill -9: appended {appended}, acked {writer.stats.num_acked}, "
                f"resent {writer.stats.num_resent}, lost {lost} (bound {MAX_ITEMS + 2 * PREFETCH}), "
                f"twice {repeats} (bound {WINDOW}), back {back:.2f} s after the port"
            )
            assert writer.stats.num_acked == appended
            assert lost <= MAX_ITEMS + 2 * PREFETCH
            # Sampled before the kill with the ack under way: the new process knows nothing of it.
            assert repeats <= WINDOW
            assert writer.stats.num_resent > 0

    run(test)


def test_kill_9_of_one_of_two_shards_for_good(tmp_path: Path) -> None:
    async def test() -> None:
        dead, alive = ShardProcess(tmp_path, "dead"), ShardProcess(tmp_path, "alive")
        directory = book(dead, alive)
        async with (
            shard_processes(dead, alive),
            Collector(book(dead, alive)) as collector,
            writing(directory, failover_after_s=1.0) as writer,
        ):
            async with Feeder(writer) as feeder:
                await collector.have(100)
                dead.kill()
                await until(lambda: _true(writer.stats.num_moved > 0))
                await collector.have(len(collector.sequences) + 100)
            assert await writer.flush(30.0) == 0
            client = alive.client()
            await until(lambda: _drained(client))
            await client.close()
            sequences = collector.sequences
            appended = feeder.num_appended
            lost = appended - len(sequences)
            repeats = sum(sequences.values()) - len(sequences)
            print(
                f"one of two killed: appended {appended}, moved {writer.stats.num_moved}, lost {lost} "
                f"(bound {MAX_ITEMS + 2 * PREFETCH}), twice {repeats} (bound {WINDOW})"
            )
            assert writer.stats.num_acked == appended
            assert 0 < writer.stats.num_moved <= WINDOW
            assert lost <= MAX_ITEMS + 2 * PREFETCH
            assert repeats <= WINDOW

    run(test)


def test_sigterm_of_one_of_two_shards_under_load_loses_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        leaving, staying = ShardProcess(tmp_path, "leaving"), ShardProcess(tmp_path, "staying")
        async with (
            shard_processes(leaving, staying),
            Collector(book(leaving, staying)) as collector,
            writing(book(leaving, staying), failover_after_s=1.0) as writer,
        ):
            async with Feeder(writer) as feeder:
                await collector.have(200)
                started = time.monotonic()
                code = await leaving.terminate()
                took = time.monotonic() - started
                await collector.have(len(collector.sequences) + 100)
            assert await writer.flush(30.0) == 0
            with contextlib.suppress(TimeoutError):
                await collector.have(feeder.num_appended)
            sequences = collector.sequences
            lost = feeder.num_appended - len(sequences)
            repeats = sum(sequences.values()) - len(sequences)
            print(
                f"SIGTERM: exit code {code} after {took:.2f} s, appended {feeder.num_appended}, "
                f"moved {writer.stats.num_moved}, lost {lost}, twice {repeats}"
            )
            assert code == 0, leaving.log
            assert lost == 0
            assert repeats <= WINDOW

    run(test)


NUM_CALLS = 2000


@pytest.mark.parametrize("dedup", [Dedup, Forgetful])
def test_a_quarter_of_the_replies_lost_after_the_insert_happened(tmp_path: Path, dedup: type[Dedup]) -> None:
    """Each lost reply breaks the stream; the item is sent again on a new one."""

    async def test() -> None:
        table = QueueTable(max_items=2 * NUM_CALLS)
        async with served(tmp_path, table=table, make_dedup=dedup) as server:
            client = server.client()
            stream = await client.open_append(LIFE, "train")
            lost = duplicates = 0
            for sequence in range(NUM_CALLS):
                await stream.send(append_of(sequence, PAYLOAD))
                ack = await stream.receive()
                if sequence % 4 == 0:
                    lost += 1
                    await stream.close()
                    stream = await client.open_append(LIFE, "train")
                    await stream.send(append_of(sequence, PAYLOAD))
                    ack = await stream.receive()
                duplicates += ack.outcome is Outcome.DUPLICATE
            await client.close()
            stored = server.stats().num_items
            print(
                f"dedup {'on' if dedup is Dedup else 'off'}: sent {NUM_CALLS}, replies lost {lost}, "
                f"stored {stored}, stored twice {stored - NUM_CALLS}, refused as duplicates {duplicates}"
            )
            if dedup is Dedup:
                assert stored == NUM_CALLS
                assert duplicates == lost
            else:
                assert stored == NUM_CALLS + lost

    run(test)


def test_writer_over_grpc_with_streams_cut_at_random_stores_everything_once(tmp_path: Path) -> None:
    """The server cuts every append stream again and again while inserts wait for room."""

    async def test() -> None:
        async with served(tmp_path, table=QueueTable(max_items=3)) as server:
            directory = AddressBook([server.server.address], RPC)
            out: list[int] = []
            cuts = 0
            async with writing(directory) as writer:
                appends = [asyncio.ensure_future(writer.append(PAYLOAD)) for _ in range(300)]
                while len(out) < 300:
                    sampled = await server.shard.sample("train", 2, 0.2)
                    out += [item.sequence for item in sampled.items]
                    if len(out) // 20 > cuts:
                        cuts += 1
                        server.servicer.end_appends()
                await asyncio.gather(*appends)
                assert await writer.flush(30.0) == 0
                resent = writer.stats.num_resent
            stats = server.stats()
            print(
                f"{cuts} cuts: stored {stats.num_inserted} of 300, resent {resent}, "
                f"repeats {stats.num_duplicates}"
            )
            assert sorted(out) == list(range(300))
            assert stats.num_inserted == 300
            gone = stats.num_sampled_out + stats.num_evicted + stats.num_rejected
            assert stats.num_inserted == stats.num_items + gone
            assert resent > 0

    run(test)


async def _true(value: bool) -> bool:
    return value


async def _drained(client: GrpcReplayClient) -> bool:
    return (await client.stats())[0].num_items == 0
