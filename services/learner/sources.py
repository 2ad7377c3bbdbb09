"""Where the learner's items come from: a sampler over all shards, by the kind of the policy's table.

Built by `session`, on the event loop; no torch. Each kind is an `ItemSource` of the prefetcher that is
started and closed around training.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from shoal.clients.replay_batches import BatchSampler
from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_sampler import ReplaySampler
from shoal.config import Config
from shoal.config.policies import PolicyPlace, policy_seed, replay_tables
from shoal.config.ranks import Ranks
from shoal.records import Item
from shoal.rpc.addresses import Address, AddressBook


class Source(Protocol):
    """`start`, then `next` for ever, at the end `close`."""

    def start(self) -> None: ...

    async def next(self) -> tuple[Item, ...]:
        """At least one item. Raises the UserError of a shard that refuses us."""
        ...

    async def close(self) -> None: ...


def make_source(config: Config, place: PolicyPlace, ranks: Ranks) -> Source:
    """The source for the table that a policy is trained from; of several learners each has its own."""
    shards = AddressBook(config.addresses.replay, config.rpc)
    settings = config.learner

    def connect(address: Address) -> GrpcReplayClient:
        return GrpcReplayClient(address, config.security, config.limits, config.rpc)

    if replay_tables(config)[place.table].kind == "queue":
        return QueueSource(ReplaySampler(shards, connect, place.table, settings.prefetch_items, config.rpc))
    return BatchSource(
        BatchSampler(
            shards,
            connect,
            place.table,
            ranks.share(settings.batch_envs),
            config.rpc,
            np.random.default_rng([policy_seed(config, place.name), ranks.rank]),
            prefetch_batches=settings.prefetch_batches,
        )
    )


class QueueSource:
    """One item at a time, from whichever shard has one: each is a trajectory of many environments."""

    def __init__(self, sampler: ReplaySampler) -> None:
        self._sampler = sampler

    def start(self) -> None:
        self._sampler.start()

    async def next(self) -> tuple[Item, ...]:
        return (await self._sampler.next(timeout_s=None),)

    async def close(self) -> None:
        await self._sampler.close()


class BatchSource:
    """As many sequences at a time as a batch holds, drawn over all shards as if they were one table."""

    def __init__(self, sampler: BatchSampler) -> None:
        self._sampler = sampler

    def start(self) -> None:
        self._sampler.start()

    async def next(self) -> tuple[Item, ...]:
        return tuple((await self._sampler.next(timeout_s=None)).items)

    async def close(self) -> None:
        await self._sampler.close()
