"""The best action of every kind is the greedy one of `act`, with the parameters that it follows from."""

from __future__ import annotations

import pytest
import torch

from shoal.config.network import PolicySection
from shoal.policy.network import Choice, Policy, build_policy
from shoal.records import ACTION_MASK, ActionSpec, DiscreteAction, MultiDiscreteAction
from tests.unit.policy.stepping import (
    BOX,
    MIXED,
    UNBOUNDED,
    episode_starts,
    mask_of,
    observe,
    random_state,
    spec_of,
)

KINDS: list[tuple[str, ActionSpec, int]] = [
    ("actor_critic", DiscreteAction(4), 4),
    ("actor_critic", MultiDiscreteAction((3, 2, 4)), 9),
    ("actor_critic", UNBOUNDED, 0),
    ("q", DiscreteAction(4), 4),
    ("soft_actor_critic", BOX, 0),
    ("deterministic", BOX, 0),
]


def build(kind: str, action: ActionSpec, num_masked: int) -> Policy:
    torch.manual_seed(3)
    masks = [mask_of(num_masked)] if num_masked else []
    settings = {"kind": kind, "recurrent": "lstm", "recurrent_size": 8, "frame_stack": 2}
    policy = build_policy(PolicySection.model_validate(settings), spec_of(action, *MIXED, *masks))
    with torch.no_grad():
        # Fresh heads are near zero: louder ones tell actions apart.
        for name, parameter in policy.named_parameters():
            if "head" in name:
                parameter.mul_(30.0)
    return policy


@pytest.mark.parametrize(("kind", "action", "num_masked"), KINDS)
def test_it_is_the_greedy_action(kind: str, action: ActionSpec, num_masked: int) -> None:
    policy = build(kind, action, num_masked)
    seen, first, state = observe(policy.spec, 16), episode_starts(5, 16)[3], random_state(policy, 16)
    with torch.inference_mode():
        acted = policy.act(seen, first, state, Choice(greedy=torch.ones(16, dtype=torch.bool)))
        best = policy.best(seen, first, state)
    assert torch.equal(best.action, acted.outputs["action"])
    assert best.action.dtype == getattr(torch, policy.outputs[0].dtype)
    assert best.state.keys() == acted.state.keys()
    assert all(torch.equal(best.state[name], tensor) for name, tensor in acted.state.items())


@pytest.mark.parametrize(("kind", "action", "num_masked"), KINDS)
def test_parameters_are_those_before_any_mask(kind: str, action: ActionSpec, num_masked: int) -> None:
    policy = build(kind, action, num_masked)
    seen, first, state = observe(policy.spec, 16), episode_starts(5, 16)[3], random_state(policy, 16)
    with torch.inference_mode():
        best = policy.best(seen, first, state)
        # One row of an unroll, as the learner computes it.
        unrolled = policy({name: array[None] for name, array in seen.items()}, first[None], state)
    if kind == "actor_critic":
        unrolled = unrolled.params
    elif kind == "deterministic":
        assert best.params.abs().max() <= 1.0
        torch.testing.assert_close(best.action, unrolled[0])
        return
    torch.testing.assert_close(best.params, unrolled[0])
    if num_masked:
        assert (seen[ACTION_MASK] == 0).any(), "nothing was forbidden: the test shows nothing"
        assert best.params.min() > -1e6
