"""Plays with random actions: what a policy that has learned nothing does.

Used by `shoal.envs.probe`, for the return that training is compared with, and by `shoal envs check`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from shoal.envs.batch import BatchEnv, EnvStep
from shoal.envs.episodes import EpisodeTracker
from shoal.records import ACTION_MASK, ActionSpec, BoxAction, DiscreteAction


def returns_of_random_play(
    env: BatchEnv, seconds: float, max_episodes: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Returns of whole episodes, by policy, until time is over or each policy has `max_episodes`."""
    chance = chance_beside(0)
    shown = env.reset(0)
    trackers = {policy: EpisodeTracker(slots.num) for policy, slots in env.slots.items()}
    returns: dict[str, list[float]] = {policy: [] for policy in env.slots}
    end = clock() + seconds
    while clock() < end and min(map(len, returns.values())) < max_episodes:
        shown = env.step(random_actions(env, shown, chance))
        for policy, step in shown.items():
            returns[policy] += [episode.episode_return for episode in trackers[policy].add(step)]
    return returns


def chance_beside(env_seed: int) -> np.random.Generator:
    """For actions in an environment with this seed, which may draw from a generator of the same kind."""
    return np.random.default_rng([env_seed, 1])


def random_actions(
    env: BatchEnv, shown: Mapping[str, EnvStep], chance: np.random.Generator
) -> dict[str, np.ndarray]:
    """For every slot of every policy; those that a mask forbids are never drawn."""
    return {
        policy: _draw(slots.spec.action, slots.num, shown[policy].observation.get(ACTION_MASK), chance)
        for policy, slots in env.slots.items()
    }


def _draw(action: ActionSpec, num: int, mask: np.ndarray | None, chance: np.random.Generator) -> np.ndarray:
    if isinstance(action, BoxAction):
        low = np.maximum(np.array(action.low), -1e3).reshape(action.shape)
        high = np.minimum(np.array(action.high), 1e3).reshape(action.shape)
        return chance.uniform(low, high, (num, *action.shape)).astype(np.float32)
    nvec = (action.n,) if isinstance(action, DiscreteAction) else action.nvec
    ends = np.cumsum(nvec)
    luck = chance.random((num, ends[-1]))
    if mask is not None:
        luck[mask == 0] = -1.0
    choices = [luck[:, end - n : end].argmax(axis=1) for n, end in zip(nvec, ends, strict=True)]
    return choices[0] if isinstance(action, DiscreteAction) else np.stack(choices, axis=1)
