"""Epsilon over discrete actions: frequencies, and log probabilities of the mixture against plain sums."""

from __future__ import annotations

import math

import pytest
import torch

from shoal.config.network import PolicySection
from shoal.policy.distributions import Categorical
from shoal.policy.network import ActorCritic, Choice, build_policy
from shoal.records import ACTION_MASK, DiscreteAction, MultiDiscreteAction
from tests.unit.policy.stepping import VECTOR, mask_of, observe, spec_of


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(11)


def test_a_mixture_by_hand() -> None:
    pi = Categorical(torch.tensor([[0.0, math.log(3.0)]]))  # 1/4 and 3/4
    mixed = pi.explored(torch.tensor([0.4]))
    torch.testing.assert_close(mixed.log_probs.exp(), torch.tensor([[0.6 / 4 + 0.2, 0.6 * 3 / 4 + 0.2]]))


def test_a_masked_mixture_by_hand() -> None:
    allowed = torch.tensor([[True, False, True]])
    pi = Categorical(torch.tensor([[0.0, 5.0, math.log(3.0)]]), allowed)
    mixed = pi.explored(torch.tensor([0.4]))
    torch.testing.assert_close(mixed.log_probs.exp(), torch.tensor([[0.35, 0.0, 0.65]]))
    assert bool(mixed.log_probs.isfinite().all())


@pytest.mark.parametrize("allowed", [None, torch.tensor([True, False, True, True])])
def test_no_epsilon_changes_nothing_and_all_of_it_is_uniform(allowed: torch.Tensor | None) -> None:
    # The last is so unlikely that its probability underflows; its logarithm must not.
    pi = Categorical(torch.tensor([[1.0, 2.0, 3.0, -200.0]]).expand(2, 4), allowed)
    mixed = pi.explored(torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(mixed.log_probs[0], pi.log_probs[0])
    num = 4 if allowed is None else 3
    shown = mixed.log_probs[1] if allowed is None else mixed.log_probs[1][allowed]
    torch.testing.assert_close(shown, torch.full((num,), -math.log(num)))


def actor_critic(action: DiscreteAction | MultiDiscreteAction, num: int) -> ActorCritic:
    policy = build_policy(PolicySection(), spec_of(action, VECTOR, mask_of(num)))
    assert isinstance(policy, ActorCritic)
    with torch.no_grad():
        policy.policy_head.weight *= 100.0
    return policy


def test_actions_come_as_often_as_the_mixture_says_each_element_for_itself() -> None:
    num_rows, epsilon = 30_000, 0.3
    policy = actor_critic(MultiDiscreteAction((3, 2)), 5)
    seen = {
        name: tensor.expand(num_rows, *tensor.shape[1:]) for name, tensor in observe(policy.spec, 1).items()
    }
    seen[ACTION_MASK] = torch.tensor([1, 0, 1, 1, 1], dtype=torch.int8).expand(num_rows, 5)
    first = torch.zeros(num_rows, dtype=torch.bool)
    outputs = policy.act(seen, first, {}, Choice(epsilon=torch.full((num_rows,), epsilon))).outputs

    row = {name: tensor[:1].unsqueeze(0) for name, tensor in seen.items()}
    logits = policy(row, first[:1].unsqueeze(0), {}).params[0, 0].detach()
    one = torch.softmax(logits[[0, 2]], -1) * (1 - epsilon) + epsilon / 2
    two = torch.softmax(logits[3:], -1) * (1 - epsilon) + epsilon / 2
    chi_square = 0.0
    for i, a in enumerate((0, 2)):
        for b in range(2):
            expected = float(one[i] * two[b])
            taken = (outputs["action"] == torch.tensor([a, b])).all(-1)
            chi_square += (int(taken.sum()) - expected * num_rows) ** 2 / (expected * num_rows)
            log_probs = outputs["log_prob"][taken]
            torch.testing.assert_close(log_probs, torch.full_like(log_probs, math.log(expected)))
    print(f"chi-square of {num_rows} samples, 3 degrees of freedom: {chi_square:.2f}")
    assert chi_square < 16.27  # p = 0.001


@pytest.mark.parametrize(("action", "num"), [(DiscreteAction(5), 5), (MultiDiscreteAction((3, 2)), 5)])
def test_epsilon_is_a_rows_own_and_greedy_rows_have_none(
    action: DiscreteAction | MultiDiscreteAction, num: int
) -> None:
    policy = actor_critic(action, num)
    seen, first = observe(policy.spec, 4000), torch.zeros(4000, dtype=torch.bool)
    rows = torch.arange(4000)
    epsilon = torch.where(rows % 4 < 2, 0.0, 1.0)
    outputs = policy.act(seen, first, {}, Choice(rows % 2 == 0, epsilon)).outputs

    sequence = {name: tensor.unsqueeze(0) for name, tensor in seen.items()}
    params = policy(sequence, first.unsqueeze(0), {}).params[0]
    pi = policy.distribution(params, seen[ACTION_MASK])
    greedy = rows % 2 == 0
    assert torch.equal(outputs["action"][greedy], pi.mode()[greedy])
    own = greedy | (epsilon == 0.0)
    torch.testing.assert_close(outputs["log_prob"][own], pi.log_prob(outputs["action"])[own])
    # Uniform: as likely as there are allowed actions, whatever the policy says.
    parts = seen[ACTION_MASK].split([3, 2] if isinstance(action, MultiDiscreteAction) else [5], dim=-1)
    counts = [torch.where(part.sum(-1) == 0, part.shape[-1], part.sum(-1)) for part in parts]
    log_uniform = -torch.stack(counts).float().log().sum(0)
    torch.testing.assert_close(outputs["log_prob"][~own], log_uniform[~own])
