"""Random actions of every kind, and the returns that they bring."""

from __future__ import annotations

from itertools import count
from typing import cast

import numpy as np
import pytest

from shoal.config.tree import EnvSection
from shoal.envs.batch import BatchEnv, EnvStep, Slots
from shoal.envs.make import make_batch_env
from shoal.envs.random_play import random_actions, returns_of_random_play
from shoal.records import BoxAction, EnvSpec, MultiDiscreteAction


def test_random_actions_of_all_kinds() -> None:
    chance = np.random.default_rng(1)
    mask = np.array([[0, 1, 1, 0, 1]] * 200, np.int8)
    several = EnvSpec("x", (), MultiDiscreteAction((2, 3)))
    box = EnvSpec("x", (), BoxAction((2,), (-np.inf, 0.0), (np.inf, 0.5)))
    nothing = np.zeros(200, np.bool_)

    class Both:
        def __init__(self) -> None:
            self.slots = {"a": Slots(several, 200), "b": Slots(box, 200)}

    shown = {
        "a": EnvStep({"action_mask": mask}, nothing, nothing, nothing, nothing, nothing),
        "b": EnvStep({}, nothing, nothing, nothing, nothing, nothing),
    }
    actions = random_actions(cast(BatchEnv, Both()), shown, chance)
    assert {tuple(row) for row in actions["a"].tolist()} == {(1, 0), (1, 2)}
    assert actions["b"].dtype == np.float32
    assert ((actions["b"][:, 1] >= 0) & (actions["b"][:, 1] <= 0.5)).all()
    assert np.isfinite(actions["b"]).all()


@pytest.mark.parametrize(("max_episodes", "seconds"), [(20, 1e9), (10**9, 500.0)])
def test_whole_episodes_are_played_until_there_are_enough_or_time_is_over(
    max_episodes: int, seconds: float
) -> None:
    """CartPole-v1: a step is a point, and chance keeps the pole up for some twenty."""
    ticks = count()
    env = make_batch_env(EnvSection(id="CartPole-v1"), 1)
    (returns,) = returns_of_random_play(env, seconds, max_episodes, lambda: float(next(ticks))).values()
    env.close()
    num_steps = next(ticks) - 2
    assert num_steps - 100 < sum(returns) <= num_steps
    assert len(returns) == max_episodes or num_steps == seconds - 1
    assert 12 < np.mean(returns) < 35


def test_actions_know_nothing_of_what_the_environment_draws() -> None:
    """With one seed for both, this one's random actions were nearly right: 8 of 10 instead of -2."""
    env = make_batch_env(EnvSection(id="tests/e2e/small_tasks.py:OffsetBoxTask"), 1)
    (returns,) = returns_of_random_play(env, 60.0, 200).values()
    env.close()
    assert abs(np.mean(returns) + 2.0) < 1.0


def test_an_episode_without_an_end_is_none() -> None:
    ticks = count()
    env = make_batch_env(EnvSection(id="tests.unit.cli.probed:Plain"), 1)
    assert list(returns_of_random_play(env, 100.0, 10, lambda: float(next(ticks))).values()) == [[]]
    env.close()
