"""Which policy plays whom, and what is said when the configuration does not fit the environment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from gymnasium.spaces import Box, Discrete

from shoal.envs.agents import assign_agents, check_parallel, common_spaces
from shoal.errors import UserError

AGENTS = ["red_0", "red_1", "blue_0", "green"]
WHO = "the agents are 'red_0', 'red_1', 'blue_0', 'green'"


def test_without_policies_one_plays_all() -> None:
    assert assign_agents(AGENTS, {}) == {"policy": tuple(AGENTS)}


def test_names_and_patterns_and_the_first_that_fits() -> None:
    policies = {"leader": ("red_0",), "others": ("red_*", "green"), "rest": ("*",)}
    assert assign_agents(AGENTS, policies) == {
        "leader": ("red_0",),
        "others": ("red_1", "green"),
        "rest": ("blue_0",),
    }


def test_a_name_with_the_characters_of_a_pattern_is_a_name_too() -> None:
    assert assign_agents(["a[0]", "a0"], {"one": ("a[0]",)}) == {"one": ("a[0]", "a0")}
    assert assign_agents([0, 1], {"one": ("0", "1")}) == {"one": (0, 1)}


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        (
            {"red": ("red_*",)},
            f"no policy of env.policies plays 'blue_0', 'green'; {WHO}",
        ),
        (
            {"all": ("*", "yellow_*"), "Red": ("Red_0",)},
            f"no agent fits 'yellow_*', 'Red_0' of env.policies; {WHO}",
        ),
        (
            {"all": ("*",), "red": ("red_*",)},
            "env.policies: 'red' plays no agent, those before it play all that fit",
        ),
        (
            {"all": ("*",), "none": ()},
            "env.policies: 'none' plays no agent, those before it play all that fit",
        ),
    ],
)
def test_policies_that_do_not_fit(policies: dict[str, tuple[str, ...]], message: str) -> None:
    with pytest.raises(UserError) as info:
        assign_agents(AGENTS, policies)
    assert str(info.value) == message


def env_of(observation: dict[str, Any], action: dict[str, Any]) -> Any:
    return SimpleNamespace(observation_space=observation.__getitem__, action_space=action.__getitem__)


def test_agents_of_one_policy_share_their_spaces() -> None:
    small, large = Box(0, 1, (2,)), Box(0, 1, (3,))
    two, three = Discrete(2), Discrete(3)
    env = env_of({"a": small, "b": Box(0, 1, (2,)), "c": large}, {"a": two, "b": two, "c": two})
    assert common_spaces(env, "red", ["a", "b"]) == (small, two)
    with pytest.raises(UserError) as info:
        common_spaces(env, "red", ["a", "b", "c"])
    assert str(info.value) == (
        "policy 'red' plays 'a' and 'c', whose observation spaces differ: Box(0.0, 1.0, (2,), float32) and "
        "Box(0.0, 1.0, (3,), float32); give them policies of their own in env.policies"
    )
    env = env_of({"a": small, "b": small}, {"a": two, "b": three})
    with pytest.raises(UserError, match=r"whose action spaces differ: Discrete\(2\) and Discrete\(3\); give"):
        common_spaces(env, "red", ["a", "b"])


def test_other_kinds_of_environments_are_refused() -> None:
    with pytest.raises(UserError, match=r"pettingzoo\.utils\.aec_to_parallel"):
        check_parallel(SimpleNamespace(possible_agents=["a"], agent_iter=lambda: iter(())))
    with pytest.raises(UserError, match="possible_agents"):
        check_parallel(SimpleNamespace())
    with pytest.raises(UserError, match="possible_agents"):
        check_parallel(SimpleNamespace(possible_agents=[]))
    check_parallel(SimpleNamespace(possible_agents=["a"]))
