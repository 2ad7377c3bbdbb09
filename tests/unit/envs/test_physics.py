"""MuJoCo and Box2D by their Gymnasium ids."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from shoal.records import ArraySpec, BoxAction
from tests.unit.envs.rollouts import batch_env, rollout, spec_of


def test_half_cheetah_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the working directory
    with batch_env("HalfCheetah-v5", 2, kwargs={"max_episode_steps": 6}) as env:
        assert spec_of(env).observation == (ArraySpec("observation", "float32", (17,)),)
        assert spec_of(env).action == BoxAction((6,), (-1.0,) * 6, (1.0,) * 6)
        steps = rollout(env, 16, seed=5)
    assert steps[6].truncated.all()
    assert steps[7].first.all()
    references = [gym.make("HalfCheetah-v5", max_episode_steps=6) for _ in range(2)]
    chance = np.random.default_rng(5)
    for i, reference in enumerate(references):
        observation, _ = reference.reset(seed=5 + i)
        np.testing.assert_array_equal(steps[0].observation["observation"][i], observation.astype(np.float32))
    for t in range(1, 17):
        actions = chance.uniform(-1, 1, (2, 6)).astype(np.float32)
        for i, reference in enumerate(references):
            if steps[t].first[i]:
                observation, reward = reference.reset()[0], 0.0
            else:
                observation, reward, _, truncated, _ = reference.step(actions[i])  # type: ignore[assignment]
                assert truncated == steps[t].truncated[i]
            np.testing.assert_array_equal(
                steps[t].observation["observation"][i], observation.astype(np.float32)
            )
            assert steps[t].reward[i] == np.float32(reward)


# Its module was made by SWIG, which does not survive that its deprecated types raise while it is loaded.
@pytest.mark.filterwarnings("ignore:builtin type:DeprecationWarning")
def test_the_lander_of_box2d() -> None:
    with batch_env("LunarLander-v3", 2) as env:
        steps = rollout(env, 120)
    assert any(s.terminated.any() for s in steps)
