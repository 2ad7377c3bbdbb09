"""Prefetching: replay items become batches before training asks for them.

Coroutines on the event loop await items; threads of a pool decompress them (LZ4 releases the GIL) and pack
them into the ring. A pool thread that finds no free slot waits there, and so nothing more is sampled: that is
the back-pressure. Built and run by `session`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from services.learner.batches import BatchLayout
from services.learner.metrics import PolicyMetrics
from services.learner.ring import BatchRing, Packer, RingClosed
from shoal.errors import InvalidArgumentError
from shoal.records import Item, Trajectory

log = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0


class ItemSource(Protocol):
    """Where items come from: a sampler over all shards."""

    async def next(self) -> Sequence[Item]:
        """The items that are decoded in one go."""
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
                items = await self._source.next()
                await loop.run_in_executor(pool, self._decode_and_pack, items)
        except RingClosed:
            return

    def _decode_and_pack(self, items: Sequence[Item]) -> None:
        for item in items:
            trajectory = self._usable(item)
            if trajectory is not None:
                self._packer.add(trajectory)

    def _usable(self, item: Item) -> Trajectory | None:
        """The item decoded and checked; None, and counted, if it cannot be trained on."""
        start = time.perf_counter()
        try:
            trajectory = self._decode(item.payloads)
        except InvalidArgumentError as error:
            self._drop(item, str(error))
            return None
        problem = self._layout.why_unusable(trajectory)
        self._metrics.phases.add("decode", time.perf_counter() - start)
        if problem is not None:
            self._drop(item, problem)
            return None
        return trajectory

    def _drop(self, item: Item, problem: str) -> None:
        self._metrics.trajectories_dropped.inc()
        now = time.monotonic()
        if now - self._last_logged >= _LOG_EVERY_S:
            self._last_logged = now
            log.error(
                "%sdropped trajectory %d of %s: %s",
                self._metrics.log_label,
                item.sequence,
                item.life.actor_id,
                problem,
            )
