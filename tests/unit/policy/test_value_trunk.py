"""Layers of its own for the value: what is shared, what gradients reach, and where there cannot be any."""

from __future__ import annotations

import pytest
import torch

from shoal.config.network import PolicySection
from shoal.errors import UserError
from shoal.policy.network import ActorCritic, build_policy
from shoal.records import ArraySpec, DiscreteAction
from tests.unit.policy.stepping import MIXED, PIXELS, VECTOR, episode_starts, observe, random_state, spec_of

NUM_ROWS, NUM_ENVS = 6, 4


def actor_critic(*observation: ArraySpec, **settings: object) -> ActorCritic:
    torch.manual_seed(3)
    policy = build_policy(PolicySection.model_validate(settings), spec_of(DiscreteAction(3), *observation))
    assert isinstance(policy, ActorCritic)
    return policy


def gradients(policy: ActorCritic, of: str) -> set[str]:
    """Parameters that the gradient of one output reaches."""
    policy.zero_grad()
    observation, first = observe(policy.spec, NUM_ROWS, NUM_ENVS), episode_starts(NUM_ROWS, NUM_ENVS)
    params, value = policy(observation, first, random_state(policy, NUM_ENVS))
    (params if of == "policy" else value).square().sum().backward()
    return {
        name
        for name, parameter in policy.named_parameters()
        if parameter.grad is not None and bool(parameter.grad.abs().max() > 0)
    }


@pytest.mark.parametrize("stacked", [1, 3])
@pytest.mark.parametrize("choice", ["auto", "separate"])
def test_separate_trunks_share_no_parameters(choice: str, stacked: int) -> None:
    policy = actor_critic(VECTOR, value_trunk=choice, frame_stack=stacked)
    by_policy, by_value = gradients(policy, "policy"), gradients(policy, "value")
    assert {name.split(".")[0] for name in by_policy} == {"trunk", "policy_head"}
    assert {name.split(".")[0] for name in by_value} == {"value_trunk", "value_head"}
    assert by_policy | by_value == {name for name, _ in policy.named_parameters()}
    assert policy.value_trunk is not None
    mine = {parameter.data_ptr() for parameter in policy.trunk.parameters()}
    assert mine.isdisjoint(parameter.data_ptr() for parameter in policy.value_trunk.parameters())


def test_a_shared_trunk_learns_from_both() -> None:
    policy = actor_critic(VECTOR, value_trunk="shared")
    assert policy.value_trunk is None
    trunk = {f"trunk.{name}" for name, _ in policy.trunk.named_parameters()}
    assert trunk
    assert trunk <= gradients(policy, "policy") & gradients(policy, "value")


@pytest.mark.parametrize(
    ("observation", "settings", "is_separate"),
    [
        ((VECTOR,), {}, True),
        (MIXED, {}, True),
        ((PIXELS,), {}, False),
        ((VECTOR, PIXELS), {}, False),
        ((PIXELS,), {"value_trunk": "separate"}, True),
        ((VECTOR,), {"recurrent": "lstm"}, False),
        ((VECTOR,), {"recurrent": "gru", "value_trunk": "shared"}, False),
    ],
)
def test_vectors_without_memory_have_two_unless_something_else_is_said(
    observation: tuple[ArraySpec, ...], settings: dict[str, object], is_separate: bool
) -> None:
    assert (actor_critic(*observation, **settings).value_trunk is not None) == is_separate


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_recurrent_core_has_one_memory_for_both(core: str) -> None:
    with pytest.raises(
        UserError, match=r"policy\.value_trunk is 'separate', and a recurrent .* set it to"
    ) as e:
        actor_critic(VECTOR, value_trunk="separate", recurrent=core)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("choice", ["shared", "separate"])
def test_acting_needs_no_value(choice: str) -> None:
    """What only training needs is named, so that inference leaves it out."""
    policy = actor_critic(VECTOR, value_trunk=choice)
    expected = {"value_head"} if choice == "shared" else {"value_head", "value_trunk"}
    assert set(policy.only_for_training) == expected
    assert {name.split(".")[0] for name in gradients(policy, "value")} - {"trunk"} == expected
