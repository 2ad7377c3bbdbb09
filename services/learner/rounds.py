"""What learners agree on before each step: whether all have a batch, whether one has to stop, what counts.

A learner that waits for data still takes part, about twice a second: one that does not is dead. Everything
that a decision depends on is the same on all afterwards, and so they decide alike without a further word.
Training thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields

import numpy as np

from services.learner.peers import Peers
from shoal.records import Episode


@dataclass(frozen=True)
class Told:
    """What each learner tells all; of whole numbers only."""

    is_stopping: bool
    has_batch: bool
    env_steps: int = 0
    num_transitions: int = 0
    policy_version: int = -1
    num_episodes: int = 0


@dataclass(frozen=True)
class Round:
    """What all have told."""

    # One has to stop: all do.
    is_stopping: bool
    # All have a batch.
    is_complete: bool
    # Of the batches of all: what has come, and what there is to train on.
    env_steps: int
    num_transitions: int
    episodes: tuple[Episode, ...]
    # The newest that the chief has published.
    policy_version: int


def hold_round(peers: Peers, told: Told, episodes: Sequence[Episode] = ()) -> Round:
    """Tell all others and hear them; returns when all have. `episodes` are those of a batch."""
    if len(episodes) != told.num_episodes:
        raise ValueError(f"{told.num_episodes} episodes were told and {len(episodes)} given")
    heard = [told] if peers.size == 1 else _heard(peers, told)
    is_complete = all(other.has_batch for other in heard)
    return Round(
        is_stopping=any(other.is_stopping for other in heard),
        is_complete=is_complete,
        env_steps=sum(other.env_steps for other in heard),
        num_transitions=sum(other.num_transitions for other in heard),
        episodes=_gather_episodes(peers, episodes, heard) if is_complete else (),
        policy_version=heard[0].policy_version,
    )


def announce_version(peers: Peers, policy_version: int, note: Callable[[int], None]) -> int:
    """The version that the chief is about to publish: returns on each learner when all have noted it.

    What learners other than the chief give does not count.
    """
    told = np.array([policy_version], np.int64)
    version = int(peers.gather(told)[0][0])
    note(version)
    peers.gather(told)
    return version


_NAMES = tuple(field.name for field in fields(Told))


def _heard(peers: Peers, told: Told) -> list[Told]:
    """In order of rank."""
    rows = peers.gather(np.array(astuple(told), np.int64))
    return [Told(**dict(zip(_NAMES, row.tolist(), strict=True))) for row in rows]


def _gather_episodes(peers: Peers, episodes: Sequence[Episode], heard: Sequence[Told]) -> tuple[Episode, ...]:
    """Those of all, in order of rank; nothing is sent if there are none."""
    most = max(other.num_episodes for other in heard)
    if not most or peers.size == 1:
        return tuple(episodes)
    rows = np.zeros((most, 3))
    for row, episode in zip(rows, episodes, strict=False):
        row[:] = episode.episode_return, episode.num_steps, episode.first_version
    return tuple(
        Episode(float(given), int(num_steps), int(first_version))
        for told, theirs in zip(heard, peers.gather(rows), strict=True)
        for given, num_steps, first_version in theirs[: told.num_episodes]
    )
