"""Weights to bytes and back; weights of another policy are refused as a whole."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load, save

from shoal.config.network import PolicySection
from shoal.errors import UserError
from shoal.policy.network import Choice, Policy, build_policy
from shoal.policy.weights import load_policy_arrays, load_policy_bytes
from shoal.records import ArraySpec, BoxAction, DiscreteAction, EnvSpec

OBSERVATION = (ArraySpec("observation", "float32", (4,)),)
SPEC = EnvSpec("Test-v0", OBSERVATION, DiscreteAction(2))


def policy_of(hidden: tuple[int, ...] = (8, 8), spec: EnvSpec = SPEC) -> Policy:
    return build_policy(PolicySection(hidden_sizes=hidden), spec)


def state(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.state_dict().items()}


@pytest.mark.parametrize("spec", [SPEC, EnvSpec("Box-v0", OBSERVATION, BoxAction((2,), (-1, -1), (1, 1)))])
def test_round_trip(spec: EnvSpec) -> None:
    source, target = policy_of(spec=spec), policy_of(spec=spec)
    load_policy_bytes(target, save(source.state_dict()))

    arguments = {"observation": torch.randn(3, 5, 4)}, torch.zeros(3, 5, dtype=torch.bool), {}
    assert torch.equal(source(*arguments).params, target(*arguments).params)
    assert torch.equal(source(*arguments).value, target(*arguments).value)


def test_arrays_are_loaded_as_bytes_are() -> None:
    source, target = policy_of(), policy_of()
    load_policy_arrays(target, {name: tensor.numpy() for name, tensor in source.state_dict().items()})
    assert all(torch.equal(tensor, target.state_dict()[name]) for name, tensor in source.state_dict().items())
    with pytest.raises(UserError, match=r"weights of another policy: .*float32\[16\]"):
        load_policy_arrays(
            target, {name: tensor.numpy() for name, tensor in policy_of((16, 8)).state_dict().items()}
        )


@pytest.mark.parametrize("kind", ["actor_critic", "q", "soft_actor_critic", "deterministic"])
@pytest.mark.parametrize("recurrent", ["none", "lstm", "gru"])
@pytest.mark.parametrize("is_published", [False, True])
def test_every_kind_acts_the_same_after_a_round_trip(kind: str, recurrent: str, is_published: bool) -> None:
    box = BoxAction((2,), (-1, -1), (1, 1))
    action = box if kind in ("soft_actor_critic", "deterministic") else DiscreteAction(3)
    spec = EnvSpec("Test-v0", (*OBSERVATION, ArraySpec("image", "uint8", (36, 36))), action)
    config = PolicySection.model_validate({"kind": kind, "recurrent": recurrent, "frame_stack": 2})
    source, target = build_policy(config, spec), build_policy(config, spec)
    weights = source.state_dict()
    if is_published:
        weights = {name: tensor for name, tensor in weights.items() if source.acts_with(name)}
    load_policy_bytes(target, save(weights))

    seen = {"observation": torch.randn(5, 4), "image": torch.randint(0, 256, (5, 36, 36), dtype=torch.uint8)}
    first, choice = torch.ones(5, dtype=torch.bool), Choice(greedy=torch.ones(5, dtype=torch.bool))
    one, other = (
        policy.act(seen, first, policy.initial_state(5, torch.device("cpu")), choice)
        for policy in (source, target)
    )
    for ours, theirs in ((one.outputs, other.outputs), (one.state, other.state)):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_policy_stays_trainable() -> None:
    policy = policy_of()
    load_policy_bytes(policy, save(policy_of().state_dict()))
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in policy.parameters())


def test_another_shape_is_named_and_nothing_is_loaded() -> None:
    policy = policy_of()
    before = state(policy)
    with pytest.raises(
        UserError, match=r"trunk\.encoder\.hidden\.0\.bias is float32\[16\] instead of float32\[8\]"
    ):
        load_policy_bytes(policy, save(policy_of((16, 8)).state_dict()))
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())


def test_some_of_what_only_losses_use_is_not_enough() -> None:
    weights = {name: tensor for name, tensor in policy_of().state_dict().items() if name != "value_head.bias"}
    with pytest.raises(UserError, match=r"value_head\.bias is missing"):
        load_policy_bytes(policy_of(), save(weights))


def test_missing_and_unknown_weights_are_named() -> None:
    with pytest.raises(UserError, match=r"trunk\.encoder\.hidden\.2\.bias is missing"):
        load_policy_bytes(policy_of((8, 8)), save(policy_of((8,)).state_dict()))
    with pytest.raises(UserError, match=r"trunk\.encoder\.hidden\.2\.bias is not a weight of this policy"):
        load_policy_bytes(policy_of((8,)), save(policy_of((8, 8)).state_dict()))


def test_another_dtype_is_refused() -> None:
    policy = policy_of()
    tensors = load(save(policy.state_dict()))
    tensors["value_head.bias"] = tensors["value_head.bias"].double()
    with pytest.raises(UserError, match=r"value_head\.bias is float64\[1\] instead of float32\[1\]"):
        load_policy_bytes(policy, save(tensors))


def test_many_differences_are_counted_not_listed() -> None:
    with pytest.raises(UserError, match=r"and \d+ more"):
        load_policy_bytes(policy_of((8, 8, 8)), save(policy_of((4, 4, 4)).state_dict()))


@pytest.mark.parametrize("cut", [0, 5, 100, -1])
def test_what_is_no_safetensors_file_is_refused(cut: int) -> None:
    policy = policy_of()
    with pytest.raises(UserError, match="not a safetensors file"):
        load_policy_bytes(policy, save(policy.state_dict())[:cut])
