"""Divides the unrolls of a group among the learners of a synchronous run, each of which has its own table.

Environments belong to a learner for good: the first ones of every actor to rank 0, the next to rank 1. So
every learner gets its share of every round, whoever is slow or restarts. Used by `services.actor.loop`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from services.actor.group import Sink


def slots_by_rank(shares: Sequence[range], envs: range, num_slots: int) -> dict[int, slice]:
    """The slots of a group that each learner gets, in order; learners that get none are left out.

    `shares`: the actor's environments by rank; `envs`: those of the group, which has `num_slots` for them.
    """
    per_env = num_slots // len(envs)
    found = {}
    for rank, share in enumerate(shares):
        start, stop = max(share.start, envs.start), min(share.stop, envs.stop)
        if start < stop:
            found[rank] = slice((start - envs.start) * per_env, (stop - envs.start) * per_env)
    return found


class DividedSink:
    """A sink that gives each of the parts of an unroll to the sink of its learner."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks

    async def append(
        self,
        payloads: Sequence[bytes],
        priorities: np.ndarray | None,
        *,
        stream: int | None,
        timeout_s: float | None,
    ) -> None:
        """Returns once all are taken. What waits for one learner does not hold up the others."""
        appends = [
            sink.append((payload,), priorities, stream=stream, timeout_s=timeout_s)
            for sink, payload in zip(self._sinks, payloads, strict=True)
        ]
        await asyncio.gather(*appends)
