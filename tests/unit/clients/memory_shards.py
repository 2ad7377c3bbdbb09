"""A prioritised shard in a few obvious lines, for tests of `BatchSampler`: masses by key, and faults.

Each request is served in its turn. A request for items that finds none waits for its timeout, as a real
shard does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from shoal.clients.replay_shard import AppendStream, PrioritiesUpdated, Sampled, SampleStream, TableStats
from shoal.errors import ShoalError, UnavailableError
from shoal.records import ArraySpec, Episode, Item, Life, Transitions
from shoal.rpc.addresses import Address

POLL_S = 0.02
ITEM_BYTES = 100


class MemoryShard:
    """Items with masses, sampled in proportion to them."""

    def __init__(
        self, name: str, masses: Mapping[int, float], *, transitions: bool = False, seed: int = 0
    ) -> None:
        self.address = Address(name)
        self.masses = dict(masses)
        self.transitions = transitions
        self._rng = np.random.default_rng(seed)
        self._streams: list[_Stream] = []
        # Refuses connections; works and does not answer; keeps samples waiting; gives this many at a time.
        self.down = False
        self.silent = False
        self.held = False
        self.max_per_answer: int | None = None
        # Items are gone once they were sampled.
        self.once = False
        # What it says of its mass, if that is not true.
        self.claimed_mass: float | None = None
        # What has come in and was not told yet.
        self.steps_inserted = 0
        self.episodes: tuple[Episode, ...] = ()
        # What calls raise.
        self.refusal: ShoalError | None = None
        self.update_error: ShoalError | None = None
        self.num_dials = 0
        self.requests: list[int] = []
        self.updates: list[dict[int, float]] = []
        self.num_closed = 0

    @property
    def mass(self) -> float:
        return sum(self.masses.values())

    def connect(self) -> _Client:
        return _Client(self)

    def kill(self) -> None:
        """Every connection breaks and none is accepted."""
        self.down = True
        self.break_streams()

    def break_streams(self) -> None:
        for stream in self._streams:
            stream.break_off()
        self._streams.clear()

    def opened(self, stream: _Stream) -> None:
        self._streams.append(stream)

    def sample(self, num_items: int) -> Sampled:
        most = num_items if self.max_per_answer is None else min(num_items, self.max_per_answer)
        most = 0 if self.held or not self.masses else most
        most = min(most, len(self.masses)) if self.once else most
        keys = np.array(list(self.masses), np.uint64)
        masses = np.array(list(self.masses.values()))
        chosen = np.zeros(0, np.int64)
        if most:
            chosen = self._rng.choice(len(keys), most, replace=not self.once, p=masses / masses.sum())
        items: tuple[Item, ...] = ()
        rows: Transitions | None = None
        if self.transitions:
            rows = Transitions(keys[chosen], masses[chosen], {"number": keys[chosen].astype(np.int64)})
        else:
            life = Life(self.address.target, "run")
            items = tuple(Item(int(keys[at]), life, 0, (b"",), float(masses[at])) for at in chosen)
        # As it was before.
        mass = self.mass if self.claimed_mass is None else self.claimed_mass
        for key in keys[chosen].tolist() if self.once else ():
            del self.masses[key]
        steps, self.steps_inserted = self.steps_inserted, 0
        episodes, self.episodes = self.episodes, ()
        return Sampled(items, rows, len(keys), ITEM_BYTES * len(keys), mass, steps, episodes)


class _Client:
    def __init__(self, shard: MemoryShard) -> None:
        self._shard = shard

    async def open_sample(self, table: str) -> SampleStream:
        self._shard.num_dials += 1
        if self._shard.down:
            raise UnavailableError("connection refused")
        stream = _Stream(self._shard)
        self._shard.opened(stream)
        return stream

    async def update_priorities(
        self, table: str, keys: np.ndarray, priorities: np.ndarray
    ) -> PrioritiesUpdated:
        shard = self._shard
        while shard.silent:
            await asyncio.sleep(POLL_S)
        if shard.down:
            raise UnavailableError("connection refused")
        if shard.update_error is not None:
            raise shard.update_error
        told = dict(zip(keys.tolist(), priorities.tolist(), strict=True))
        assert len(told) == len(keys), "each key once"
        shard.updates.append(told)
        known = {key: priority for key, priority in told.items() if key in shard.masses}
        shard.masses |= known
        return PrioritiesUpdated(len(known), len(told) - len(known))

    async def open_append(self, life: Life, table: str, declared: Sequence[ArraySpec] = ()) -> AppendStream:
        raise NotImplementedError

    async def stats(self) -> tuple[TableStats, ...]:
        raise NotImplementedError

    async def close(self) -> None:
        self._shard.num_closed += 1


class _Stream:
    def __init__(self, shard: MemoryShard) -> None:
        self._shard = shard
        self._requests: deque[tuple[int, float]] = deque()
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._broken = False

    def break_off(self) -> None:
        self._broken = True
        self._arrived.set()

    async def request(self, num_items: int, timeout_s: float = 0.0) -> None:
        self._raise_if_broken()
        self._shard.requests.append(num_items)
        self._requests.append((num_items, self._loop.time() + timeout_s))
        self._arrived.set()

    async def receive(self) -> Sampled:
        while True:
            self._raise_if_broken()
            if not self._requests:
                self._arrived.clear()
                await self._arrived.wait()
            elif not self._shard.silent:
                num_items, until = self._requests[0]
                sampled = self._shard.sample(num_items)
                if sampled.num_sampled or not num_items or self._loop.time() >= until:
                    self._requests.popleft()
                    return sampled
                await asyncio.sleep(POLL_S)
            else:
                await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        self.break_off()

    def _raise_if_broken(self) -> None:
        if self._shard.refusal is not None:
            raise self._shard.refusal
        if self._broken:
            raise UnavailableError("connection reset")
