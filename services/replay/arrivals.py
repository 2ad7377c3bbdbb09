"""What has come into a table: environment steps and finished episodes, for whoever samples it.

A table that is sampled again and again hands out what it likes: how far a run has come is seen here, not in
samples. Event loop only; counts of this process, so that what is read from files counts for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from shoal.clients.replay_shard import MAX_EPISODES, Sampled
from shoal.records import Episode, Trajectory


@dataclass(frozen=True, slots=True)
class Mark:
    """What had come at some moment."""

    num_steps: int
    num_episodes: int


class Arrivals:
    """Of one table."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._num_episodes = 0
        self._newest: deque[Episode] = deque(maxlen=MAX_EPISODES)

    def add(self, trajectories: Iterable[Trajectory]) -> None:
        for trajectory in trajectories:
            self._num_steps += trajectory.num_transitions
            self._num_episodes += len(trajectory.episodes)
            self._newest.extend(trajectory.episodes)

    def mark(self) -> Mark:
        return Mark(self._num_steps, self._num_episodes)

    def since(self, mark: Mark) -> tuple[int, tuple[Episode, ...]]:
        """Steps, and the episodes in order: the newest, if they are more than are kept."""
        num_new = min(self._num_episodes - mark.num_episodes, len(self._newest))
        episodes = islice(self._newest, len(self._newest) - num_new, None) if num_new else ()
        return self._num_steps - mark.num_steps, tuple(episodes)


class Tables(Protocol):
    """The shard, as a session sees it."""

    def arrivals(self, table: str) -> Arrivals: ...

    async def sample(
        self, table: str, num_items: int, timeout_s: float = 0.0, waited_s: float = 0.0
    ) -> Sampled: ...


class SampleSession:
    """The samples of one stream. What has come is told with each, since the last one or the first request."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._told: dict[str, Mark] = {}

    async def sample(
        self, table: str, num_items: int, timeout_s: float = 0.0, waited_s: float = 0.0
    ) -> Sampled:
        """As `Shard.sample`."""
        arrivals = self._tables.arrivals(table)
        before = self._told.setdefault(table, arrivals.mark())
        sampled = await self._tables.sample(table, num_items, timeout_s, waited_s)
        now = arrivals.mark()
        if now == before:
            return sampled
        self._told[table] = now
        num_steps, episodes = arrivals.since(before)
        return replace(sampled, steps_inserted=num_steps, episodes=episodes)
