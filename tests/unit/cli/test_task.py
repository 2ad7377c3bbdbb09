"""Which algorithms fit which spaces, what a run says first, and the process that looks at an environment."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from shoal.algorithms.profiles import PROFILES, fitting, sparing
from shoal.cli import task
from shoal.cli.task import Seen, action_kind, check_fits, introduction, look_at
from shoal.config.load import Layers
from shoal.config.trainable import check_trainable
from shoal.config.tree import EnvSection
from shoal.envs.spaces import SpaceAdapter
from shoal.errors import UserError
from shoal.policy.network import build_policy
from shoal.records import EnvSpec

Space = spaces.Space[Any]

# With the kind that each is, and the algorithms that take it.
ANY = ["ppo", "impala", "appo"]
ACTIONS: dict[str, tuple[Space, str, list[str]]] = {
    "Discrete": (spaces.Discrete(3), "discrete", [*ANY, "apex", "r2d2"]),
    "MultiDiscrete": (spaces.MultiDiscrete([2, 3]), "multi_discrete", ANY),
    "MultiBinary": (spaces.MultiBinary(4), "multi_discrete", ANY),
    "Box bounded": (spaces.Box(-2.0, 5.0, (2,)), "box", [*ANY, "sac", "td3"]),
    "Box unbounded": (spaces.Box(-math.inf, math.inf, (2,)), "unbounded_box", ANY),
    "Box half bounded": (spaces.Box(0.0, math.inf, (2,)), "unbounded_box", ANY),
}
IMAGE = spaces.Box(0, 255, (84, 84, 3), np.uint8)
VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
OBSERVATIONS: dict[str, Space] = {
    "vector": VECTOR,
    "category": spaces.Discrete(16),
    "image": IMAGE,
    "dict": spaces.Dict({"level": VECTOR, "kind": spaces.Discrete(3)}),
    "dict with image": spaces.Dict({"level": VECTOR, "camera": IMAGE}),
    # Too small for a CNN.
    "board": spaces.Box(0, 255, (8, 8), np.uint8),
}


def seen_of(observation: str, action: str, num_slots: int = 1) -> Seen:
    spec = SpaceAdapter(OBSERVATIONS[observation], ACTIONS[action][0]).spec("Test-v0")
    return Seen({"policy": spec}, {"policy": num_slots})


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("action", ACTIONS)
def test_what_fits_can_be_built_and_the_rest_is_refused(name: str, observation: str, action: str) -> None:
    seen, takers = seen_of(observation, action), ACTIONS[action][2]
    if name in takers:
        check_fits(name, seen)
        config = Layers({"algorithm": {"name": name}}, {}, {}).config(seen.task)
        check_trainable(config)
        build_policy(config.policy, seen.specs["policy"])
        return
    with pytest.raises(UserError) as caught:
        check_fits(name, seen)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{name} needs ")
    assert f"Test-v0 has {seen.specs['policy'].action.describe()}: use --algo " in message
    assert re.split(r", | or ", message.rpartition("--algo ")[2]) == takers


@pytest.mark.parametrize("action", ACTIONS)
def test_the_kinds_of_actions(action: str) -> None:
    spec = seen_of("vector", action).specs["policy"]
    _, kind, takers = ACTIONS[action]
    assert action_kind(spec) == kind
    assert fitting(action_kind(spec)) == takers


@pytest.mark.parametrize(("observation", "expected"), [(name, "image" in name) for name in OBSERVATIONS])
def test_what_a_cnn_will_see_is_an_image(observation: str, expected: bool) -> None:
    assert seen_of(observation, "Discrete").task.has_images == expected


def test_agents_of_a_policy_are_counted() -> None:
    spec = seen_of("vector", "Discrete").specs["policy"]
    assert Seen({"red": spec, "blue": spec}, {"red": 2, "blue": 5}).task.num_agents == 5


def test_all_policies_must_fit() -> None:
    specs = {
        name: seen_of("vector", action).specs["policy"]
        for name, action in (("walker", "Box bounded"), ("guide", "Discrete"))
    }
    with pytest.raises(UserError, match=r"sac needs Box actions with finite bounds, .* has Discrete\(3\)"):
        check_fits("sac", Seen(specs, {"walker": 1, "guide": 1}))


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_the_first_line_names_the_task_the_algorithm_and_the_other_one(observation: str, action: str) -> None:
    seen = seen_of(observation, action)
    spec: EnvSpec = seen.specs["policy"]
    line = introduction("ppo", seen, was_named=False)
    assert "\n" not in line
    shown = "images" if "image" in observation else spec.observation[0].describe()
    assert line.startswith(f"Test-v0: {shown}")
    assert f" -> {spec.action.describe()}: ppo (synchronous PPO)" in line
    other = sparing(action_kind(spec))
    assert other is None or other in ACTIONS[action][2]
    assert (f"if they are dear: --algo {other}" in line) == (other is not None)
    assert "--algo" not in introduction("ppo", seen, was_named=True)


PROBED = "tests.unit.cli.probed"


@pytest.mark.parametrize("name", ["Plain", "Talkative"])
def test_an_environment_is_looked_at_whatever_it_prints(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    seen = look_at(EnvSection(id=f"{PROBED}:{name}"))
    (spec,) = seen.specs.values()
    assert [array.describe() for array in spec.observation] == ["observation float32[2, 3] within -1..1"]
    assert spec.action.describe() == "MultiDiscrete([2, 2, 2, 2])"
    assert set(seen.num_slots.values()) == {1}
    assert capfd.readouterr().out == "", "what the environment prints is not the command's"


def test_random_play_brings_returns_to_compare_with() -> None:
    seen = look_at(EnvSection(id=f"{PROBED}:Short"), play_s=60.0)
    assert seen.returns == {"policy": [1.0] * 100}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("Unbounded", id="what it would do at random is its own"),
        pytest.param("Plain", id="no episode ends"),
        pytest.param("Falling", id="its process ends"),
        pytest.param("Stuck", id="it hangs"),
    ],
)
def test_random_play_that_fails_is_no_reason_not_to_train(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "PLAY_PATIENCE_S", 0.1)
    monkeypatch.setattr(task, "CLOSE_TIMEOUT_S", 0.1)
    seen = look_at(EnvSection(id=f"{PROBED}:{name}"), play_s=0.05)
    assert not any(seen.returns.values())
    assert len(seen.specs) == 1


def test_a_registered_environment_with_arguments() -> None:
    section = EnvSection.model_validate({"id": "CartPole-v1", "kwargs": {"sutton_barto_reward": True}})
    assert look_at(section).task.action == "discrete"


@pytest.mark.parametrize(
    ("env_id", "expected"),
    [
        ("Nothing-v0", r"unknown environment 'Nothing-v0'"),
        (f"{PROBED}:Absent", r"Absent"),
        (f"{PROBED}:Raising", r"no licence for"),
        (f"{PROBED}:Exiting", r"ended its process with code 7 while it was made: fatal: no display$"),
        (f"{PROBED}:Killed", r"ended its process with code -6 while it was made"),
    ],
)
def test_what_is_wrong_with_an_environment_is_told_in_one_line(env_id: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        look_at(EnvSection(id=env_id))
    assert "\n" not in str(caught.value)
    assert env_id in str(caught.value)
