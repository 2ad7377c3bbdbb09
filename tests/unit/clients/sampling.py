"""A batch sampler over shards in memory, for the tests of its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np

from shoal.clients.replay_batches import BatchSampler
from shoal.clients.replay_draw import SampledBatch
from shoal.clients.replay_weights import Beta
from shoal.config.connections import RpcSection
from tests.unit.clients.directories import ChangingDirectory
from tests.unit.clients.memory_shards import MemoryShard
from tests.unit.replay.virtual_time import settle

RPC = RpcSection(max_backoff_s=0.5)


@asynccontextmanager
async def sampling(
    directory: ChangingDirectory,
    batch_size: int = 10,
    *,
    prefetch_batches: int = 2,
    beta: Beta = 1.0,
    seed: int = 0,
) -> AsyncIterator[BatchSampler]:
    sampler = BatchSampler(
        directory,
        directory.connect,
        "train",
        batch_size,
        RPC,
        np.random.default_rng(seed),
        prefetch_batches=prefetch_batches,
        beta=beta,
    )
    sampler.start()
    try:
        yield sampler
    finally:
        await sampler.close()
        await settle()


def three() -> list[MemoryShard]:
    return [
        MemoryShard("a", {1: 1.0, 2: 2.0}),
        MemoryShard("b", {1: 4.0, 2: 8.0, 3: 1.0}),
        MemoryShard("c", {1: 16.0}),
    ]


async def take(sampler: BatchSampler, number: int) -> list[SampledBatch]:
    return [await sampler.next(timeout_s=None) for _ in range(number)]
