"""How a shard leaves: no more appends; what only lives in memory goes to the samplers, the rest to its files.

Called once by `__main__` after SIGTERM, on the event loop. What a queue without files holds is handed over
until the time is up; without a sampler it waits as well: the learner may be restarting. Tables with files end
at once and write what their files lack. What is lost is logged as a number.
"""

from __future__ import annotations

import asyncio
import logging

from services.replay.servicer import ReplayServicer
from services.replay.shard import Shard

log = logging.getLogger(__name__)

_POLL_S = 0.02


async def leave(shard: Shard, servicer: ReplayServicer, timeout_s: float) -> int:
    """Returns the number of items that were only in memory. Those taken last may still be on their way."""
    shard.stop_inserts()
    servicer.end_appends()
    # What is handed out from here on would be missing in the last state on disk.
    shard.stop_samples(on_disk_only=True)
    writing = asyncio.ensure_future(shard.close(timeout_s))
    await _hand_over(shard, timeout_s)
    shard.stop_samples()
    servicer.end_samples()
    await writing
    lost = sum(stored.table.num_items for stored in shard.tables.values() if not stored.on_disk)
    if lost:
        log.warning("%d items were only in memory at the end and are lost", lost)
    return lost


async def _hand_over(shard: Shard, timeout_s: float) -> None:
    """Wait until the queues without files are empty."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    queues = [stored.table for stored in shard.tables.values() if stored.is_handed_over]
    while any(queue.num_items for queue in queues) and loop.time() < deadline:  # noqa: ASYNC110 - once in a life
        await asyncio.sleep(_POLL_S)
