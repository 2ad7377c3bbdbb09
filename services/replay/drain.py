"""How a shard leaves: no more appends, then what is stored goes to the samplers, then the streams end.

Called once by `__main__` after SIGTERM, on the event loop. A queue lives in memory, so what nobody samples
before the time is up is lost; that is logged as a number. Without a sampler it waits as well: the learner may
be restarting.
"""

from __future__ import annotations

import asyncio
import logging

from services.replay.servicer import ReplayServicer
from services.replay.shard import Shard

log = logging.getLogger(__name__)

_POLL_S = 0.02


async def hand_over(shard: Shard, servicer: ReplayServicer, timeout_s: float) -> int:
    """Returns the number of items that nobody took. Those taken last may still be on their way out."""
    shard.stop_inserts()
    servicer.end_appends()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while shard.num_items and loop.time() < deadline:  # noqa: ASYNC110 - once in a life, not per item
        await asyncio.sleep(_POLL_S)
    shard.stop_samples()
    servicer.end_samples()
    if shard.num_items:
        log.warning("%d items were not sampled before the end and are lost", shard.num_items)
    return shard.num_items
