"""Where the learner's data come from: a sampler over all shards, by the kind of the policy's table.

Built by `session`, on the event loop; no torch. Each kind is an `ItemSource` of the prefetcher that is
started and closed around training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from services.learner.metrics import PolicyMetrics
from services.learner.schedule import ImportanceExponent
from shoal.clients.replay_batches import BatchSampler, BatchStats
from shoal.clients.replay_draw import ItemRefs, SampledBatch
from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_sampler import ReplaySampler
from shoal.config import Config
from shoal.config.policies import PolicyPlace, policy_seed, replay_tables
from shoal.config.ranks import Ranks, batch_share
from shoal.config.tables import SampledTable
from shoal.records import Item
from shoal.rpc.addresses import Address, AddressBook

# A message costs the same whatever it holds: small batches are drawn several at a time. Not where priorities
# change with every batch.
_DRAW_BYTES, _MAX_BATCHES = 1 << 19, 8


class Source(Protocol):
    """`start`, then `next` for ever, at the end `close`."""

    # Whether the table samples by priorities, and takes new ones.
    has_priorities: bool

    def start(self) -> None: ...

    def go_on_from(self, env_steps: int, batch_bytes: int) -> None:
        """The run has made so many steps already, and a batch is so large."""
        ...

    async def next(self) -> tuple[Item, ...] | SampledBatch:
        """At least one item. Raises the UserError of a shard that refuses us."""
        ...

    def send_priorities(self, refs: ItemRefs, priorities: np.ndarray) -> None:
        """New ones for what `next` gave. Does not wait or raise: what fails, `next` raises."""
        ...

    async def close(self) -> None: ...


def make_source(config: Config, place: PolicyPlace, ranks: Ranks, metrics: PolicyMetrics) -> Source:
    """The source for the table that a policy is trained from; of several learners each has its own."""
    shards = AddressBook(config.addresses.replay, config.rpc)
    settings, table = config.learner, replay_tables(config)[place.table]

    def connect(address: Address) -> GrpcReplayClient:
        return GrpcReplayClient(address, config.security, config.limits, config.rpc)

    if not isinstance(table, SampledTable):
        return QueueSource(ReplaySampler(shards, connect, place.table, settings.prefetch_items, config.rpc))
    exponent = ImportanceExponent(config)
    sampler = BatchSampler(
        shards,
        connect,
        place.table,
        batch_share(config, ranks.rank, ranks.size),
        config.rpc,
        np.random.default_rng([policy_seed(config, place.name), ranks.rank]),
        prefetch_batches=settings.prefetch_batches,
        # Where all items have the same chance there is no bias to correct.
        beta=exponent if table.alpha > 0 else 0.0,
    )
    return BatchSource(sampler, metrics, exponent, has_priorities=table.alpha > 0)


class QueueSource:
    """One item at a time, from whichever shard has one: each is a trajectory of many environments."""

    has_priorities = False

    def __init__(self, sampler: ReplaySampler) -> None:
        self._sampler = sampler

    def start(self) -> None:
        self._sampler.start()

    def go_on_from(self, env_steps: int, batch_bytes: int) -> None:
        """Nothing of a queue depends on it."""

    async def next(self) -> tuple[Item, ...]:
        return (await self._sampler.next(timeout_s=None),)

    def send_priorities(self, refs: ItemRefs, priorities: np.ndarray) -> None:
        raise TypeError("items of a queue have no priorities")

    async def close(self) -> None:
        await self._sampler.close()


class BatchSource:
    """As many items at a time as a batch or several hold, drawn over all shards as if they were one table."""

    def __init__(
        self,
        sampler: BatchSampler,
        metrics: PolicyMetrics,
        exponent: ImportanceExponent,
        has_priorities: bool,
    ) -> None:
        """`exponent`: the sampler's, which follows what is heard of environment steps."""
        self.has_priorities = has_priorities
        self._exponent = exponent
        self._sampler = sampler
        self._metrics = metrics
        self._counted = BatchStats()

    def start(self) -> None:
        self._sampler.start()

    def go_on_from(self, env_steps: int, batch_bytes: int) -> None:
        self._exponent.env_steps += env_steps
        if not self.has_priorities:
            self._sampler.batch_size *= min(max(_DRAW_BYTES // batch_bytes, 1), _MAX_BATCHES)

    async def next(self) -> SampledBatch:
        self._count()
        batch = await self._sampler.next(timeout_s=None)
        self._exponent.env_steps += batch.steps_inserted
        return batch

    def send_priorities(self, refs: ItemRefs, priorities: np.ndarray) -> None:
        try:
            self._sampler.send_priorities(refs, priorities)
        except Exception as error:
            self._sampler.on_failure(error)

    async def close(self) -> None:
        self._count()
        await self._sampler.close()

    def _count(self) -> None:
        """What became of priorities since the last time."""
        now, before, metrics = self._sampler.stats, self._counted, self._metrics
        metrics.priorities_updated.inc(now.num_updated - before.num_updated)
        metrics.priorities_gone.inc(now.num_gone - before.num_gone)
        metrics.priorities_dropped.inc(now.num_updates_dropped - before.num_updates_dropped)
        self._counted = replace(now)
