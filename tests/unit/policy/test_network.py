"""The policy from spec to actions: encoders, heads, greedy rows, and the spaces it refuses."""

from __future__ import annotations

import math

import pytest
import torch

from shoal.config.tree import PolicySection
from shoal.errors import UserError
from shoal.policy.encoders import MAX_INPUTS, ArrayInput
from shoal.policy.network import MAX_ACTIONS, build_policy
from shoal.records import ActionSpec, ArraySpec, BoxAction, DiscreteAction, EnvSpec

CARTPOLE = ArraySpec("observation", "float32", (4,))
MIXED = (
    ArraySpec("observation.frame", "uint8", (2, 3)),
    ArraySpec("observation.kind", "int64", (), num_categories=5),
    ArraySpec("observation.level", "float64", ()),
)
BOX = BoxAction((2, 2), (-1.0,) * 4, (math.inf,) * 4)


def spec_of(action: ActionSpec, *observation: ArraySpec) -> EnvSpec:
    return EnvSpec("Test-v0", observation or (CARTPOLE,), action)


def mixed_observation(*leading: int) -> dict[str, torch.Tensor]:
    return {
        "observation.frame": torch.randint(0, 256, (*leading, 2, 3), dtype=torch.uint8),
        "observation.kind": torch.randint(0, 5, leading),
        "observation.level": torch.randn(*leading, dtype=torch.float64),
    }


@pytest.mark.parametrize("leading", [(7,), (3, 7)])
@pytest.mark.parametrize(("action", "num_params"), [(DiscreteAction(3), 3), (BOX, 8)])
def test_outputs_keep_the_leading_dimensions(
    leading: tuple[int, ...], action: ActionSpec, num_params: int
) -> None:
    policy = build_policy(PolicySection(), spec_of(action, *MIXED))
    params, value = policy(mixed_observation(*leading))

    assert params.shape == (*leading, num_params)
    assert value.shape == leading
    assert params.dtype == value.dtype == torch.float32


def test_a_time_axis_changes_nothing() -> None:
    policy = build_policy(PolicySection(), spec_of(DiscreteAction(3), *MIXED))
    observation = mixed_observation(4, 5)

    whole = policy(observation)
    row = policy({name: tensor[2] for name, tensor in observation.items()})
    torch.testing.assert_close(whole.params[2], row.params)
    torch.testing.assert_close(whole.value[2], row.value)


@pytest.mark.parametrize("action", [DiscreteAction(3), BOX])
def test_act_gives_what_outputs_announces(action: ActionSpec) -> None:
    policy = build_policy(PolicySection(), spec_of(action, *MIXED))
    acted = policy.act(mixed_observation(6))

    assert [spec.name for spec in policy.outputs] == list(acted) == ["action", "log_prob"]
    for spec in policy.outputs:
        assert acted[spec.name].shape == (6, *spec.shape)
        assert acted[spec.name].dtype == getattr(torch, spec.dtype)


@pytest.mark.parametrize("action", [DiscreteAction(50), BOX])
def test_greedy_rows_get_the_mode_and_others_a_sample(action: ActionSpec) -> None:
    policy = build_policy(PolicySection(), spec_of(action))
    observation = {"observation": torch.randn(64, 4)}
    greedy = torch.arange(64) % 2 == 0
    distribution = policy.distribution(policy(observation).params)
    acted = policy.act(observation, greedy)

    same = (acted["action"] == distribution.mode()).reshape(64, -1).all(-1)
    assert bool(same[greedy].all())
    assert not bool(same[~greedy].all())
    torch.testing.assert_close(acted["log_prob"], distribution.log_prob(acted["action"]))


def test_the_first_policy_is_near_uniform() -> None:
    policy = build_policy(PolicySection(), spec_of(DiscreteAction(4)))
    observation = {"observation": torch.randn(128, 4)}
    entropy = policy.distribution(policy(observation).params).entropy()
    assert entropy.min().item() > 0.99 * math.log(4)


def test_no_hidden_layers_is_a_linear_policy() -> None:
    policy = build_policy(PolicySection(hidden_sizes=()), spec_of(DiscreteAction(2)))
    assert policy({"observation": torch.zeros(3, 4)}).params.shape == (3, 2)


def test_bytes_are_scaled_and_categories_are_one_hot() -> None:
    frame = ArrayInput(ArraySpec("f", "uint8", (2,)))
    assert torch.equal(frame(torch.tensor([[0, 255]], dtype=torch.uint8)), torch.tensor([[0.0, 1.0]]))
    kind = ArrayInput(ArraySpec("k", "uint8", (2,), num_categories=3))
    one_hot = kind(torch.tensor([[2, 0]], dtype=torch.uint8))
    assert torch.equal(one_hot, torch.tensor([[0.0, 0, 1, 1, 0, 0]]))


def test_a_category_out_of_range_is_zeros_not_a_crash() -> None:
    kind = ArrayInput(ArraySpec("k", "int64", (), num_categories=3))
    assert torch.equal(kind(torch.tensor([3, -1])), torch.zeros(2, 3))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float16"])
def test_every_dtype_of_the_wire_becomes_floats(dtype: str) -> None:
    array = ArrayInput(ArraySpec("x", dtype, (2,)))
    given = torch.ones(3, 2).to(getattr(torch, dtype))
    assert torch.equal(array(given), torch.ones(3, 2))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (spec_of(DiscreteAction(MAX_ACTIONS + 1)), "65537 actions"),
        (spec_of(BoxAction((0,), (), ())), "0 elements of the action"),
        (spec_of(DiscreteAction(2), ArraySpec("observation", "uint8", (MAX_INPUTS, 2))), "2097152 inputs"),
        (spec_of(DiscreteAction(2), ArraySpec("observation", "float32", (0,))), "0 inputs"),
        (EnvSpec("Blind-v0", (), DiscreteAction(2)), "no observation"),
    ],
)
def test_a_space_that_cannot_be_handled_is_the_users_error(spec: EnvSpec, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_policy(PolicySection(), spec)
