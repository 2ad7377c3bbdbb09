"""Three real shards with unequal mass are sampled as one table would be.

The distribution over items, before and after updates and evictions, and the weights. Shards sample in
strata, so the counts of items scatter less than independent draws would: their score is below 0. How many
come from each shard is drawn independently.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from shoal.clients.replay_batches import BatchSampler
from shoal.clients.replay_draw import SampledBatch
from shoal.clients.replay_shard import Append, Outcome
from shoal.config.tables import SequenceTable, TransitionTable
from shoal.records import Life
from shoal.rpc.addresses import AddressBook
from shoal.wire import encode_trajectory
from tests.service.replay_server import LIMITS, OPEN, RPC, Served, served
from tests.unit.replay.payloads import trajectory

LIFE = Life("actor", "run")
ALPHA = 0.7
# Items per shard, and what all their priorities are multiplied with: the largest table has the smallest mass.
SIZES = {"a": 40, "b": 12, "c": 5}
SCALES = {"a": 0.1, "b": 1.0, "c": 20.0}
BATCH = 64
PREFETCH = 3
NUM_BATCHES = 150

Place = tuple[str, int]


class Model:
    """One big table: the mass of every item of every shard."""

    def __init__(self) -> None:
        self.masses: dict[Place, float] = {}

    def set(self, shard: str, keys: np.ndarray, priorities: np.ndarray) -> None:
        self.masses |= {(shard, int(key)): p**ALPHA for key, p in zip(keys, priorities.tolist(), strict=True)}

    @property
    def probabilities(self) -> dict[Place, float]:
        total = sum(self.masses.values())
        return {place: mass / total for place, mass in self.masses.items()}

    def weights(self, places: list[Place], beta: float) -> np.ndarray:
        probabilities = self.probabilities
        weights = np.array([(len(self.masses) * probabilities[place]) ** -beta for place in places])
        return weights / weights.max()


class Rig:
    """Three shards behind gRPC on this event loop, what they should hold, and a sampler over them."""

    def __init__(self, kind: str, shards: Mapping[str, Served], max_items: int) -> None:
        self.kind = kind
        self.shards = shards
        self.model = Model()
        self._max_items = max_items
        self._rng = np.random.default_rng(1)
        self._next_key = dict.fromkeys(shards, 1)
        self._sequence = 0
        self._num_taken = 0

    async def insert(self, shard: str, number: int) -> None:
        """Items with random priorities; what the ring drops then is dropped from the model too."""
        priorities = (SCALES[shard] * self._rng.uniform(0.2, 3.0, number)).astype(np.float32)
        if self.kind == "sequence":
            payloads = [encode_trajectory(trajectory(item, envs=1)) for item in range(number)]
        else:
            payloads = [encode_trajectory(trajectory(0, rows=number + 1, envs=1))]
        append = Append(self._sequence, tuple(payloads), priorities)
        assert (await self.shards[shard].shard.append(LIFE, "train", append)).outcome is Outcome.STORED
        self._sequence += 1
        first = self._next_key[shard]
        self._next_key[shard] += number
        self.model.set(shard, np.arange(first, first + number), priorities.astype(np.float64))
        oldest = self._next_key[shard] - self._max_items
        for place in [place for place in self.model.masses if place[0] == shard and place[1] < oldest]:
            del self.model.masses[place]

    def places(self, batch: SampledBatch) -> list[Place]:
        names = {served.address: name for name, served in self.shards.items()}
        shards = [names[source.address] for source in batch.refs.sources]
        keys = batch.refs.keys.tolist()
        return [(shards[at], key) for at, key in zip(batch.refs.where.tolist(), keys, strict=True)]

    @asynccontextmanager
    async def sampling(self, seed: int, beta: float = 0.6) -> AsyncIterator[BatchSampler]:
        for number, shard in enumerate(self.shards.values()):
            fix_draws(shard, 100 * seed + number)
        self._num_taken = 0
        book = AddressBook([str(served.address.target) for served in self.shards.values()], RPC)
        clients = {served.address: served for served in self.shards.values()}
        sampler = BatchSampler(
            book,
            lambda address: clients[address].client(OPEN, LIMITS),
            "train",
            BATCH,
            RPC,
            np.random.default_rng(seed),
            prefetch_batches=PREFETCH,
            beta=beta,
        )
        sampler.start()
        try:
            yield sampler
            # What was asked for ahead must not draw from the generators of those who come next.
            while sampler.stats.num_batches < self._num_taken + PREFETCH:
                await asyncio.sleep(0)
        finally:
            await sampler.close()

    async def take(self, sampler: BatchSampler) -> SampledBatch:
        self._num_taken += 1
        return await sampler.next(timeout_s=30.0)

    async def check(self, title: str, seed: int) -> None:
        """The counts of many batches against the exact distribution; each weight against one big table's."""
        counts: Counter[Place] = Counter()
        worst = 0.0
        async with self.sampling(seed) as sampler:
            for _ in range(NUM_BATCHES):
                batch = await self.take(sampler)
                places = self.places(batch)
                counts.update(places)
                worst = max(worst, float(abs(batch.weights - self.model.weights(places, 0.6)).max()))
        assert counts.keys() <= self.model.masses.keys(), "an item that is not there"
        z = chi_square_z(counts, self.model.probabilities)
        of_shards = chi_square_z(by_shard(counts), by_shard(self.model.probabilities))
        print(
            f"{self.kind}, {title}: {sum(counts.values())} samples of {len(self.model.masses)} items, "
            f"chi-square z {z:+.2f} (shards {of_shards:+.2f}), largest error of a weight {worst:.1e}"
        )
        assert z < 3.1, "p below 0.001"
        assert of_shards < 3.1, "p below 0.001"
        assert worst <= 1e-6


@asynccontextmanager
async def rig(kind: str, directory: Path) -> AsyncIterator[Rig]:
    max_items = max(SIZES.values())
    make = SequenceTable if kind == "sequence" else TransitionTable
    async with AsyncExitStack() as stack:
        shards = {}
        for name in SIZES:
            table = make(alpha=ALPHA, max_items=max_items)
            shards[name] = await stack.enter_async_context(served(directory, name, table=table))
        made = Rig(kind, shards, max_items)
        for name, size in SIZES.items():
            await made.insert(name, size)
        yield made


def fix_draws(shard: Served, seed: int) -> None:
    """A shard seeds its draws from the system: here they must be the same in every run."""
    ring = shard.shard.tables["train"].table._ring
    ring._rng = np.random.default_rng(seed)


def by_shard(numbers: Mapping[Place, float]) -> dict[Place, float]:
    sums: Counter[Place] = Counter()
    for (shard, _), number in numbers.items():
        sums[shard, 0] += number
    return sums


def chi_square_z(counts: Mapping[Place, float], probabilities: Mapping[Place, float]) -> float:
    """Pearson's statistic as a normal score (Wilson and Hilferty); far above 0 is another distribution."""
    number = sum(counts.values())
    expected = {place: number * p for place, p in probabilities.items()}
    assert min(expected.values()) > 5, "too few samples for the test"
    statistic = sum((counts.get(place, 0) - mean) ** 2 / mean for place, mean in expected.items())
    freedom = len(expected) - 1
    variance = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - variance)) / variance**0.5)


@pytest.mark.parametrize("kind", ["sequence", "transition"])
def test_three_shards_are_sampled_as_one_table(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with rig(kind, tmp_path) as three:
            await three.check("at first", seed=1)

            async with three.sampling(seed=2) as sampler:
                batch = await three.take(sampler)
                priorities = np.random.default_rng(7).uniform(0.05, 5.0, BATCH)
                await sampler.update_priorities(batch, priorities)
                assert await sampler.flush(10.0) == 0
                # Of several for one item the last counts.
                told = dict(zip(three.places(batch), priorities.tolist(), strict=True))
                for (name, key), priority in told.items():
                    three.model.set(name, np.array([key]), np.array([priority]))
                assert (sampler.stats.num_updated, sampler.stats.num_gone) == (len(told), 0)
            await three.check("after priority updates", seed=3)

            async with three.sampling(seed=4) as sampler:
                batch = await three.take(sampler)
                await three.insert("a", 25)
                await three.insert("b", 33)
                places = set(three.places(batch))
                gone = {place for place in places if place not in three.model.masses}
                assert gone
                assert places - gone
                await sampler.update_priorities(batch, np.full(BATCH, 0.5))
                assert await sampler.flush(10.0) == 0
                for name, key in places - gone:
                    three.model.set(name, np.array([key]), np.array([0.5]))
                assert (sampler.stats.num_updated, sampler.stats.num_gone) == (
                    len(places - gone),
                    len(gone),
                )
                told_by_shards = sum(shard.stats().num_priorities_gone for shard in three.shards.values())
                assert told_by_shards == len(gone)
                print(
                    f"{kind}: {len(places - gone)} priorities updated, {len(gone)} for evicted items ignored"
                )
            await three.check("after evictions", seed=5)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["sequence", "transition"])
def test_an_equal_share_for_each_shard_is_seen(kind: str, tmp_path: Path) -> None:
    """The control: what most systems do, a third of each batch from each shard."""

    async def main() -> None:
        async with rig(kind, tmp_path) as three:
            counts: Counter[Place] = Counter()
            for seed, (name, shard) in enumerate(three.shards.items()):
                fix_draws(shard, seed)
                for _ in range(NUM_BATCHES):
                    sampled = await shard.shard.sample("train", BATCH // 3)
                    keys = [item.key for item in sampled.items]
                    if sampled.transitions is not None:
                        keys = sampled.transitions.keys.tolist()
                    counts.update((name, key) for key in keys)
            z = chi_square_z(counts, three.model.probabilities)
            print(f"{kind}, control with equal shares: chi-square z {z:+.1f}")
            assert z > 20

    asyncio.run(main())
