"""Batches of every kind mean the same by a step; one that breaks is made anew as a whole."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from shoal.config.tree import EnvSection
from shoal.envs.batch import EnvStep
from shoal.envs.make import make_batch_env
from shoal.envs.restarts import Restarts
from shoal.errors import UserError
from tests.unit.envs import counting, faulty
from tests.unit.envs.faulty import PLANS, Plan, raises, shows
from tests.unit.envs.rollouts import batch_env, check_meaning, reset, rollout, spec_of, step

FAULTY = f"{faulty.__name__}:FaultyBatch"
SAME_STEP = f"{faulty.__name__}:SameStepBatch"


def test_arrays_of_other_libraries_are_converted() -> None:
    """The batch is no VectorEnv, only looks like one."""
    with batch_env(f"{faulty.__name__}:DeviceBatch", 3) as env:
        found = rollout(env, 30)
    with batch_env(f"{counting.__name__}:CountingVectorEnv", 3) as env:
        expected = rollout(env, 30)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.observation["observation"], other.observation["observation"])
        np.testing.assert_array_equal(one.reward, other.reward)
        np.testing.assert_array_equal(one.done, other.done)


@pytest.mark.parametrize(
    ("mode", "said"),
    [("Disabled", "Disabled"), ("Odd", "Odd"), (None, "None"), (AutoresetMode.DISABLED, "Disabled")],
)
def test_a_batch_that_does_not_restart_by_itself_is_refused(mode: object, said: str) -> None:
    section = EnvSection(id=f"{faulty.__name__}:OtherModeBatch", kwargs={"mode": mode})
    with pytest.raises(UserError, match=f"autoreset_mode {said}; shoal needs NextStep, or SameStep with"):
        make_batch_env(section, 2)


def test_a_batch_of_another_size_is_refused() -> None:
    with pytest.raises(UserError, match="made a batch of 4 instead of 3"):
        make_batch_env(EnvSection(id=f"{faulty.__name__}:WrongSizeBatch"), 3)


class Reference:
    """One environment of a SAME_STEP batch as shoal shows it, step by step and slowly."""

    def __init__(self, seed: int) -> None:
        self._env = counting.CountingEnv()
        self._seed = seed
        self._ended = False

    def reset(self) -> list[float]:
        return list(self._env.reset(seed=self._seed)[0])

    def step(self, action: int) -> tuple[list[float], float, bool, bool, bool]:
        """Observation, reward, terminated, truncated, first."""
        hidden, self._ended = self._ended, False
        observation, reward, terminated, truncated, _ = self._env.step(action)
        if not hidden:
            self._ended = terminated or truncated
            shown = list(observation)
            if self._ended:
                self._env.reset()
            return shown, reward, terminated, truncated, False
        if terminated or truncated:
            observation, _ = self._env.reset()
        return list(observation), 0.0, False, False, True


@pytest.mark.parametrize(
    ("final", "form"),
    [
        ("final_obs", "objects"),
        ("final_obs", "array"),
        ("final_obs", "no mask"),
        ("final_observation", "objects"),
        ("final_observation", "array"),
    ],
)
def test_a_same_step_batch_shows_final_observations_and_loses_the_first_step(final: str, form: str) -> None:
    num_envs = 5
    with batch_env(SAME_STEP, num_envs, kwargs={"final": final, "form": form}) as env:
        references = [Reference(7 + i) for i in range(num_envs)]
        shown = reset(env, 7)
        steps = [shown]
        assert shown.observation["observation"].tolist() == [r.reset() for r in references]
        chance = np.random.default_rng(1)
        for _ in range(80):
            actions = chance.integers(0, counting.NUM_ACTIONS, num_envs)
            shown = step(env, actions)
            steps.append(shown)
            expected = [r.step(int(a)) for r, a in zip(references, actions, strict=True)]
            for i, (observation, *others) in enumerate(expected):
                assert shown.observation["observation"][i].tolist() == observation
                columns = (shown.reward, shown.terminated, shown.truncated, shown.first)
                assert [column[i].item() for column in columns] == others
    check_meaning(steps)
    assert sum(int(s.terminated.sum()) for s in steps) > 5
    assert sum(int(s.truncated.sum()) for s in steps) > 5


def test_gymnasiums_own_same_step_batch() -> None:
    """Its Dict observations come back one by one in its info."""

    class Dicts(gym.ObservationWrapper[Any, Any, Any]):
        def __init__(self, env: gym.Env[Any, Any]) -> None:
            super().__init__(env)
            self.observation_space = gym.spaces.Dict(where=env.observation_space)

        def observation(self, observation: np.ndarray) -> dict[str, np.ndarray]:
            return {"where": observation}

    def make(num_envs: int, **kwargs: Any) -> Any:
        one = [lambda: Dicts(counting.CountingEnv())] * num_envs
        return SyncVectorEnv(one, autoreset_mode=AutoresetMode.SAME_STEP)

    gym.register("SameStep-v0", vector_entry_point=make)
    try:
        with batch_env("SameStep-v0", 3) as env:
            found = rollout(env, 40)
    finally:
        del gym.registry["SameStep-v0"]
    with batch_env(SAME_STEP, 3) as env:
        expected = rollout(env, 40)
    assert any(s.done.any() for s in found)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.observation["observation.where"], other.observation["observation"])
        np.testing.assert_array_equal(one.reward, other.reward)
        np.testing.assert_array_equal(one.done, other.done)


@pytest.mark.parametrize("form", ["missing", "half"])
def test_a_same_step_batch_without_final_observations_is_refused_when_it_matters(form: str) -> None:
    with (
        batch_env(SAME_STEP, 3, kwargs={"form": form}) as env,
        pytest.raises(UserError, match="SameStep, but its info has no 'final_obs' for an episode that ended"),
    ):
        rollout(env, 20)


def faulty_batch(faults: dict[tuple[str, int], Callable[[Any], Any]]) -> tuple[Plan, EnvSection]:
    plan = PLANS["batch"] = Plan(faults)
    return plan, EnvSection(id=FAULTY, kwargs={"plan": "batch"}, max_restarts=2)


def with_nan(position: int, slot: int) -> Callable[[Any], Any]:
    def do(result: Any) -> Any:
        arrays = [np.array(array, np.float32) for array in result[:4]]
        arrays[position][slot] = np.nan
        return *arrays[:2], *result[2:]

    return do


def step_through(section: EnvSection, num_steps: int, num_envs: int = 2) -> list[EnvStep]:
    restarts = Restarts(section.max_restarts)
    with batch_env(section, num_envs, restarts) as env:
        steps = [reset(env)]
        steps += [step(env, np.zeros(num_envs, np.int64)) for _ in range(num_steps)]
        assert env.num_restarts == restarts.num_restarts
    return steps


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (raises(RuntimeError("no\nlicence")), r"raised RuntimeError: no licence"),
        (with_nan(0, 1), r"showed NaN in observation \(slot 1, its episode \d, step \d\)"),
        (with_nan(1, 0), r"gave a reward of nan \(slot 0, its episode \d, step \d\)"),
        (shows(0, np.zeros((2, 4))), r"showed observation of shape \[2, 4\] instead of \[2, 3\]"),
        (shows(1, np.zeros(3)), r"gave a reward of shape \[3\] instead of \[2\]"),
        (shows(2, np.zeros((2, 1), bool)), r"gave terminated of shape \[2, 1\] instead of \[2\]"),
        (lambda result: result[:4], r"raised ValueError: not enough values to unpack"),
    ],
)
def test_a_batch_that_breaks_is_made_anew(
    fault: Callable[[Any], Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan, section = faulty_batch({("step", 3): fault})
    with caplog.at_level(logging.WARNING):
        steps = step_through(section, 5)
    (record,) = caplog.records
    message = record.getMessage()
    assert "\n" not in message
    pattern = (
        rf"environment '{re.escape(FAULTY)}' \(seed 7, step 3 of the batch\) {told}.*; starting the batch"
    )
    assert re.search(pattern, message), message
    assert plan.counts["make"] == 2
    assert plan.num_closed == 2, "the broken one and the one at the end"
    assert plan.seeds[0] == 7
    assert plan.seeds[1] not in (7, 8)
    broke = steps[3]
    assert broke.first.all()
    assert not broke.done.any()
    assert (broke.reward == 0).all()
    tag, episode, number = broke.observation["observation"].T
    np.testing.assert_array_equal(tag, np.array([plan.seeds[1], plan.seeds[1] + 1], np.float32))
    assert not episode.any()
    assert not number.any()
    assert not steps[4].first.all()


def test_the_traceback_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    _, section = faulty_batch({("step", 2): raises(ValueError("a")), ("step", 4): raises(ValueError("b"))})
    with caplog.at_level(logging.WARNING):
        step_through(section, 5)
    assert [bool(record.exc_info) for record in caplog.records] == [True, False]


def test_where_a_slot_was_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Counted by hand from what was shown before."""
    _, section = faulty_batch({("step", 17): with_nan(0, 1)})
    with caplog.at_level(logging.WARNING):
        steps = step_through(section, 17)
    _, episode, number = steps[16].observation["observation"][1]
    assert not steps[16].done[1], "choose another step"
    assert f"(slot 1, its episode {episode + 1:g}, step {number + 1:g})" in caplog.text


def test_too_many_faults_end_it_with_the_last_one() -> None:
    plan, section = faulty_batch({("step", 0): raises(RuntimeError("gone"))})
    with pytest.raises(UserError, match=r"env.max_restarts is 2.*raised RuntimeError: gone"):
        step_through(section, 5)
    assert plan.counts["make"] == 3


def test_a_batch_that_cannot_be_made_anew_is_tried_within_limits() -> None:
    plan, section = faulty_batch(
        {("step", 2): raises(RuntimeError("gone")), ("make", 2): raises(RuntimeError("no licence"))}
    )
    steps = step_through(section, 3)
    assert steps[2].first.all()
    assert plan.counts["make"] == 3
    _, section = faulty_batch(
        {
            ("step", 2): raises(RuntimeError("gone")),
            ("reset", 0): lambda x: x,
            ("close", 0): raises(OSError("no")),
        }
    )
    assert step_through(section, 3)[2].first.all(), "closing may fail, too"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (("make", 1), "cannot make environment '.*': RuntimeError: gone"),
        (("reset", 1), r"environment '.*' \(seed 7, step 0 of the batch\) raised RuntimeError: gone"),
    ],
)
def test_a_batch_that_never_worked_is_an_error_at_once(fault: tuple[str, int], message: str) -> None:
    plan, section = faulty_batch({fault: raises(RuntimeError("gone"))})
    with pytest.raises(UserError, match=message):
        step_through(section, 1)
    assert plan.counts["make"] == 1


def test_a_first_observation_that_is_not_finite_is_an_error_at_once() -> None:
    _, section = faulty_batch({("reset", 1): shows(0, np.array([[0, 0, np.inf], [0, 0, 0]]))})
    with pytest.raises(UserError, match=r"showed infinity in observation \(slot 0, its episode 1, step 0\)"):
        step_through(section, 1)


def test_the_watch_can_ask_where_it_is() -> None:
    _, section = faulty_batch({})
    with batch_env(section, 2) as env:
        reset(env)
        step(env, [0, 0])
        assert env.doing() == f"environment '{FAULTY}' (seed 7, step 1 of the batch)"  # type: ignore[attr-defined]
        assert spec_of(env).env_id == FAULTY
