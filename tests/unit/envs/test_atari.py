"""Atari looks the same in every vectorisation, and the native one is the game step by step."""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest

from shoal.config.tree import EnvSection
from shoal.envs.batch import EnvStep
from shoal.records import ArraySpec, DiscreteAction
from tests.unit.envs.rollouts import batch_env, check_meaning, reset, spec_of, step

gym.register_envs(ale_py)

# Nothing random: then all ways of playing are the same game.
PLAIN = {"noop_max": 0, "use_fire_reset": False, "repeat_action_probability": 0.0}


@pytest.mark.parametrize(
    ("env_id", "vectorization"),
    [("ALE/Pong-v5", "native"), ("ALE/Pong-v5", "sync"), ("envpool:Pong-v5", "auto")],
)
def test_all_ways_show_the_same(env_id: str, vectorization: Any) -> None:
    with batch_env(env_id, 2, vectorization=vectorization) as env:
        spec = spec_of(env)
        assert spec.observation == (ArraySpec("observation", "uint8", (84, 84), 0, 0.0, 255.0),)
        assert spec.action == DiscreteAction(6)
        assert spec.env_id == env_id
        shown = reset(env)
        assert shown.observation["observation"].max() > 100
        shown = step(env, [0, 3])
        assert shown.reward.dtype == np.float32
        assert not shown.first.any()


def play(section: EnvSection, actions: np.ndarray) -> list[EnvStep]:
    with batch_env(section, actions.shape[1]) as env:
        steps = [reset(env, 3)]
        steps += [step(env, row) for row in actions]
    check_meaning(steps)
    return steps


def check_same_game(found: list[EnvStep], expected: list[EnvStep]) -> None:
    for one, other in zip(found, expected, strict=True):
        for name in ("reward", "terminated", "truncated", "first", "done"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        # An episode that ends within a step shows other frames of that step, and nothing learns from them.
        both = (one.observation["observation"][~one.done], other.observation["observation"][~one.done])
        np.testing.assert_allclose(*(frames.astype(np.float32) for frames in both), atol=1)


@pytest.mark.parametrize("kwargs", [{}, {"episodic_life": True, "reward_clipping": True}])
def test_native_is_the_same_game_as_sync(kwargs: dict[str, Any]) -> None:
    """Breakout with a serve now and then: bricks are hit, lives are lost, time runs out."""
    actions = np.random.default_rng(1).integers(0, 4, (110, 2))
    actions[::7] = 1
    given = {**PLAIN, "max_num_frames_per_episode": 200, **kwargs}
    sections = [
        EnvSection(id="ALE/Breakout-v5", vectorization=vectorization, kwargs=given)
        for vectorization in ("native", "sync")
    ]
    native, sync = (play(section, actions) for section in sections)
    check_same_game(native, sync)
    assert any(s.truncated.any() for s in native)
    assert any(s.reward.any() for s in native)
    assert any(s.terminated.any() for s in native) == bool(kwargs.get("episodic_life"))


def test_rewards_are_true_unless_clipping_is_asked_for() -> None:
    """Skiing counts hundredths of seconds."""
    actions = np.zeros((12, 1), np.int64)
    for vectorization in ("native", "sync"):
        fields: dict[str, Any] = {"id": "ALE/Skiing-v5", "vectorization": vectorization}
        true = play(EnvSection(kwargs=PLAIN, **fields), actions)
        clipped = play(EnvSection(kwargs={**PLAIN, "reward_clipping": True}, **fields), actions)
        assert min(s.reward.min() for s in true) < -1
        assert {float(s.reward[0]) for s in clipped} == {0.0, -1.0}


def test_the_same_step_mode_of_ale_keeps_final_observations() -> None:
    actions = np.zeros((40, 2), np.int64)
    given = {**PLAIN, "max_num_frames_per_episode": 60}
    same = EnvSection(id="ALE/Pong-v5", kwargs={**given, "autoreset_mode": "SameStep"})
    found = play(same, actions)
    expected = play(EnvSection(id="ALE/Pong-v5", kwargs=given), actions)
    assert found[15].truncated.all()
    np.testing.assert_array_equal(
        found[15].observation["observation"], expected[15].observation["observation"]
    )
    # The first step of the next episode stands in for its start.
    np.testing.assert_array_equal(
        found[16].observation["observation"], expected[17].observation["observation"]
    )


@pytest.mark.parametrize("vectorization", ["native", "sync"])
def test_options_of_the_preprocessing(vectorization: Any) -> None:
    kwargs = {"img_height": 40, "img_width": 60, "grayscale": False, "full_action_space": True}
    with batch_env("ALE/Pong-v5", 1, vectorization=vectorization, kwargs=kwargs) as env:
        assert spec_of(env).observation[0].shape == (40, 60, 3)
        assert spec_of(env).action == DiscreteAction(18)
        assert reset(env).observation["observation"].shape == (1, 40, 60, 3)


def test_the_game_as_it_is() -> None:
    with batch_env("ALE/Pong-v5", 1, kwargs={"obs_type": "ram"}) as env:
        assert spec_of(env).observation[0].shape == (128,)
        reset(env)


@pytest.mark.parametrize("vectorization", ["native", "sync"])
def test_seeds_lead_to_different_starts(vectorization: Any) -> None:
    with batch_env("ALE/Pong-v5", 2, vectorization=vectorization) as env:
        one, again = ([reset(env, 5), *(step(env, [2 + t % 2] * 2) for t in range(20))] for _ in range(2))
    for shown, shown_again in zip(one, again, strict=True):
        frames = shown.observation["observation"]
        np.testing.assert_array_equal(frames, shown_again.observation["observation"])
    assert any((s.observation["observation"][0] != s.observation["observation"][1]).any() for s in one)
