"""The IMPALA loss: its value against plain loops, and what its gradient must and must not depend on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.algorithm import Batch, build_algorithm
from shoal.algorithms.impala.loss import impala_loss
from shoal.algorithms.impala.vtrace import vtrace
from shoal.config.algorithms import ImpalaConfig
from shoal.policy.distributions import Categorical
from shoal.policy.network import Policy, PolicyOutput

CONFIG = ImpalaConfig(discount=0.9, value_cost=0.7, entropy_cost=0.05)
NUM_STEPS, NUM_ENVS, NUM_ACTIONS = 5, 3, 4


class TablePolicy(nn.Module):
    """Logits and value of every row and environment are parameters of their own: gradients are per step."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        rows = NUM_STEPS + 1
        self.logits = nn.Parameter(torch.randn(rows, NUM_ENVS, NUM_ACTIONS, generator=generator))
        self.value = nn.Parameter(torch.randn(rows, NUM_ENVS, generator=generator))

    def forward(self, observation: dict[str, Tensor]) -> PolicyOutput:
        return PolicyOutput(self.logits, self.value)

    def distribution(self, params: Tensor) -> Categorical:
        return Categorical(params)


def table_policy() -> tuple[TablePolicy, Policy]:
    table = TablePolicy()
    return table, cast(Policy, table)


def make_batch() -> Batch:
    """Env 0 runs on; env 1 terminates at step 1; env 2 is truncated at step 2."""
    generator = torch.Generator().manual_seed(2)
    shape = (NUM_STEPS + 1, NUM_ENVS)
    none = torch.zeros(shape, dtype=torch.bool)
    terminated, truncated, first = none.clone(), none.clone(), none.clone()
    terminated[1, 1] = True
    truncated[2, 2] = True
    first[3, 1] = True
    first[4, 2] = True
    return Batch(
        observation={},
        action_SB=torch.randint(0, NUM_ACTIONS, shape, generator=generator),
        reward_SB=torch.randn(shape, generator=generator),
        terminated_SB=terminated,
        truncated_SB=truncated,
        first_SB=first,
        behaviour={"log_prob": -torch.rand(shape, generator=generator) * 2},
    )


AUTORESET = ((2, 1), (3, 2))


def test_value_against_plain_loops() -> None:
    table, policy = table_policy()
    batch = make_batch()
    log_probs = torch.log_softmax(table.logits.detach(), dim=-1)
    log_pi = log_probs.gather(-1, batch.action_SB.unsqueeze(-1)).squeeze(-1)
    valid = ~batch.first_SB[1:]
    value = table.value.detach()
    targets = vtrace(
        log_rho_TB=(log_pi - batch.behaviour["log_prob"])[:-1],
        reward_TB=batch.reward_SB[:-1],
        discount_TB=(~batch.terminated_SB[:-1]).float() * 0.9,
        value_SB=value,
        valid_TB=valid.float(),
        rho_clip=1.0,
        c_clip=1.0,
        trace_lambda=1.0,
    )
    policy_loss = value_loss = entropy = 0.0
    num_valid = 0
    for t in range(NUM_STEPS):
        for b in range(NUM_ENVS):
            if not valid[t, b]:
                continue
            num_valid += 1
            policy_loss -= float(targets.advantage_TB[t, b] * log_pi[t, b])
            value_loss += 0.5 * float(targets.vs_TB[t, b] - value[t, b]) ** 2
            entropy -= sum(float(p) * math.exp(float(p)) for p in log_probs[t, b])
    assert num_valid == NUM_STEPS * NUM_ENVS - len(AUTORESET)

    output = impala_loss(policy, batch, CONFIG)
    assert output.metrics["policy_loss"].item() == pytest.approx(policy_loss / num_valid, rel=1e-5)
    assert output.metrics["value_loss"].item() == pytest.approx(value_loss / num_valid, rel=1e-5)
    assert output.metrics["entropy"].item() == pytest.approx(entropy / num_valid, rel=1e-5)
    total = (policy_loss + 0.7 * value_loss - 0.05 * entropy) / num_valid
    assert output.loss.item() == pytest.approx(total, rel=1e-5)


def test_gradient_is_that_of_the_paper() -> None:
    """Value: V - v_s. Policy: rho A (p - onehot) when nothing else is asked for. Per step, over the mean."""
    table, policy = table_policy()
    batch = make_batch()
    config = CONFIG.model_copy(update={"entropy_cost": 0.0, "value_cost": 1.0})
    impala_loss(policy, batch, config).loss.backward()
    probs = torch.softmax(table.logits.detach(), dim=-1)
    log_pi = probs.log().gather(-1, batch.action_SB.unsqueeze(-1)).squeeze(-1)
    targets = vtrace(
        log_rho_TB=(log_pi - batch.behaviour["log_prob"])[:-1],
        reward_TB=batch.reward_SB[:-1],
        discount_TB=(~batch.terminated_SB[:-1]).float() * 0.9,
        value_SB=table.value.detach(),
        valid_TB=(~batch.first_SB[1:]).float(),
        rho_clip=1.0,
        c_clip=1.0,
        trace_lambda=1.0,
    )
    num_valid = NUM_STEPS * NUM_ENVS - len(AUTORESET)
    chosen = nn.functional.one_hot(batch.action_SB[:-1], NUM_ACTIONS)
    expected_logits = targets.advantage_TB.unsqueeze(-1) * (probs[:-1] - chosen) / num_valid
    expected_value = (table.value.detach()[:-1] - targets.vs_TB) / num_valid
    assert table.logits.grad is not None
    assert table.value.grad is not None
    torch.testing.assert_close(table.logits.grad[:-1], expected_logits)
    torch.testing.assert_close(table.value.grad[:-1], expected_value)
    assert table.logits.grad[-1].abs().max() == 0
    assert table.value.grad[-1].abs().max() == 0


def test_autoreset_steps_count_for_nothing() -> None:
    """Their action, reward and log probability may be anything; they get no gradient either."""
    table, policy = table_policy()
    batch = make_batch()
    reference = impala_loss(policy, batch, CONFIG)
    reference.loss.backward()
    assert table.logits.grad is not None
    assert table.value.grad is not None
    for t, b in AUTORESET:
        assert table.logits.grad[t, b].abs().max() == 0
        assert table.value.grad[t, b] == 0

    action, reward = batch.action_SB.clone(), batch.reward_SB.clone()
    log_mu = batch.behaviour["log_prob"].clone()
    for t, b in AUTORESET:
        action[t, b] = (action[t, b] + 1) % NUM_ACTIONS
        reward[t, b] = 1e9
        log_mu[t, b] = -1e9
    changed = replace(batch, action_SB=action, reward_SB=reward, behaviour={"log_prob": log_mu})
    torch.testing.assert_close(impala_loss(policy, changed, CONFIG).loss, reference.loss)


def test_termination_cuts_and_truncation_does_not() -> None:
    """V of the final observation reaches the step before it after a truncation only."""
    _, policy = table_policy()
    batch = make_batch()
    before = impala_loss(policy, batch, CONFIG).loss

    def moved(row: int, env: int) -> Tensor:
        table, other = table_policy()
        with torch.no_grad():
            table.value[row, env] += 10.0
        return impala_loss(other, batch, CONFIG).loss

    torch.testing.assert_close(moved(2, 1), before)
    assert abs(moved(3, 2) - before) > 0.1


def test_descending_raises_good_actions_and_fits_values() -> None:
    table, policy = table_policy()
    batch = make_batch()
    config = CONFIG.model_copy(update={"entropy_cost": 0.0})
    optimiser = torch.optim.SGD(table.parameters(), lr=0.5)
    first = impala_loss(policy, batch, config).metrics["value_loss"]
    for _ in range(200):
        optimiser.zero_grad()
        impala_loss(policy, batch, config).loss.backward()
        optimiser.step()
    last = impala_loss(policy, batch, config).metrics
    assert last["value_loss"] < 0.1 * first
    assert last["explained_variance"] > 0.5


def test_reward_scale_scales_rewards_and_nothing_else() -> None:
    _, policy = table_policy()
    batch = make_batch()
    scaled = impala_loss(policy, batch, CONFIG.model_copy(update={"reward_scale": 0.25}))
    by_hand = impala_loss(policy, replace(batch, reward_SB=batch.reward_SB * 0.25), CONFIG)
    torch.testing.assert_close(scaled.loss, by_hand.loss)


def test_metrics_are_detached_scalars() -> None:
    _, policy = table_policy()
    output = build_algorithm(CONFIG).loss(policy, make_batch())
    assert set(output.metrics) == {"policy_loss", "value_loss", "entropy", "mean_rho", "explained_variance"}
    assert not any(tensor.requires_grad for tensor in output.metrics.values())
    assert all(tensor.ndim == 0 for tensor in output.metrics.values())
    assert 0.0 < output.metrics["mean_rho"].item() <= 1.0


def test_a_batch_without_valid_steps_is_no_loss() -> None:
    _, policy = table_policy()
    batch = make_batch()
    output = impala_loss(policy, replace(batch, first_SB=torch.ones_like(batch.first_SB)), CONFIG)
    assert output.loss.item() == 0.0
