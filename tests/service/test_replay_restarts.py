"""The replay as a program with files: killed, stopped, started twice, started on damaged files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from shoal.clients.replay_shard import Outcome, TableStats
from shoal.errors import UnavailableError
from shoal.records import Life
from tests.service.replay_kinds import KINDS, Kind
from tests.service.replay_server import ShardProcess, shard_processes, until

LIFE = Life("actor", "run")
NUM_APPENDS = 60
PATIENCE_S = 90


def tables(kind: str, **settings: object) -> str:
    """As a setting of the program."""
    listed = {"kind": kind, "max_items": 1000, "insert_timeout_s": 30} | settings
    return f"replay.tables={{train: {{{', '.join(f'{name}: {value}' for name, value in listed.items())}}}}}"


async def append_all(shard: ShardProcess, kind: Kind, first: int = 0) -> list[Outcome]:
    client = shard.client()
    stream = await client.open_append(LIFE, "train")
    outcomes = []
    for sequence in range(first, NUM_APPENDS):
        await stream.send(kind.append(sequence, sequence))
        outcomes.append((await stream.receive()).outcome)
    await client.close()
    return outcomes


async def stats_of(shard: ShardProcess) -> TableStats:
    client = shard.client()
    (stats,) = await client.stats()
    await client.close()
    return stats


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("durability", ["wal", "fsync", "memory"])
def test_kill_9_and_restart(tmp_path: Path, kind: str, durability: str) -> None:
    """What was acked is there again, and a resend is a repeat. The control is `memory`."""

    async def main() -> None:
        what = Kind(kind, durability)
        shard = ShardProcess(tmp_path, "a", tables(kind, durability=durability))
        async with asyncio.timeout(PATIENCE_S), shard_processes(shard):
            assert await append_all(shard, what) == [Outcome.STORED] * NUM_APPENDS
            shard.kill()
            await shard.start()
            stats = await stats_of(shard)
            resent = await append_all(shard, what)
            lost = what.items(NUM_APPENDS) - stats.num_items
            print(
                f"kill -9, {kind}, {durability}: acked {what.items(NUM_APPENDS)}, "
                f"recovered {stats.num_items}, lost {lost}, resent {len(resent)}, "
                f"stored again {resent.count(Outcome.STORED)}"
            )
            after = await stats_of(shard)
            assert after.num_items == what.items(NUM_APPENDS)
            if durability == "memory":
                assert lost == what.items(NUM_APPENDS)
            else:
                assert lost == 0
                assert set(resent) == {Outcome.DUPLICATE}
                assert f"{stats.num_items} items recovered" in shard.log

    asyncio.run(main())


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("durability", ["wal", "memory"])
def test_sigterm_writes_the_rest_and_exits_0(tmp_path: Path, kind: str, durability: str) -> None:
    async def main() -> None:
        what = Kind(kind, durability)
        # An interval that never comes: the snapshot at the end is the only one.
        shard = ShardProcess(
            tmp_path, "a", tables(kind, durability=durability, snapshot_every_s=80_000), "rpc.drain_s=8"
        )
        async with asyncio.timeout(PATIENCE_S), shard_processes(shard):
            await append_all(shard, what)
            assert await shard.terminate() == 0, shard.log
            assert "lost" not in shard.log
            assert "Traceback" not in shard.log
            await shard.start()
            stats = await stats_of(shard)
            print(f"SIGTERM, {kind}, {durability}: {what.items(NUM_APPENDS)} stored, {stats.num_items} after")
            assert stats.num_items == stats.num_inserted == what.items(NUM_APPENDS)

    asyncio.run(main())


def test_what_is_in_memory_only_is_lost_at_sigterm_as_a_number(tmp_path: Path) -> None:
    async def main() -> None:
        shard = ShardProcess(tmp_path, "a", tables("sequence"), "rpc.drain_s=2")
        async with asyncio.timeout(PATIENCE_S), shard_processes(shard):
            await append_all(shard, Kind("sequence", "memory"))
            assert await shard.terminate() == 0, shard.log
            assert f"{NUM_APPENDS} items were only in memory at the end and are lost" in shard.log

    asyncio.run(main())


def test_a_second_process_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        first = ShardProcess(tmp_path, "first", tables("queue", durability="wal"))
        second = ShardProcess(
            tmp_path, "second", tables("queue", durability="wal"), f"replay.dir={first.files}"
        )
        async with asyncio.timeout(PATIENCE_S), shard_processes(first):
            reason = await second.refuses_to_start()
            assert f"{first.files} are in use by process {first.pid}" in reason
            assert "replay.dir" in reason
            assert await append_all(first, Kind("queue", "wal")) == [Outcome.STORED] * NUM_APPENDS

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (("replay.dir=/proc/nothing/here",), "cannot keep replay files in /proc/nothing/here"),
        (("replay.dir=null", "replay.id=../../elsewhere"), "replay.id '../../elsewhere' cannot name"),
    ],
    ids=["no such place", "a way out of the run's directory"],
)
def test_a_directory_that_cannot_be_used_is_one_line_and_exit_code_2(
    tmp_path: Path, settings: tuple[str, ...], reason: str
) -> None:
    async def main() -> None:
        shard = ShardProcess(
            tmp_path, "a", tables("queue", durability="wal"), f"run.dir={tmp_path}/run", *settings
        )
        async with asyncio.timeout(PATIENCE_S):
            assert reason in await shard.refuses_to_start()
        assert not (tmp_path / "run").exists()

    asyncio.run(main())


def test_damaged_files_are_one_clear_line_each_and_the_rest_is_served(tmp_path: Path) -> None:
    async def main() -> None:
        what = Kind("sequence", "wal")
        shard = ShardProcess(tmp_path, "a", tables("sequence", durability="wal"))
        async with asyncio.timeout(PATIENCE_S), shard_processes(shard):
            await append_all(shard, what)
            shard.kill()
            segment = max((shard.files / "train").glob("*.seg"))
            data = bytearray(segment.read_bytes())
            data[len(data) // 2] ^= 0x10
            segment.write_bytes(data)
            for _ in range(2):
                await shard.start()
                stats = await stats_of(shard)
                print(
                    f"one bit flipped: {NUM_APPENDS} stored, {stats.num_items} recovered, "
                    f"{stats.num_corrupt} corrupt"
                )
                assert NUM_APPENDS - 2 <= stats.num_items < NUM_APPENDS
                shard.kill()
            warnings = [line for line in shard.log.splitlines() if " WARNING " in line]
            assert any(segment.name in line for line in warnings), shard.log
            assert "Traceback" not in shard.log

    asyncio.run(main())


def test_files_of_another_kind_of_table_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        shard = ShardProcess(tmp_path, "a", tables("queue", durability="wal"))
        async with asyncio.timeout(PATIENCE_S):
            async with shard_processes(shard):
                await append_all(shard, Kind("queue", "wal"))
            other = ShardProcess(
                tmp_path, "b", tables("sequence", durability="wal"), f"replay.dir={shard.files}"
            )
            reason = await other.refuses_to_start()
            assert "are those of a queue table and the configuration says sequence" in reason

    asyncio.run(main())


def test_a_table_larger_than_its_memory_is_served_from_its_files_also_after_kill_9(tmp_path: Path) -> None:
    async def main() -> None:
        what = Kind("sequence", "fsync")
        most = 1 << 12
        shard = ShardProcess(tmp_path, "a", tables("sequence", durability="fsync", max_ram_bytes=most))
        async with asyncio.timeout(PATIENCE_S), shard_processes(shard):
            await append_all(shard, what)
            for when in ("before", "after"):
                stats = await stats_of(shard)
                client = shard.client()
                samples = await client.open_sample("train")
                await samples.request(NUM_APPENDS)
                sampled = await samples.receive()
                await client.close()
                print(
                    f"{when} kill -9: {stats.num_bytes} bytes stored, {stats.ram_bytes} in memory "
                    f"(limit {most}), {len(set(what.numbers(sampled)))} of {NUM_APPENDS} items sampled"
                )
                assert stats.num_bytes > 2 * most
                # The newest one may not have been on the disk yet.
                assert stats.ram_bytes <= most + stats.num_bytes // NUM_APPENDS
                assert sorted(what.numbers(sampled)) == list(range(NUM_APPENDS))
                shard.kill()
                await shard.start()

    asyncio.run(main())


def test_sigterm_while_files_are_read_exits_0_at_once(tmp_path: Path) -> None:
    """The files are a pipe that nobody writes to: reading them never ends."""

    async def main() -> None:
        shard = ShardProcess(tmp_path, "a", tables("queue", durability="wal"), "rpc.drain_s=30")
        directory = shard.files / "train"
        directory.mkdir(parents=True)
        os.mkfifo(directory / "000000000001.seg")
        try:
            async with asyncio.timeout(PATIENCE_S):
                await shard.listen()
                await until(lambda: _logged(shard, "reading"))
                assert await health(shard) == health_pb2.HealthCheckResponse.NOT_SERVING
                client = shard.client()
                with pytest.raises(UnavailableError, match="still reading its files"):
                    await client.stats()
                await client.close()
                code = await shard.terminate()
        finally:
            shard.kill()
        assert code == 0, shard.log
        assert "Traceback" not in shard.log

    asyncio.run(main())


async def health(shard: ShardProcess) -> int:
    async with grpc.aio.insecure_channel(shard.announced("health")) as channel:
        request = health_pb2.HealthCheckRequest()
        return int((await health_pb2_grpc.HealthStub(channel).Check(request)).status)


async def _logged(shard: ShardProcess, text: str) -> bool:
    return text in shard.log
