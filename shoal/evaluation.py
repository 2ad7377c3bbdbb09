"""Plays a fixed number of episodes and keeps their scores: what `shoal eval` measures.

Every environment has a quota, and of each the first episodes up to its quota count. The first that happen to
end, wherever that is, would be the short ones. No torch; one thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shoal.envs.batch import BatchEnv, EnvStep
from shoal.envs.episodes import EpisodeTracker
from shoal.records import Episode

_FIGURES = (
    "mean_return",
    "standard_error",
    "median_return",
    "min_return",
    "max_return",
    "mean_length",
)


class Player(Protocol):
    """Whoever chooses the actions of one policy's slots."""

    def act(self, shown: EnvStep) -> np.ndarray: ...


@dataclass(frozen=True)
class Scores:
    """Of the episodes of one policy, slot after slot. There are none of agents that never came."""

    episodes: tuple[Episode, ...]

    def summary(self) -> dict[str, float | int | None]:
        """What the episodes come to, by name; None: nobody knows."""
        num = len(self.episodes)
        if not num:
            return {"episodes": 0} | dict.fromkeys(_FIGURES)
        returns = np.array([episode.episode_return for episode in self.episodes])
        lengths = [episode.num_steps for episode in self.episodes]
        error = float(returns.std(ddof=1)) / math.sqrt(num) if num > 1 else None
        values = (returns.mean(), error, np.median(returns), returns.min(), returns.max(), np.mean(lengths))
        named = zip(_FIGURES, values, strict=True)
        return {"episodes": num} | {name: None if value is None else float(value) for name, value in named}


class ScoreBook:
    """Counts the episodes of one policy, slot by slot, up to the quota of each."""

    def __init__(self, quotas: np.ndarray) -> None:
        num = len(quotas)
        self._tracker = EpisodeTracker(num)
        self._has_played = np.zeros(num, np.bool_)
        self._episodes: list[list[Episode]] = [[] for _ in range(num)]
        self._missing = quotas.copy()

    def add(self, shown: EnvStep) -> None:
        """Of every step after the reset."""
        ended = self._tracker.add(shown)
        self._has_played |= ~shown.first
        for slot, episode in zip(np.flatnonzero(shown.done), ended, strict=True):
            if self._missing[slot] > 0:
                self._missing[slot] -= 1
                self._episodes[slot].append(episode)

    @property
    def has_played(self) -> bool:
        return bool(self._has_played.any())

    @property
    def is_full(self) -> bool:
        """All that ever played have their episodes; agents that never come are not waited for."""
        return not self._missing[self._has_played].any()

    @property
    def num_missing(self) -> int:
        return int(self._missing.sum())

    def scores(self) -> Scores:
        return Scores(tuple(episode for episodes in self._episodes for episode in episodes))


def quotas(num_episodes: int, num_envs: int, num_slots: int) -> np.ndarray:
    """Episodes of each slot: those of its environment, in which it is one of `num_slots / num_envs`."""
    of_envs = np.full(num_envs, num_episodes // num_envs, np.int64)
    of_envs[: num_episodes % num_envs] += 1
    return np.repeat(of_envs, num_slots // num_envs)


def play_episodes(
    env: BatchEnv,
    players: Mapping[str, Player],
    num_episodes: int,
    num_envs: int,
    seed: int,
    on_step: Callable[[int], None] = lambda num_missing: None,
) -> dict[str, Scores]:
    """Scores by policy, of `num_episodes` episodes spread over the `num_envs` environments of `env`.

    `on_step` is told how many are missing. Raises UserError when environments break too often.
    """
    books = {name: ScoreBook(quotas(num_episodes, num_envs, slots.num)) for name, slots in env.slots.items()}
    shown = env.reset(seed)
    while not (any(b.has_played for b in books.values()) and all(b.is_full for b in books.values())):
        shown = env.step({name: player.act(shown[name]) for name, player in players.items()})
        for name, book in books.items():
            book.add(shown[name])
        on_step(sum(book.num_missing for book in books.values()))
    return {name: book.scores() for name, book in books.items()}
