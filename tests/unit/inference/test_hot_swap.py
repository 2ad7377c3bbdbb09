"""Weights change between batches and never during one."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save

from services.inference.hot_swap import HotSwap
from shoal.errors import UserError
from shoal.policy.network import Choice, Policy, build_policy
from shoal.records import DiscreteAction, EnvSpec
from tests.unit.inference.tracer import NUM_INPUTS, POLICY, SPEC, snapshot, tensors, versions_seen


def swap_with_log() -> tuple[HotSwap, list[Policy]]:
    built: list[Policy] = []

    def build() -> Policy:
        built.append(build_policy(POLICY, SPEC))
        return built[-1]

    return HotSwap(build, torch.device("cpu")), built


def load(swap: HotSwap, version: int) -> None:
    swap.load(version, snapshot(version).data)


def seen(policy: Policy) -> set[float]:
    ones = {"observation": torch.ones(3, NUM_INPUTS)}
    everybody = torch.ones(3, dtype=torch.bool)
    acted = policy.act(ones, everybody, policy.initial_state(3, torch.device("cpu")), Choice(everybody))
    return versions_seen({name: tensor.numpy() for name, tensor in acted.outputs.items()})


def test_the_newest_version_is_used_from_the_next_batch_on() -> None:
    swap, _ = swap_with_log()
    load(swap, 1)
    assert swap.newest().version == 1
    load(swap, 2)
    load(swap, 3)
    loaded = swap.newest()
    assert loaded.version == 3
    assert seen(loaded.policy) == {3.0}


def test_what_a_batch_uses_is_never_written_to() -> None:
    swap, built = swap_with_log()
    load(swap, 1)
    for version in range(2, 20):
        in_use = swap.newest()
        load(swap, version)
        assert seen(in_use.policy) == {float(in_use.version)}
        if version % 3 == 0:
            load(swap, version + 1000)
            assert seen(in_use.policy) == {float(in_use.version)}
    assert len(built) == 3, "one in use, one offered and one to load into are enough"


def test_the_tracer_sees_weights_of_two_versions() -> None:
    # The control of all tests that rely on it.
    for name in ("policy_head.weight", "policy_head.bias", "log_std"):
        swap, _ = swap_with_log()
        swap.load(5, save(tensors(5) | {name: tensors(6)[name]}))
        assert seen(swap.newest().policy) != {5.0}


def test_weights_that_do_not_fit_change_nothing() -> None:
    swap, built = swap_with_log()
    load(swap, 1)
    for _ in range(5):
        with pytest.raises(UserError, match="log_std is missing"):
            swap.load(2, save({k: v for k, v in tensors(2).items() if k != "log_std"}))
    assert swap.newest().version == 1
    assert seen(swap.newest().policy) == {1.0}
    assert len(built) == 2, "the policy that the weights did not fit is used again"


def test_policies_that_act_need_no_gradients() -> None:
    swap, _ = swap_with_log()
    load(swap, 1)
    assert not any(parameter.requires_grad for parameter in swap.newest().policy.parameters())


def test_untrained_weights_are_for_policies_that_can_act_at_random() -> None:
    swap, _ = swap_with_log()
    with pytest.raises(UserError, match="epsilon"):
        swap.load(1, snapshot(1).data, untrained=True)
    discrete = EnvSpec("Discrete-v0", SPEC.observation, DiscreteAction(2))
    swap = HotSwap(lambda: build_policy(POLICY, discrete), torch.device("cpu"))
    data = save(dict(build_policy(POLICY, discrete).state_dict()))
    swap.load(1, data, untrained=True)
    assert swap.newest().untrained
    swap.load(2, data)
    assert not swap.newest().untrained
