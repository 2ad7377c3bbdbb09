"""Hostile payloads through the real program: refused with reasons, in bounded memory, honest ones served."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import grpc
import lz4.block
import psutil
import pytest
from crc32c import crc32c

from services.replay.shard import Shard
from shoal.clients.replay_shard import Outcome, ReplayShardClient
from shoal.config.connections import LimitsSection, RpcSection
from shoal.config.tree import ReplaySection
from shoal.records import Life
from shoal.rpc.channel import open_channel
from shoal.v1 import tensor_pb2, trajectory_pb2
from tests.service.replay_server import OPEN, ShardProcess, append_of, shard_processes
from tests.unit.replay.payloads import payload

MIB = 1 << 20
# What a tensor and a trajectory may take once unpacked, in the shard under attack.
MAX_TENSOR_BYTES = 4 * MIB
MAX_TRAJECTORY_BYTES = 8 * MIB
MAX_GROWTH_BYTES = 48 * MIB
ROUNDS = 20

ZEROS_64_MIB = lz4.block.compress(bytes(64 * MIB), store_size=False)
ZEROS_66 = lz4.block.compress(bytes(66), store_size=False)
NOT_LZ4 = b"\xf0" * 64


def trajectory(
    data: bytes,
    shape: tuple[int, ...],
    *,
    dtype: int = tensor_pb2.DTYPE_UINT8,
    codec: int = tensor_pb2.CODEC_LZ4,
    crc: int | None = None,
    copies: int = 1,
) -> bytes:
    """A trajectory with a good `first` column and `copies` of the hostile one, each in a block of its own."""
    first = trajectory_pb2.Column(name="first", dtype=tensor_pb2.DTYPE_BOOL, shape=(2, 1))
    names = [f"x{number}" for number in range(copies)]
    columns = [trajectory_pb2.Column(name=name, dtype=dtype, shape=shape) for name in names]  # type: ignore[arg-type]
    hostile = trajectory_pb2.Block(
        codec=codec,  # type: ignore[arg-type]
        crc32c=crc32c(data) if crc is None else crc,
        data=data,
    )
    return forged([first, *columns], [raw_block(bytes(2)), *[hostile] * copies])


def forged(columns: Sequence[trajectory_pb2.Column], blocks: Sequence[trajectory_pb2.Block]) -> bytes:
    return laid_out(trajectory_pb2.Layout(columns=columns).SerializeToString(), blocks)


def laid_out(layout: bytes, blocks: Sequence[trajectory_pb2.Block] = ()) -> bytes:
    return trajectory_pb2.Trajectory(layout=layout, blocks=blocks).SerializeToString()


def raw_block(data: bytes) -> trajectory_pb2.Block:
    return trajectory_pb2.Block(codec=tensor_pb2.CODEC_RAW, crc32c=crc32c(data), data=data)


def bools(name: str, width: int) -> trajectory_pb2.Column:
    shape = (2, 1, width) if width > 1 else (2, 1)
    return trajectory_pb2.Column(name=name, dtype=tensor_pb2.DTYPE_BOOL, shape=shape)


GOOD = payload(rows=2, envs=1)
HONEST = lz4.block.compress(bytes(2 * MIB), store_size=False)
# Names of columns and unlike types are the table's business; see test_replay_lies.py for those.
HOSTILE = {
    "claims 2 GiB": trajectory(HONEST, (2, 1, 1 << 30)),
    "claims 2^63": trajectory(HONEST, (2, 1, 1 << 62)),
    "claims 2^63 in a few dimensions": trajectory(HONEST, (2, 1, *[1 << 31] * 10)),
    "unpacks to 64 MiB as it says": trajectory(ZEROS_64_MIB, (2, 1, 32 * MIB)),
    "unpacks to 64 MiB and says 2 MiB": trajectory(ZEROS_64_MIB, (2, 1, MIB)),
    "many tensors below the limit": trajectory(HONEST, (2, 1, MIB), copies=5),
    "short output": trajectory(lz4.block.compress(bytes(10), store_size=False), (2, 1, MIB)),
    "truncated": trajectory(HONEST[:-20], (2, 1, MIB)),
    "trailing bytes": trajectory(HONEST + b"\0" * 16, (2, 1, MIB)),
    "not LZ4": trajectory(NOT_LZ4, (2, 1, MIB)),
    "empty data": trajectory(b"", (2, 1, MIB)),
    "raw that is too short": trajectory(b"x", (2, 1, MIB), codec=tensor_pb2.CODEC_RAW),
    "corrupt": trajectory(HONEST, (2, 1, MIB), crc=1),
    "unknown dtype": trajectory(HONEST, (2, 1, MIB), dtype=99),
    "no dtype": trajectory(HONEST, (2, 1, MIB), dtype=0),
    "unknown codec": trajectory(HONEST, (2, 1, MIB), codec=99),
    "no codec": trajectory(HONEST, (2, 1, MIB), codec=0),
    "delta of floats": trajectory(
        HONEST, (2, 1, MIB // 4), dtype=tensor_pb2.DTYPE_FLOAT32, codec=tensor_pb2.CODEC_DELTA_LZ4
    ),
    "delta of two columns": forged(
        [bools("first", 1), bools("x", 32)],
        [trajectory_pb2.Block(codec=tensor_pb2.CODEC_DELTA_LZ4, crc32c=crc32c(ZEROS_66), data=ZEROS_66)],
    ),
    "negative dimension": trajectory(HONEST, (2, 1, -MIB)),
    "two negative dimensions": trajectory(HONEST, (2, 1, -MIB, -1)),
    "rank 1000": trajectory(HONEST, (2, *[1] * 999)),
    "nothing times much": trajectory(b"", (2, 1, 0, 1 << 62, 1 << 62), codec=tensor_pb2.CODEC_RAW),
    "scalar": trajectory(b"x", (), codec=tensor_pb2.CODEC_RAW),
    "other leading dimensions": trajectory(HONEST, (1, 2, MIB)),
    "bool of bytes": forged([bools("first", 1), bools("x", 32)], [raw_block(bytes(2) + b"\x07" * 64)]),
    "large bool of bytes": trajectory(
        b"\x07" * MIB, (2, 1, MIB // 2), dtype=tensor_pb2.DTYPE_BOOL, codec=tensor_pb2.CODEC_RAW
    ),
    "twice the same column": forged([bools("first", 1)] * 2, [raw_block(bytes(4))]),
    "less in a shared block": forged([bools("first", 1), bools("x", 32)], [raw_block(bytes(65))]),
    "more in a shared block": forged([bools("first", 1), bools("x", 32)], [raw_block(bytes(67))]),
    "too few blocks": forged([bools("first", 1), bools("x", 4096)], [raw_block(bytes(2))]),
    "too many blocks": forged([bools("first", 1)], [raw_block(bytes(2))] * 2),
    "no blocks": forged([bools("first", 1)], []),
    "a layout that is none": laid_out(b"\xff" * 100),
    "a layout of a million columns": trajectory_pb2.Trajectory(
        layout=b"\x0a\x00" * 1_000_000
    ).SerializeToString(),
    "a layout of many columns": forged([bools(f"x{number}", 1) for number in range(300)], []),
    "a layout with a long name": forged([bools("first", 1), bools("x" * MIB, 1)], [raw_block(bytes(4))]),
    "a million empty episodes": GOOD + b"\x12\x00" * 1_000_000,
    "more episodes than steps": GOOD
    + trajectory_pb2.Trajectory(episodes=[trajectory_pb2.Episode(num_steps=1)] * 50_000).SerializeToString(),
    "a million empty blocks": GOOD + b"\x32\x00" * 1_000_000,
    "the columns of an older release": b"\x0a\x00" * 5,
    "a million fields of no release": GOOD + b"\x78\x00" * 1_000_000,
    "a million dimensions": trajectory(HONEST, (2, *[1] * 1_000_000)),
    "no columns": forged([], []),
    "no message": b"\xff" * 100,
    "nothing": b"",
}


def peak_bytes(pid: int) -> int:
    """The most memory the process ever had resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


async def attack(client: ReplayShardClient, rounds: int) -> Counter[Outcome]:
    """Every hostile payload, many times; returns what became of them."""
    stream = await client.open_append(Life("hostile", "run"), "train")
    outcomes: Counter[Outcome] = Counter()
    sequence = 0
    for _ in range(rounds):
        for item in HOSTILE.values():
            await stream.send(append_of(sequence, item, timeout_s=1.0))
            ack = await stream.receive()
            outcomes[ack.outcome] += 1
            assert bool(ack.reason) == (ack.outcome is Outcome.REJECTED)
            sequence += 1
    await stream.close()
    return outcomes


async def append_honestly(client: ReplayShardClient, item: bytes) -> Outcome:
    stream = await client.open_append(Life("honest", "run"), "train")
    await stream.send(append_of(0, item))
    return (await stream.receive()).outcome


def delimited(number: int, data: bytes) -> bytes:
    """A field of bytes, as protocol buffers write it."""
    length, size = b"", len(data)
    while size >= 0x80:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


# Each some 16 MiB long, of which a parser would make hundreds.
SWELLING = {
    "a hello that declares millions of columns": ("Append", delimited(1, b"\x2a\x00" * (8 * MIB))),
    "a hello with a shape of millions": (
        "Append",
        delimited(1, delimited(5, delimited(3, b"\1" * 16 * MIB))),
    ),
    "an append of millions of trajectories": ("Append", delimited(2, b"\x1a\x00" * (8 * MIB))),
    "an append in millions of pieces": ("Append", b"\x12\x02\x1a\x00" * (4 * MIB)),
    "a hello in pieces": ("Append", delimited(1, b"\x2a\x00" * (MIB // 2 - 1)) * 16),
    "a hello behind items": ("Append", b"\x12\x00" + delimited(1, b"\x2a\x00" * (8 * MIB))),
    "an update of millions of keys": ("UpdatePriorities", delimited(2, b"\1" * 30 * MIB)),
}


async def code_of(channel: grpc.aio.Channel, method: str, message: bytes) -> grpc.StatusCode:
    path = f"/shoal.v1.ReplayService/{method}"
    if method == "UpdatePriorities":
        return await channel.unary_unary(path)(message).code()
    call = channel.stream_stream(path)()
    with contextlib.suppress(grpc.aio.AioRpcError):
        await call.write(message)
        await call.read()
    return await call.code()


def test_messages_that_would_swell_are_refused_before_they_are_parsed(tmp_path: Path) -> None:
    async def main() -> None:
        shard = ShardProcess(tmp_path, "shard")
        async with asyncio.timeout(100), shard_processes(shard):
            client = shard.client()
            # A message of this size that is no attack.
            assert await append_honestly(client, payload(envs=2000, rows=50, width=40)) is Outcome.STORED
            before = peak_bytes(shard.pid)
            channel = open_channel(shard.address, OPEN, LimitsSection(), RpcSection())
            for name, (method, message) in SWELLING.items():
                assert await code_of(channel, method, message) is grpc.StatusCode.INVALID_ARGUMENT, name
            await channel.close()
            grown = peak_bytes(shard.pid) - before
            print(f"{len(SWELLING)} messages of 16 MiB and more: peak memory +{grown / MIB:.0f} MiB")
            assert grown < 4 * MAX_GROWTH_BYTES
            honest = await client.open_append(Life("honest", "next run"), "train")
            await honest.send(append_of(0, payload(1, envs=2000, rows=50, width=40)))
            assert (await honest.receive()).outcome is Outcome.STORED
            await client.close()

    asyncio.run(main())


def limits(tensor: int, trajectory: int) -> tuple[str, str]:
    return f"limits.max_tensor_bytes={tensor}", f"limits.max_trajectory_bytes={trajectory}"


@pytest.mark.parametrize("name", list(HOSTILE))
def test_each_is_refused_by_a_shard_in_this_process(name: str) -> None:
    """Which one it is, should one ever pass."""

    shard = Shard(
        ReplaySection(),
        LimitsSection(max_tensor_bytes=MAX_TENSOR_BYTES, max_trajectory_bytes=MAX_TRAJECTORY_BYTES),
    )
    ack = asyncio.run(shard.append(Life("hostile", "run"), "train", append_of(0, HOSTILE[name])))
    assert ack.outcome is Outcome.REJECTED
    assert 0 < len(ack.reason) < 500


def test_bombs_and_lies_are_refused_in_bounded_memory_and_the_next_honest_item_is_served(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        guarded = ShardProcess(tmp_path, "guarded", *limits(MAX_TENSOR_BYTES, MAX_TRAJECTORY_BYTES))
        # The control may unpack 64 MiB: the test must see that in the same figure.
        control = ShardProcess(tmp_path, "control", *limits(256 * MIB, 512 * MIB))
        async with asyncio.timeout(100), shard_processes(guarded, control):
            growth = {}
            for shard, rounds in ((guarded, ROUNDS), (control, 1)):
                client = shard.client()
                # What a process takes once it serves at all is not the attacker's doing.
                assert await append_honestly(client, payload()) is Outcome.STORED
                before, now = peak_bytes(shard.pid), psutil.Process(shard.pid).memory_info().rss
                outcomes = await attack(client, rounds)
                growth[shard] = peak_bytes(shard.pid) - before
                after = psutil.Process(shard.pid).memory_info().rss
                print(
                    f"{shard.socket.stem}: {sum(outcomes.values())} hostile payloads, "
                    f"{outcomes[Outcome.REJECTED]} rejected, peak memory +{growth[shard] / MIB:.1f} MiB, "
                    f"after {(after - now) / MIB:+.1f} MiB"
                )
                if shard is guarded:
                    assert outcomes == {Outcome.REJECTED: ROUNDS * len(HOSTILE)}
                    (stats,) = await client.stats()
                    assert (stats.num_rejected, stats.num_items) == (ROUNDS * len(HOSTILE), 1)
                    assert await append_honestly(client, payload(1)) is Outcome.DUPLICATE
                    honest = await client.open_append(Life("honest", "next run"), "train")
                    await honest.send(append_of(0, payload(1)))
                    assert (await honest.receive()).outcome is Outcome.STORED
                await client.close()
            assert growth[guarded] < MAX_GROWTH_BYTES < growth[control]

    asyncio.run(main())
