"""EnvPool's tasks mean by a step what shoal means; they are seeded like all others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.records import ArraySpec, BoxAction, DiscreteAction
from tests.unit.envs.rollouts import batch_env, check_cartpole, reset, rollout, spec_of


def test_cartpole_is_cartpole_step_by_step() -> None:
    """Also on the step that ends an episode; with more threads than one the rows keep their order."""
    kwargs = {"max_episode_steps": 12, "num_threads": 2}
    with batch_env("envpool:CartPole-v1", 5, kwargs=kwargs) as env:
        assert spec_of(env).observation == (ArraySpec("observation", "float32", (4,)),)
        assert spec_of(env).action == DiscreteAction(2)
        check_cartpole(env, 1e-4)


def test_pong_ends_and_begins() -> None:
    with batch_env("envpool:Pong-v5", 2, kwargs={"max_episode_steps": 5}) as env:
        steps = rollout(env, 13)
    assert [bool(s.truncated.all()) for s in steps] == [t in (5, 11) for t in range(14)]
    assert [bool(s.first.all()) for s in steps] == [t in (0, 6, 12) for t in range(14)]


@pytest.mark.parametrize(
    ("kwargs", "shape"),
    [({}, (84, 84)), ({"stack_num": 4}, (4, 84, 84)), ({"gray_scale": False}, (3, 84, 84))],
)
def test_frames_of_pong(kwargs: dict[str, Any], shape: tuple[int, ...]) -> None:
    with batch_env("envpool:Pong-v5", 1, kwargs=kwargs) as env:
        assert spec_of(env).observation == (ArraySpec("observation", "uint8", shape, 0, 0.0, 255.0),)
        assert reset(env).observation["observation"].shape == (1, *shape)


def test_half_cheetah_takes_the_actions_of_the_policy() -> None:
    with batch_env("envpool:HalfCheetah-v4", 2, kwargs={"max_episode_steps": 4}) as env:
        assert spec_of(env).observation == (ArraySpec("observation", "float32", (17,)),)
        assert isinstance(spec_of(env).action, BoxAction)
        steps = rollout(env, 10)
    assert steps[4].truncated.all()
    assert steps[5].first.all()


def test_the_seed_of_the_reset_counts() -> None:
    """EnvPool itself takes a seed only when a pool is made."""
    with batch_env("envpool:CartPole-v1", 3) as env:
        starts = [reset(env, seed).observation["observation"] for seed in (1, 2, 1)]
    assert (starts[0] != starts[1]).any()
    np.testing.assert_array_equal(starts[0], starts[2])
    assert (starts[0][0] != starts[0][1]).any(), "environments of a batch differ"


def test_a_large_seed_is_brought_into_range() -> None:
    with batch_env("envpool:CartPole-v1", 1) as env:
        reset(env, (1 << 32) - 1)
