"""Whatever `env.id` names becomes a batch with one meaning of a step; what cannot be made is explained."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from shoal.config.tree import EnvSection, WrapperSection
from shoal.envs.batch import BatchEnv
from shoal.envs.make import make_batch_env
from shoal.envs.native import NativeEnv
from shoal.envs.restarts import Restarts
from shoal.envs.sync import SyncEnv
from shoal.errors import UserError
from shoal.records import ArraySpec, DiscreteAction, EnvSpec
from tests.unit.envs import counting
from tests.unit.envs.rollouts import batch_env, check_cartpole, reset, rollout, spec_of, step

COUNTING = {
    "sync": EnvSection(id=f"{counting.__name__}:Counting-v0", vectorization="sync"),
    "sync factory": EnvSection(id=f"{counting.__name__}:CountingEnv"),
    "native": EnvSection(id=f"{counting.__name__}:CountingNative-v0", vectorization="native"),
    "native factory": EnvSection(id=f"{counting.__name__}:CountingVectorEnv"),
}


@pytest.fixture
def registered() -> Iterator[Callable[..., str]]:
    """Registers an environment for the length of a test."""
    names: list[str] = []

    def register(name: str, *args: Any, **kwargs: Any) -> str:
        gym.register(name, *args, **kwargs)
        names.append(name)
        return name

    yield register
    for name in names:
        del gym.registry[name]


@pytest.mark.parametrize("kind", COUNTING)
def test_all_kinds_show_final_and_first_observations(kind: str) -> None:
    with batch_env(COUNTING[kind], 3) as env:
        steps = rollout(env, 60)
    assert sum(int(s.terminated.sum()) for s in steps) > 5
    assert sum(int(s.truncated.sum()) for s in steps) > 5
    for before, after in pairwise(steps):
        _, old_episode, old_step = before.observation["observation"].T
        tag, episode, number = after.observation["observation"].T
        np.testing.assert_array_equal(tag, [7, 8, 9])
        np.testing.assert_array_equal(episode, np.where(after.first, old_episode + 1, old_episode))
        np.testing.assert_array_equal(number, np.where(after.first, 0, old_step + 1))


def test_all_kinds_agree() -> None:
    rollouts = []
    for section in COUNTING.values():
        with batch_env(section, 4) as env:
            rollouts.append(rollout(env, 40))
    for others in rollouts[1:]:
        for one, other in zip(rollouts[0], others, strict=True):
            np.testing.assert_array_equal(one.observation["observation"], other.observation["observation"])
            np.testing.assert_array_equal(one.reward, other.reward)
            np.testing.assert_array_equal(one.first, other.first)
            np.testing.assert_array_equal(one.done, other.done)


@pytest.mark.parametrize("vectorization", ["native", "sync"])
def test_cartpole_keeps_true_final_observations(vectorization: Any) -> None:
    """Each step but the autoreset obeys CartPole's dynamics: also the one that truncates."""
    section = EnvSection(vectorization=vectorization, kwargs={"max_episode_steps": 12})
    with batch_env(section, 5) as env:
        assert spec_of(env) == EnvSpec(
            "CartPole-v1", (ArraySpec("observation", "float32", (4,)),), DiscreteAction(2)
        )
        check_cartpole(env, 1e-5)


def test_auto_takes_the_batch_of_an_environment_that_has_one() -> None:
    with batch_env("CartPole-v1", 2) as env:
        assert isinstance(env, NativeEnv)
        assert not env.waits
    with batch_env("Acrobot-v1", 2) as env:
        assert isinstance(env, SyncEnv)
        assert not env.waits


def test_ids_get_their_registered_name() -> None:
    with batch_env("CartPole", 1) as env:
        assert spec_of(env).env_id == "CartPole-v1"
    with batch_env(COUNTING["sync"], 1) as env:
        assert spec_of(env).env_id == "Counting-v0"
    with batch_env(f"{counting.__name__}:Counting", 1) as env:
        assert spec_of(env).env_id == "Counting-v0"


def test_an_attribute_of_the_module_goes_before_an_id_without_version(registered: Callable[..., str]) -> None:
    registered("CountingEnv-v3", "no_such_module:Env")
    with batch_env(f"{counting.__name__}:CountingEnv", 1) as env:
        assert spec_of(env).env_id == f"{counting.__name__}:CountingEnv"


def test_float64_observations_and_bounded_actions() -> None:
    with batch_env("Pendulum-v1", 2) as env:
        env.reset(1)
        shown = step(env, np.full((2, 1), 1e9, np.float32))
    assert shown.observation["observation"].dtype == np.float32


OWN_FILE = """
import gymnasium as gym
from beside import SIZE
class Own(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (SIZE,))
    action_space = gym.spaces.Discrete(2)
    def __init__(self, value=0.5):
        self.value = value
    def reset(self, *, seed=None, options=None):
        return self.observation_space.low * 0 + self.value, {}
    def step(self, action):
        return self.observation_space.low * 0 + self.value, 1.0, False, False, {}
def make(value=0.25):
    return Own(value)
number = 3
def nothing():
    return 3
def batch_without_size():
    return gym.make_vec("CartPole-v1", num_envs=2)
def broken():
    raise RuntimeError("no such\\nlevel")
"""


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("SIZE = 3\n")
    path = tmp_path / "own.py"
    path.write_text(OWN_FILE)
    return path


@pytest.mark.parametrize(
    ("name", "kwargs", "value"),
    [("Own", {}, 0.5), ("Own", {"value": -1.0}, -1.0), ("make", {}, 0.25), ("make", {"value": 0.75}, 0.75)],
)
def test_a_file_of_ones_own(own_file: Path, name: str, kwargs: dict[str, Any], value: float) -> None:
    with batch_env(f"{own_file}:{name}", 2, kwargs=kwargs) as env:
        assert spec_of(env).env_id == f"own.py:{name}", "the same wherever the file lies"
        shown = reset(env)
        np.testing.assert_array_equal(shown.observation["observation"], np.full((2, 3), value, np.float32))
        assert (step(env, [0, 1]).reward == 1).all()


def test_a_file_is_found_from_the_working_directory(own_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own_file.parent.parent)
    with batch_env(f"{own_file.parent.name}/own.py:Own", 1) as env:
        reset(env)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("number", "which is a int: name a function or a class"),
        ("Missing", "has no 'Missing'"),
        ("nothing", "makes a int, which is no environment of Gymnasium or PettingZoo"),
        ("batch_without_size", "it makes a batch; let it take the size as a parameter `num_envs`"),
        ("broken", "cannot make environment 'own.py:broken': RuntimeError: no such level"),
        ("Own|native", "makes single environments and has no batch of its own"),
    ],
)
def test_mistakes_in_a_file_are_explained(own_file: Path, name: str, message: str) -> None:
    name, _, vectorization = name.partition("|")
    section = EnvSection(id=f"{own_file}:{name}", vectorization=vectorization or "auto")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message) as info:
        make_batch_env(section, 2)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (EnvSection(id="CartPol-v1"), "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        (EnvSection(id="cartpole-v1"), "unknown environment 'cartpole-v1'; did you mean 'CartPole-v1'?"),
        (EnvSection(id="CartPole-v9"), "unknown environment 'CartPole-v9'; did you mean 'CartPole-v1'?"),
        (EnvSection(id="Zzzz-v0"), "unknown environment 'Zzzz-v0'; environments of other packages"),
        (EnvSection(id="what ever"), "env.id 'what ever' is not a valid id"),
        (EnvSection(id="no_such_module:X-v0"), "cannot import 'no_such_module' for environment"),
        (
            EnvSection(id="gymnasium.envs.classic_controls:X"),
            "No module named .*classic_controls'; did you mean 'gymnasium.envs.classic_control'?",
        ),
        (EnvSection(id="gymnasium.envs.zzz:X"), "; gymnasium.envs has no zzz"),
        (EnvSection(id="gone.py:make"), "there is no file"),
        (EnvSection(id="Acrobot-v1", vectorization="native"), "has no batch of its own"),
        (
            EnvSection(id="envpool:Pong-v55"),
            "EnvPool has no task 'Pong-v55'; did you mean 'envpool:Pong-v5'?",
        ),
        (EnvSection(id="envpool:CartPole-v1", vectorization="sync"), "is only made as a batch; set"),
        (
            EnvSection(id="envpool:CartPole-v1", kwargs={"seed": 3}),
            "has 'seed', which shoal gives to EnvPool",
        ),
        (EnvSection(id="ALE/Pong-v5", kwargs={"batch_size": 3}), "env.kwargs has 'batch_size'"),
        (EnvSection(id="ALE/Pong-v5", vectorization="sync", kwargs={"stack_num": 4}), "policy.frame_stack"),
        (EnvSection(kwargs={"num_envs": 3}), "env.kwargs has 'num_envs'"),
        (
            EnvSection(kwargs={"gravitas": 3}),
            "cannot make environment 'CartPole-v1': TypeError: .*unexpected keyword argument 'gravitas'",
        ),
    ],
)
def test_mistakes_are_explained_in_one_line(section: EnvSection, message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")) as info:
        make_batch_env(section, 2)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize(
    ("entry_point", "extra"),
    [("mujoco_like:Env", "mujoco"), ("x_box2d_y:Env", "box2d"), ("my_pettingzoo:env", "pettingzoo")],
)
def test_a_missing_package_names_the_extra(
    registered: Callable[..., str], entry_point: str, extra: str
) -> None:
    name = registered("Missing-v0", entry_point)
    module = entry_point.partition(":")[0]
    with pytest.raises(UserError, match=rf"No module named '{module}'; pip install 'shoal\[{extra}\]'"):
        make_batch_env(EnvSection(id=name), 1)


def test_a_missing_module_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(UserError, match=r"cannot import 'envpool' .* pip install 'shoal\[envpool\]'"):
        make_batch_env(EnvSection(id="envpool:Pong-v5"), 1)


def test_unsupported_space_names_the_environment(registered: Callable[..., str]) -> None:
    class Wordy(counting.CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gym.spaces.Text(5)  # type: ignore[assignment]

    name = registered("Wordy-v0", Wordy)
    with pytest.raises(UserError, match="environment 'Wordy-v0': observation: the space Text"):
        make_batch_env(EnvSection(id=name), 1)


def test_copies_with_other_spaces_are_refused(registered: Callable[..., str]) -> None:
    sizes = iter((2, 3))

    class Growing(counting.CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gym.spaces.Discrete(next(sizes))

    name = registered("Growing-v0", Growing)
    with pytest.raises(UserError, match=r"copies differ: .* Discrete\(2\), another .* Discrete\(3\)"):
        make_batch_env(EnvSection(id=name), 2)


def wrapped(*wrappers: tuple[str, dict[str, Any]], **fields: Any) -> EnvSection:
    sections = tuple(WrapperSection(path=path, kwargs=kwargs) for path, kwargs in wrappers)
    return EnvSection(wrappers=sections, **fields)


class Plus(gym.ObservationWrapper[Any, Any, Any]):
    def __init__(self, env: gym.Env[Any, Any], number: float) -> None:
        super().__init__(env)
        self.number = number

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation + np.float32(self.number)


class Times(Plus):
    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation * np.float32(self.number)


PLUS, TIMES = f"{__name__}:Plus", f"{__name__}:Times"
CLIP_BATCH = "gymnasium.wrappers.vector:ClipReward"


def test_wrappers_are_put_on_from_the_inside_out() -> None:
    section = wrapped((PLUS, {"number": 10}), (TIMES, {"number": 2}), id=COUNTING["sync"].id)
    with batch_env(section, 2) as env:
        np.testing.assert_array_equal(reset(env).observation["observation"], [[34, 20, 20], [36, 20, 20]])


def test_auto_leaves_the_batch_for_wrappers_of_single_environments() -> None:
    with batch_env(wrapped((PLUS, {"number": 0})), 2) as env:
        assert isinstance(env, SyncEnv)
        rollout(env, 5)


def test_a_wrapper_of_batches_goes_around_the_batch() -> None:
    section = wrapped((CLIP_BATCH, {"min_reward": 0, "max_reward": 0.5}))
    with batch_env(section, 2) as env:
        assert isinstance(env, NativeEnv)
        assert (rollout(env, 5)[-1].reward == 0.5).all()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            wrapped((PLUS, {"number": 1}), vectorization="native"),
            "wraps single environments, but 'CartPole-v1'",
        ),
        (
            wrapped((PLUS, {"number": 1}), id="envpool:CartPole-v1"),
            "wraps single environments, but 'envpool:",
        ),
        (wrapped((CLIP_BATCH, {}), vectorization="sync"), "wraps a batch of environments, but those of"),
        (wrapped((CLIP_BATCH, {}), id="Acrobot-v1"), "wraps a batch of environments, but those of"),
        (wrapped((CLIP_BATCH, {}), (PLUS, {})), "use only one of the two kinds"),
        (wrapped((PLUS, {"what": 1})), "Plus' raised TypeError: .*unexpected keyword argument 'what'"),
        (wrapped(("gone.py:W", {})), "env.wrappers is 'gone.py:W', but there is no file"),
        (wrapped(("sys:path", {})), "env.wrappers: 'sys:path' is a list, which wraps nothing"),
    ],
)
def test_wrappers_that_do_not_fit_are_refused(section: EnvSection, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_batch_env(section, 2)


def test_async_is_handed_to_worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they get can be sent to another process and makes the environments there."""
    workers = ModuleType("shoal.envs.workers")

    def make_worker_env(
        section: EnvSection, num: int, make_part: Callable[[int], BatchEnv], restarts: Restarts
    ) -> BatchEnv:
        assert num == 6
        return pickle.loads(pickle.dumps(make_part))(2)  # type: ignore[no-any-return]  # noqa: S301

    workers.make_worker_env = make_worker_env  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, workers.__name__, workers)
    section = wrapped((PLUS, {"number": 1}), id=COUNTING["sync"].id, vectorization="async")
    with batch_env(section, 6) as env:
        assert isinstance(env, SyncEnv)
        assert (reset(env).observation["observation"][:, 1] == 1).all()
    with pytest.raises(UserError, match="is only made as a batch"):
        make_batch_env(EnvSection(id="envpool:CartPole-v1", vectorization="async"), 6)


def test_an_environment_with_agents_is_handed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "agents.py"
    path.write_text("class Agents:\n possible_agents = ['a']\n def close(self): pass\n")
    multi_agent = ModuleType("shoal.envs.multi_agent")
    seen: list[Any] = []

    def make_multi_agent_env(
        section: EnvSection, num: int, make_one: Callable[[], Any], env_id: str, restarts: Restarts
    ) -> str:
        seen.extend([section.id, num, make_one().possible_agents, env_id])
        return "env"

    multi_agent.make_multi_agent_env = make_multi_agent_env  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, multi_agent.__name__, multi_agent)
    made: Any = make_batch_env(EnvSection(id=f"{path}:Agents"), 3)
    assert made == "env"
    assert seen == [f"{path}:Agents", 3, ["a"], "agents.py:Agents"]
