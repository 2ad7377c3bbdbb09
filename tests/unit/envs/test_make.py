"""Every kind of vectorisation means the same by a step; what cannot be made is explained in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from shoal.config.tree import EnvSection
from shoal.envs.vector import EnvStep, ShoalVectorEnv, make_vector_env
from shoal.errors import UserError
from shoal.records import ArraySpec, DiscreteAction, EnvSpec
from tests.unit.envs import counting

COUNTING = {
    "sync": EnvSection(id=f"{counting.__name__}:Counting-v0", vectorization="sync"),
    "async": EnvSection(id=f"{counting.__name__}:Counting-v0", vectorization="async"),
    "native": EnvSection(id=f"{counting.__name__}:CountingNative-v0", vectorization="native"),
}


@contextmanager
def vector_env(section: EnvSection, num_envs: int) -> Iterator[ShoalVectorEnv]:
    env = make_vector_env(section, num_envs)
    try:
        yield env
    finally:
        env.close()


def copied(step: EnvStep) -> EnvStep:
    columns = {name: array.copy() for name, array in step.observation.items()}
    arrays = (step.reward, step.terminated, step.truncated, step.first, step.done)
    return EnvStep(columns, *(array.copy() for array in arrays))


def rollout(env: ShoalVectorEnv, num_steps: int, seed: int = 7) -> list[EnvStep]:
    chance = np.random.default_rng(seed)
    steps = [copied(env.reset(seed))]
    for _ in range(num_steps):
        assert isinstance(env.spec.action, DiscreteAction)
        steps.append(copied(env.step(chance.integers(0, env.spec.action.n, env.num_envs))))
    return steps


def check_meaning(steps: list[EnvStep]) -> None:
    assert steps[0].first.all()
    for before, after in pairwise(steps):
        np.testing.assert_array_equal(after.first, before.done)
        np.testing.assert_array_equal(after.done, after.terminated | after.truncated)
        assert not (after.first & after.done).any()
        assert (after.reward[after.first] == 0).all()
        assert after.reward.dtype == np.float32
        assert after.first.dtype == after.terminated.dtype == after.truncated.dtype == np.bool_


@pytest.mark.parametrize("kind", COUNTING)
def test_all_kinds_show_final_and_first_observations(kind: str) -> None:
    with vector_env(COUNTING[kind], 3) as env:
        steps = rollout(env, 60)
    check_meaning(steps)
    terminated = sum(int(s.terminated.sum()) for s in steps)
    truncated = sum(int(s.truncated.sum()) for s in steps)
    assert terminated > 5
    assert truncated > 5
    for before, after in pairwise(steps):
        _, old_episode, old_step = before.observation["observation"].T
        tag, episode, step = after.observation["observation"].T
        np.testing.assert_array_equal(tag, [7, 8, 9])
        np.testing.assert_array_equal(episode, np.where(after.first, old_episode + 1, old_episode))
        np.testing.assert_array_equal(step, np.where(after.first, 0, old_step + 1))


def test_all_kinds_agree() -> None:
    rollouts = []
    for section in COUNTING.values():
        with vector_env(section, 4) as env:
            rollouts.append(rollout(env, 40))
    for others in rollouts[1:]:
        for one, other in zip(rollouts[0], others, strict=True):
            np.testing.assert_array_equal(one.observation["observation"], other.observation["observation"])
            np.testing.assert_array_equal(one.reward, other.reward)
            np.testing.assert_array_equal(one.first, other.first)
            np.testing.assert_array_equal(one.done, other.done)


@pytest.mark.parametrize("vectorization", ["native", "sync", "async"])
def test_cartpole_keeps_true_final_observations(vectorization: Any) -> None:
    """Each step but the autoreset obeys CartPole's dynamics: also the one that truncates."""
    section = EnvSection(vectorization=vectorization, kwargs={"max_episode_steps": 12})
    with vector_env(section, 5) as env:
        assert env.spec == EnvSpec(
            "CartPole-v1", (ArraySpec("observation", "float32", (4,)),), DiscreteAction(2)
        )
        steps = [copied(env.reset(3))]
        actions = []
        for t in range(60):
            actions.append(np.full(5, 1) if t % 40 < 20 else np.arange(5) * t % 2)
            steps.append(copied(env.step(actions[-1])))
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
            np.testing.assert_allclose(shown, expected, atol=1e-5)
            assert after.terminated[i] == terminated
            assert after.reward[i] == reward


def test_auto_takes_the_native_entry_point_if_there_is_one() -> None:
    with vector_env(EnvSection(), 2) as env:
        assert type(env._env).__name__ == "CartPoleVectorEnv"
        assert not env.waits_for_processes
    with vector_env(EnvSection(id="Acrobot-v1"), 2) as env:
        assert type(env._env).__name__ == "SyncVectorEnv"


def test_an_unversioned_id_and_a_module_id_get_their_registered_name() -> None:
    with vector_env(EnvSection(id="CartPole"), 1) as env:
        assert env.spec.env_id == "CartPole-v1"
    with vector_env(COUNTING["sync"], 1) as env:
        assert env.spec.env_id == "Counting-v0"


def test_float64_observations_and_bounded_actions() -> None:
    with vector_env(EnvSection(id="Pendulum-v1"), 2) as env:
        env.reset(1)
        step = env.step(np.full((2, 1), 1e9, np.float32))
    assert step.observation["observation"].dtype == np.float32


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (EnvSection(id="CartPol-v1"), "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        (EnvSection(id="cartpole-v1"), "unknown environment 'cartpole-v1'; did you mean 'CartPole-v1'?"),
        (EnvSection(id="CartPole-v9"), "unknown environment 'CartPole-v9'; did you mean 'CartPole-v1'?"),
        (EnvSection(id="Zzzz-v0"), "unknown environment 'Zzzz-v0'; environments of other packages"),
        (EnvSection(id="what ever"), "env.id 'what ever' is not a valid id"),
        (EnvSection(id="no_such_module:X-v0"), "cannot import 'no_such_module' for environment"),
        (EnvSection(id="Acrobot-v1", vectorization="native"), "has no vector entry point"),
        (
            EnvSection(kwargs={"gravitas": 3}),
            "cannot make environment 'CartPole-v1': TypeError: .*unexpected keyword argument 'gravitas'",
        ),
    ],
)
def test_mistakes_are_explained_in_one_line(section: EnvSection, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")) as info:
        make_vector_env(section, 2)
    assert "\n" not in str(info.value)


def test_a_missing_package_names_the_extra() -> None:
    gym.register("Missing-v0", "mujoco_like:Env")
    try:
        with pytest.raises(UserError, match=r"No module named 'mujoco_like'; pip install 'shoal\[mujoco\]'"):
            make_vector_env(EnvSection(id="Missing-v0"), 1)
    finally:
        del gym.registry["Missing-v0"]


@pytest.mark.parametrize(
    ("mode", "said"),
    [(AutoresetMode.SAME_STEP, "SameStep"), (AutoresetMode.DISABLED, "Disabled"), ("Odd", "Odd")],
)
def test_other_autoreset_modes_are_refused(mode: object, said: str) -> None:
    class Odd(counting.CountingVectorEnv):
        metadata = {"autoreset_mode": mode}  # noqa: RUF012

    gym.register("Odd-v0", vector_entry_point=Odd)
    warning = pytest.warns(UserWarning, match="not an instance") if mode == "Odd" else nullcontext()
    try:
        with warning, pytest.raises(UserError, match=f"autoreset_mode {said}; shoal needs NextStep"):
            make_vector_env(EnvSection(id="Odd-v0"), 2)
    finally:
        del gym.registry["Odd-v0"]


def test_unsupported_space_names_the_environment() -> None:
    class Wordy(counting.CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gym.spaces.Text(5)  # type: ignore[assignment]

    gym.register("Wordy-v0", Wordy)
    try:
        with pytest.raises(UserError, match="environment 'Wordy-v0': observation: the space Text"):
            make_vector_env(EnvSection(id="Wordy-v0"), 1)
    finally:
        del gym.registry["Wordy-v0"]


def test_closing_ends_worker_processes_even_dead_ones() -> None:
    env = make_vector_env(COUNTING["async"], 2)
    assert env.waits_for_processes
    processes = env._env.processes
    processes[0].kill()
    processes[0].join()
    env.close()
    assert not any(process.is_alive() for process in processes)
