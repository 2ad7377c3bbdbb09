"""Heads compute in float32 under autocast, whatever the trunk computes in."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from shoal.config.network import PolicySection
from shoal.policy.mlp import Head
from shoal.policy.network import Choice, build_policy
from shoal.records import ArraySpec, DiscreteAction
from tests.unit.policy.stepping import BOX, spec_of

# So many features that a product in 8 bits of mantissa is visibly off.
WIDE = ArraySpec("observation", "float32", (64,))
KINDS = ("actor_critic", "q", "soft_actor_critic", "deterministic")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dueling", [True, False])
def test_every_head_is_in_full_precision(kind: str, dueling: bool, dtype: torch.dtype) -> None:
    action = BOX if "q" != kind != "actor_critic" else DiscreteAction(3)
    torch.manual_seed(3)
    config = PolicySection.model_validate({"kind": kind, "hidden_sizes": (32, 32), "dueling": dueling})
    policy = build_policy(config, spec_of(action, WIDE))
    heads = {name: module for name, module in policy.named_modules() if isinstance(module, Head)}
    assert heads, "none to look at"
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    for name, module in heads.items():
        module.register_forward_hook(_keep(seen, name))
    trunk_dtypes: list[torch.dtype] = []
    policy.trunk.encoder.register_forward_hook(lambda _m, _i, out: trunk_dtypes.append(out.dtype))
    observation = {WIDE.name: torch.randn(3, 2, 64)}
    first = torch.zeros(3, 2, dtype=torch.bool)
    with torch.autocast("cpu", dtype):
        policy(observation, first, {})
        if hasattr(policy, "q_values"):
            policy.q_values(observation, first, {}, torch.zeros(3, 2, 2, 2))
    assert set(trunk_dtypes) == {dtype}
    assert seen.keys() == heads.keys()
    for name, (given, out) in seen.items():
        exact = nn.functional.linear(given.float(), heads[name].weight, heads[name].bias)
        assert out.dtype == torch.float32, name
        assert torch.equal(out, exact), name


def _keep(seen: dict[str, tuple[Tensor, Tensor]], name: str):  # type: ignore[no-untyped-def]
    def hook(_module: nn.Module, inputs: tuple[Tensor], out: Tensor) -> None:
        seen[name] = (inputs[0], out)

    return hook


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_and_gradients_under_autocast(kind: str) -> None:
    action = BOX if "q" != kind != "actor_critic" else DiscreteAction(3)
    policy = build_policy(PolicySection.model_validate({"kind": kind}), spec_of(action, WIDE))
    observation = {WIDE.name: torch.randn(5, 64)}
    with torch.autocast("cpu", torch.bfloat16):
        acted = policy.act(observation, torch.zeros(5, dtype=torch.bool), {}, Choice())
        found = policy(
            {WIDE.name: observation[WIDE.name].unsqueeze(0)}, torch.zeros(1, 5, dtype=torch.bool), {}
        )
        sum(tensor.sum() for tensor in (found if isinstance(found, tuple) else (found,))).backward()
    floats = [tensor for tensor in acted.outputs.values() if tensor.is_floating_point()]
    assert {tensor.dtype for tensor in floats} <= {torch.float32}
    gradients = [p.grad for p in policy.trunk.parameters()]
    assert all(grad is not None and bool(grad.isfinite().all()) for grad in gradients)
