"""Prefetching: what the replay hands out becomes batches before training asks for them.

Coroutines on the event loop await items; threads of a pool decompress them (LZ4 releases the GIL) and pack
them into the ring. A pool thread that finds no free slot waits there, and so nothing more is sampled: that is
the back-pressure. Built and run by `session`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from services.learner.batches import BatchLayout, BatchSlot
from services.learner.metrics import PolicyMetrics
from services.learner.ring import BatchRing, Packer, RingClosed
from shoal.clients.replay_draw import ItemRefs, SampledBatch
from shoal.errors import InvalidArgumentError
from shoal.records import Episode, Item, Trajectory, Transitions

log = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0


class ItemSource(Protocol):
    """Where data come from: a sampler over all shards."""

    async def next(self) -> Sequence[Item] | SampledBatch:
        """What is decoded in one go: trajectories of any size, or all of a batch or several."""
        ...


class Prefetcher:
    """Keeps the ring full. `decode` checks whatever the payloads of an item claim."""

    def __init__(
        self,
        source: ItemSource,
        layout: BatchLayout,
        ring: BatchRing,
        decode: Callable[[Sequence[bytes]], Trajectory],
        decode_threads: int,
        metrics: PolicyMetrics,
    ) -> None:
        self._source = source
        self._layout = layout
        self._ring = ring
        self._decode = decode
        self._num_threads = decode_threads
        self._metrics = metrics
        self._packer = Packer(ring, metrics.phases)
        self._tally = _Tally()
        self._last_logged = -_LOG_EVERY_S

    async def run(self) -> None:
        """Until cancelled or the ring is closed."""
        with ThreadPoolExecutor(self._num_threads, thread_name_prefix="decode") as pool:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self._num_threads):
                        group.create_task(self._fetch(pool))
            finally:
                # Leaving the pool joins its threads: none may be left waiting for a slot.
                self._ring.close()

    async def _fetch(self, pool: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                sampled = await self._source.next()
                await loop.run_in_executor(pool, self._decode_and_pack, sampled)
        except RingClosed:
            return

    def _decode_and_pack(self, sampled: Sequence[Item] | SampledBatch) -> None:
        if not isinstance(sampled, SampledBatch):
            for item in sampled:
                trajectory = self._usable(item)
                if trajectory is not None:
                    self._packer.add(trajectory)
            return
        for batch in sampled.parts(self._layout.batch_envs):
            if batch.transitions is None:
                self._pack_sequences(batch)
            else:
                self._pack_transitions(batch, batch.transitions)

    def _pack_sequences(self, sampled: SampledBatch) -> None:
        """Those that are usable make a batch, and the rest of it counts nothing."""
        trajectories = [self._usable(item, num_envs=1) for item in sampled.items]
        usable = [trajectory for trajectory in trajectories if trajectory is not None]
        if not usable:
            self._tally.keep(sampled)
            return
        kept = np.flatnonzero([trajectory is not None for trajectory in trajectories])
        slot = self._ring.take_free()
        with self._metrics.phases.measure("copy"):
            slot.fill_sequences(usable, sampled.weights[kept])
        self._hand_on(slot, sampled, sampled.refs.take(kept))

    def _pack_transitions(self, sampled: SampledBatch, transitions: Transitions) -> None:
        with self._metrics.phases.measure("decode"):
            problem = self._layout.why_unusable_transitions(transitions.columns)
        if problem is not None:
            self._drop(f"{len(transitions)} transitions", problem, len(transitions))
            self._tally.keep(sampled)
            return
        slot = self._ring.take_free()
        with self._metrics.phases.measure("copy"):
            slot.fill_transitions(transitions.columns, sampled.weights)
        self._hand_on(slot, sampled, sampled.refs)

    def _hand_on(self, slot: BatchSlot, sampled: SampledBatch, refs: ItemRefs) -> None:
        slot.refs = refs
        self._tally.keep(sampled)
        slot.env_steps, slot.episodes = self._tally.take()
        self._ring.put_ready(slot)

    def _usable(self, item: Item, num_envs: int | None = None) -> Trajectory | None:
        """The item decoded and checked; None, and counted, if it cannot be trained on."""
        start = time.perf_counter()
        try:
            trajectory = self._decode(item.payloads)
        except InvalidArgumentError as error:
            self._drop(_name_of(item), str(error))
            return None
        problem = self._layout.why_unusable(trajectory)
        if num_envs is not None and trajectory.num_envs != num_envs:
            problem = f"{trajectory.num_envs} environments instead of {num_envs}"
        self._metrics.phases.add("decode", time.perf_counter() - start)
        if problem is not None:
            self._drop(_name_of(item), problem)
            return None
        return trajectory

    def _drop(self, what: str, problem: str, number: int = 1) -> None:
        self._metrics.trajectories_dropped.inc(number)
        now = time.monotonic()
        if now - self._last_logged >= _LOG_EVERY_S:
            self._last_logged = now
            log.error("%sdropped %s: %s", self._metrics.log_label, what, problem)


class _Tally:
    """Steps and episodes that sampled batches told of and no batch for training has yet.

    They say what actors did, not what is in the batch: one that cannot be trained on leaves them to the next.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps = 0
        self._episodes: list[Episode] = []

    def keep(self, sampled: SampledBatch) -> None:
        with self._lock:
            self._steps += sampled.steps_inserted
            self._episodes.extend(sampled.episodes)

    def take(self) -> tuple[int, list[Episode]]:
        with self._lock:
            taken = (self._steps, self._episodes)
            self._steps, self._episodes = 0, []
            return taken


def _name_of(item: Item) -> str:
    return f"trajectory {item.sequence} of {item.life.actor_id}"
