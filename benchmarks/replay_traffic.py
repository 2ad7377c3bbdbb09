"""One writer and one reader of replay shards, as an actor and a learner use them, with a stop-watch.

Everything is in the figures: an insert begins with arrays and is compressed here; a sample is over when its
arrays are decoded here. Runs on the caller's event loop; decoding runs beside it in one thread.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from benchmarks.replay_data import raw_bytes
from benchmarks.replay_rig import LIMITS, OPEN, RPC, TABLE, Shard
from shoal.clients.replay_batches import BatchSampler
from shoal.clients.replay_draw import SampledBatch
from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_shard import Append, Outcome
from shoal.clients.replay_writer import ReplayWriter
from shoal.config.tree import ActorSection
from shoal.records import Life, Trajectory
from shoal.rpc.addresses import Address, AddressBook
from shoal.wire import decode_sequence, encode_trajectory

PER_APPEND = 32
BATCH = 256
FLUSH_S = 300.0
# Appends on their way: enough that the writer never waits for a round trip.
WINDOW = ActorSection(max_unacked_items=16, max_unacked_bytes=64 << 20, failover_after_s=60.0)


@dataclass(frozen=True)
class Rate:
    """Decoded bytes count: what a user hands in and gets back."""

    items_per_s: float
    mb_per_s: float


def connect(address: Address) -> GrpcReplayClient:
    return GrpcReplayClient(address, OPEN, LIMITS, RPC)


def new_life() -> Life:
    return Life("bench", uuid.uuid4().hex)


@asynccontextmanager
async def writer(shards: Sequence[Shard]) -> AsyncIterator[ReplayWriter]:
    book = AddressBook([shard.address.target for shard in shards], RPC)
    await book.resolve()
    opened = ReplayWriter(book, connect, new_life(), TABLE, WINDOW, RPC)
    opened.start()
    try:
        yield opened
    finally:
        await opened.close()


async def insert(shards: Sequence[Shard], trajectories: Sequence[Trajectory], seconds: float) -> Rate:
    """Encode and append for so long, then wait until everything is acked."""
    per_append = min(PER_APPEND, len(trajectories))
    source = itertools.cycle(trajectories)
    async with writer(shards) as opened:
        # The connection is no part of a rate.
        await opened.append([encode_trajectory(trajectories[0])])
        await opened.flush(FLUSH_S)
        num_items, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            await opened.append([encode_trajectory(t) for t in itertools.islice(source, per_append)])
            num_items += per_append
        await flush(opened)
        elapsed = time.perf_counter() - began
    return Rate(num_items / elapsed, num_items * raw_bytes(trajectories[0]) / elapsed / 1e6)


async def fill(shards: Sequence[Shard], payloads: Sequence[bytes], num_items: int) -> None:
    """Append ready-made payloads, again and again up to `num_items`."""
    source = itertools.cycle(payloads)
    async with writer(shards) as opened:
        for begin in range(0, num_items, PER_APPEND):
            await opened.append(list(itertools.islice(source, min(PER_APPEND, num_items - begin))))
        await flush(opened)


async def flush(opened: ReplayWriter) -> None:
    left = await opened.flush(FLUSH_S)
    stats = opened.stats
    if left or stats.num_rejected:
        raise RuntimeError(f"{left} appends not acked, {stats.num_rejected} rejected: {stats.last_rejection}")


async def sample(shards: Sequence[Shard], seconds: float, batch_size: int = BATCH) -> Rate:
    """Batches over all shards; while one is decoded the next ones are on their way."""
    book = AddressBook([shard.address.target for shard in shards], RPC)
    await book.resolve()
    sampler = BatchSampler(
        book, connect, TABLE, batch_size, RPC, np.random.default_rng(1), prefetch_batches=4
    )
    sampler.start()
    try:
        await asyncio.to_thread(decode, await sampler.next(FLUSH_S))
        num_items = num_bytes = 0
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            num_bytes += await asyncio.to_thread(decode, await sampler.next(FLUSH_S))
            num_items += batch_size
        elapsed = time.perf_counter() - began
    finally:
        await sampler.close()
    return Rate(num_items / elapsed, num_bytes / elapsed / 1e6)


def decode(batch: SampledBatch) -> int:
    """All arrays of a batch, as NumPy; returns their bytes."""
    if batch.transitions is not None:
        return sum(column.nbytes for column in batch.transitions.columns.values())
    return sum(raw_bytes(decode_sequence(item.payloads, LIMITS)) for item in batch.items)


async def ack_latencies(shard: Shard, payloads: Sequence[bytes], seconds: float) -> list[float]:
    """Seconds from an append to its ack, with one append of PER_APPEND items on its way at a time."""
    client = shard.client()
    taken: list[float] = []
    try:
        stream = await client.open_append(new_life(), TABLE)
        end = time.perf_counter() + seconds
        for sequence in itertools.count():
            began = time.perf_counter()
            if began > end:
                break
            await stream.send(Append(sequence, tuple(payloads[:PER_APPEND])))
            ack = await stream.receive()
            if ack.outcome is not Outcome.STORED:
                raise RuntimeError(f"the shard answered {ack.outcome.value}: {ack.reason}")
            taken.append(time.perf_counter() - began)
        await stream.close()
    finally:
        await client.close()
    return taken
