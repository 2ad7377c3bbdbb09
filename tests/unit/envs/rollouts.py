"""Stepping environments in tests: with random actions, and with the meaning of a step checked on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np

from shoal.config.tree import EnvSection
from shoal.envs.batch import BatchEnv, EnvStep
from shoal.envs.make import make_batch_env
from shoal.envs.restarts import Restarts
from shoal.records import DEFAULT_POLICY, ActionSpec, BoxAction, DiscreteAction, EnvSpec


@contextmanager
def batch_env(
    section: EnvSection | str, num_envs: int, restarts: Restarts | None = None, **fields: Any
) -> Iterator[BatchEnv]:
    """The environments of a section, or of an id and other fields."""
    if isinstance(section, str):
        section = EnvSection(id=section, **fields)
    env = make_batch_env(section, num_envs, restarts)
    try:
        yield env
    finally:
        env.close()


def spec_of(env: BatchEnv) -> EnvSpec:
    return env.slots[DEFAULT_POLICY].spec


def reset(env: BatchEnv, seed: int = 7) -> EnvStep:
    return copied(env.reset(seed)[DEFAULT_POLICY])


def step(env: BatchEnv, action: Sequence[Any] | np.ndarray) -> EnvStep:
    return copied(env.step({DEFAULT_POLICY: np.asarray(action)})[DEFAULT_POLICY])


def copied(step: EnvStep) -> EnvStep:
    columns = {name: array.copy() for name, array in step.observation.items()}
    arrays = (step.reward, step.terminated, step.truncated, step.first, step.done)
    return EnvStep(columns, *(array.copy() for array in arrays))


def random_actions(action: ActionSpec, num: int, chance: np.random.Generator) -> np.ndarray:
    if isinstance(action, BoxAction):
        return chance.uniform(-1, 1, (num, *action.shape)).astype(np.float32)
    if isinstance(action, DiscreteAction):
        return chance.integers(0, action.n, num)
    return chance.integers(0, action.nvec, (num, len(action.nvec)))


def rollout(env: BatchEnv, num_steps: int, seed: int = 7) -> list[EnvStep]:
    slots = env.slots[DEFAULT_POLICY]
    chance = np.random.default_rng(seed)
    steps = [reset(env, seed)]
    for _ in range(num_steps):
        steps.append(step(env, random_actions(slots.spec.action, slots.num, chance)))
    check_meaning(steps)
    return steps


def check_meaning(steps: list[EnvStep]) -> None:
    """What holds of environments that do not break."""
    assert steps[0].first.all()
    for before, after in pairwise(steps):
        np.testing.assert_array_equal(after.first, before.done)
        np.testing.assert_array_equal(after.done, after.terminated | after.truncated)
        assert not (after.first & after.done).any()
        assert (after.reward[after.first] == 0).all()
        assert after.reward.dtype == np.float32
        assert after.first.dtype == after.terminated.dtype == after.truncated.dtype == np.bool_


def check_cartpole(env: BatchEnv, tolerance: float) -> None:
    """Five CartPoles of at most 12 steps: each step but the autoreset obeys the dynamics of Gymnasium's own,
    also the one that truncates."""
    steps, actions = [reset(env, 3)], []
    for t in range(60):
        actions.append(np.full(5, 1) if t % 40 < 20 else np.arange(5) * t % 2)
        steps.append(step(env, actions[-1]))
    check_meaning(steps)
    assert any(s.truncated.any() for s in steps)
    assert any(s.terminated.any() for s in steps)
    reference: Any = gym.make("CartPole-v1").unwrapped
    reference.reset(seed=0)
    for before, action, after in zip(steps, actions, steps[1:], strict=False):
        for i in range(5):
            shown = after.observation["observation"][i]
            if after.first[i]:
                assert (np.abs(shown) <= 0.05).all()
                continue
            reference.state = tuple(before.observation["observation"][i].astype(np.float64))
            reference.steps_beyond_terminated = None
            expected, reward, terminated, _, _ = reference.step(int(action[i]))
            np.testing.assert_allclose(shown, expected, atol=tolerance)
            assert after.terminated[i] == terminated
            assert after.reward[i] == reward
