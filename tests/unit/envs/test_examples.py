"""The examples are environments that a user's own may look like."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from shoal.envs.native import NativeEnv
from shoal.imports import load_attribute
from shoal.records import ArraySpec, BoxAction, DiscreteAction
from tests.unit.envs.rollouts import batch_env, check_meaning, reset, rollout, spec_of, step

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
GRID, POINTS = f"{EXAMPLES}/own_env.py:GridWorld", f"{EXAMPLES}/batch_env.py:Points"


def test_the_own_environment_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES.parent)
    with batch_env("examples/own_env.py:GridWorld", 3, kwargs={"size": 3, "max_steps": 6}) as env:
        assert spec_of(env).env_id == "own_env.py:GridWorld"
        assert spec_of(env).action == DiscreteAction(4)
        assert spec_of(env).observation[-1] == ArraySpec("action_mask", "int8", (4,))
        steps = rollout(env, 60)
    assert any(s.terminated.any() for s in steps)
    assert any(s.truncated.any() for s in steps)


def test_the_own_environment_is_good_gymnasium() -> None:
    factory = load_attribute(GRID, "env.id")
    check_env(factory(), skip_render_check=True)  # type: ignore[operator]


def test_masked_moves_would_run_into_a_wall() -> None:
    with batch_env(GRID, 16) as env:
        before = reset(env)
        for move in range(4):
            allowed = before.observation["action_mask"][:, move] == 1
            after = step(env, np.full(16, move))
            moved = (
                after.observation["observation.position"] != before.observation["observation.position"]
            ).any(1)
            np.testing.assert_array_equal(moved, allowed, err_msg=f"move {move}")
            assert not after.first.any()
            before = after
            if after.done.any():
                break


def test_a_reset_of_the_points_forgets_what_was() -> None:
    with batch_env(POINTS, 8, kwargs={"max_steps": 3}) as env:
        one, other = rollout(env, 3), rollout(env, 3)
    assert one[-1].done.all()
    for before, after in zip(one, other, strict=True):
        np.testing.assert_array_equal(before.observation["observation"], after.observation["observation"])


def test_thousands_of_points_in_one_batch() -> None:
    with batch_env(POINTS, 4096, kwargs={"max_steps": 40}) as env:
        assert isinstance(env, NativeEnv)
        assert isinstance(spec_of(env).action, BoxAction)
        shown = reset(env)
        steps = [shown]
        for _ in range(90):
            position, velocity = np.split(shown.observation["observation"], 2, axis=1)
            # Half of them steer to the middle, the others drift.
            action = -4 * position - 2 * velocity
            action[2048:] = 1.0
            shown = step(env, action)
            steps.append(shown)
    check_meaning(steps)
    assert sum(int(s.terminated[:2048].sum()) for s in steps) >= 2048
    assert sum(int(s.truncated[2048:].sum()) for s in steps) >= 2048
    ended = sum(int(s.done.sum()) for s in steps[:-1])
    assert sum(int(s.first.sum()) for s in steps[1:]) == ended
