"""One batch from several shards as if from one table: who gives how many, and what each item weighs.

`PendingBatch` is one batch on its way: `BatchSampler` draws it, asks the shards and reports what became of
each request. No I/O and no clock here. Exactness: the numbers per shard are drawn in proportion to the
masses known at the draw (q), each shard draws among its own items in proportion to theirs, so that one draw
gives item i of shard k with P = q_k * mass_i / M_k, M_k being the shard's mass when it sampled. While
nothing changes that is the item's part of the mass of all shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.clients.replay_shard import Sampled
from shoal.clients.replay_weights import importance_weights
from shoal.errors import SpecMismatchError
from shoal.records import Episode, Item, Transitions
from shoal.rpc.addresses import Address


@dataclass(frozen=True)
class Source:
    """One connection to one shard. Keys are only good on the connection that brought them.

    A shard without files that was started again counts its keys from the beginning.
    """

    address: Address
    session: int


@dataclass(frozen=True)
class ItemRefs:
    """Where the items of a batch are, in the batch's order: item i is `keys[i]` of `sources[where[i]]`."""

    sources: tuple[Source, ...]
    where: np.ndarray
    keys: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, index: np.ndarray | slice) -> ItemRefs:
        """Of some of the items."""
        return ItemRefs(self.sources, self.where[index], self.keys[index])


@dataclass(frozen=True)
class SampledBatch:
    """Items of all shards, one shard after another: shuffle before splitting it.

    `items` from sequence tables and queues, `transitions` from a transition table, the other one empty.
    `weights` (float64 [B]) are importance weights, the largest being 1. `steps_inserted` and `episodes` are
    what came into the table since the batch before.
    """

    items: tuple[Item, ...]
    transitions: Transitions | None
    weights: np.ndarray
    refs: ItemRefs
    steps_inserted: int = 0
    episodes: tuple[Episode, ...] = ()

    def __len__(self) -> int:
        return len(self.refs)

    def parts(self, size: int) -> Iterator[SampledBatch]:
        """Batches of at most `size` items, each with its share of every shard; the first says what came."""
        number = -(-len(self) // size)
        if number <= 1:
            yield self
            return
        for part in range(number):
            index = slice(part, None, number)
            yield SampledBatch(
                items=self.items[index],
                transitions=None if self.transitions is None else self.transitions.take(index),
                weights=self.weights[index],
                refs=self.refs.take(index),
                steps_inserted=0 if part else self.steps_inserted,
                episodes=() if part else self.episodes,
            )


class PendingBatch:
    """A batch that is being put together."""

    def __init__(self, size: int) -> None:
        # Items that no shard has been asked for.
        self.missing = size
        # Whether shards have been asked for anything yet.
        self.drawn = False
        # What the draw was made with.
        self._masses: dict[Source, float] = {}
        self._num_items: dict[Source, int] = {}
        self._due: Counter[Source] = Counter()
        self._answers: list[tuple[Source, Sampled]] = []

    @property
    def complete(self) -> bool:
        return not self.missing and not self._due

    def draw(self, masses: Mapping[Source, float], rng: np.random.Generator) -> dict[Source, int]:
        """How many items to ask of each shard for what is missing; 0 is a question for its state alone.

        `masses`: of all shards that are there now. Empty: none of them has anything; draw again later.
        """
        # What a lost shard should have given is drawn again as the rest was: all items have one distribution.
        chosen = {
            source: self._masses[source] for source, mass in masses.items() if mass and source in self._masses
        }
        if not any(chosen.values()):
            chosen = dict(masses)
        total = sum(chosen.values())
        if not total > 0:
            return {}
        counts = rng.multinomial(self.missing, np.array(list(chosen.values())) / total)
        asked = {
            source: int(count)
            for source, count in zip(chosen, counts, strict=True)
            if count or (source not in self._num_items and source not in self._due)
        }
        self._masses |= {source: mass for source, mass in chosen.items() if not self._gave(source)}
        self._due.update(asked.keys())
        self.missing = 0
        self.drawn = True
        return asked

    def answered(self, source: Source, asked: int, sampled: Sampled) -> int:
        """A shard answered; returns how many it is to be asked for again, for this batch."""
        self._settle(source)
        self._num_items[source] = sampled.num_items
        if sampled.num_sampled:
            self._answers.append((source, sampled))
        short = asked - sampled.num_sampled
        if not short:
            return 0
        if sampled.priority_mass > 0:
            # It has items and gives them later: its limits say when.
            self._due[source] += 1
            return short
        self.missing += short
        return 0

    def lost(self, source: Source, asked: int) -> None:
        """The connection ended before the answer came."""
        self._settle(source)
        self.missing += asked

    def finish(self, beta: float) -> SampledBatch:
        """Once it is `complete`. Raises SpecMismatchError if the shards' columns differ."""
        sources = tuple(dict.fromkeys(source for source, _ in self._answers))
        # A shard that was lost on the way counts in both sums: what is common to all items does not change
        # weights.
        total = sum(self._masses.values())
        probabilities = np.concatenate(
            [
                self._masses[source] / total * masses_of(sampled) / sampled.priority_mass
                for source, sampled in self._answers
            ]
        )
        where = [np.full(sampled.num_sampled, sources.index(source)) for source, sampled in self._answers]
        keys = np.concatenate([_keys_of(sampled) for _, sampled in self._answers])
        parts = [sampled.transitions for _, sampled in self._answers if sampled.transitions is not None]
        return SampledBatch(
            items=tuple(item for _, sampled in self._answers for item in sampled.items),
            transitions=_joined(parts) if parts else None,
            weights=importance_weights(probabilities, sum(self._num_items.values()), beta),
            refs=ItemRefs(sources, np.concatenate(where), keys),
        )

    def _settle(self, source: Source) -> None:
        self._due[source] -= 1
        if not self._due[source]:
            del self._due[source]

    def _gave(self, source: Source) -> bool:
        return any(giver == source for giver, _ in self._answers)


def masses_of(sampled: Sampled) -> np.ndarray:
    """The mass of each item that was handed out."""
    if sampled.transitions is not None:
        return sampled.transitions.masses
    return np.array([item.mass for item in sampled.items])


def _keys_of(sampled: Sampled) -> np.ndarray:
    if sampled.transitions is not None:
        return sampled.transitions.keys
    return np.array([item.key for item in sampled.items], np.uint64)


def _joined(parts: Sequence[Transitions]) -> Transitions:
    """Column by column, one part after another."""
    layouts = {
        tuple((name, str(column.dtype), column.shape[1:]) for name, column in sorted(part.columns.items()))
        for part in parts
    }
    if len(layouts) > 1:
        told = " and ".join(
            ", ".join(f"{name} {dtype}{list(shape)}" for name, dtype, shape in layout)
            for layout in sorted(layouts)
        )
        raise SpecMismatchError(
            f"the shards' transitions have different columns: {told}; "
            "one of them was filled by another program: empty it"
        )
    if len(parts) == 1:
        return parts[0]
    return Transitions(
        keys=np.concatenate([part.keys for part in parts]),
        masses=np.concatenate([part.masses for part in parts]),
        columns={name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
    )
