"""The IMPALA loss: its value against plain loops, and what its gradient must and must not depend on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.impala.algorithm import Impala
from shoal.algorithms.impala.loss import impala_loss
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.algorithms.vtrace import vtrace
from shoal.config.network import PolicySection
from shoal.policy.network import ActorCritic, build_policy
from shoal.records import ACTION_MASK, ActionSpec, DiscreteAction, MultiDiscreteAction
from tests.unit.algorithms.acted import acted_batch
from tests.unit.algorithms.ends import AUTORESET
from tests.unit.algorithms.table_policy import NUM_ACTIONS, NUM_ENVS, NUM_STEPS, TablePolicy, make_batch
from tests.unit.policy.stepping import VECTOR, episode_starts, mask_of, observe, spec_of

CONFIG = ImpalaConfig(discount=0.9, value_cost=0.7, entropy_cost=0.05)


def test_value_against_plain_loops() -> None:
    policy = TablePolicy()
    batch = make_batch()
    log_probs = torch.log_softmax(policy.logits.detach(), dim=-1)
    log_pi = policy.log_probs(batch.action_SB)
    valid = ~batch.first_SB[1:]
    value = policy.value.detach()
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
    policy = TablePolicy()
    batch = make_batch()
    config = CONFIG.model_copy(update={"entropy_cost": 0.0, "value_cost": 1.0})
    impala_loss(policy, batch, config).loss.backward()
    probs = torch.softmax(policy.logits.detach(), dim=-1)
    targets = vtrace(
        log_rho_TB=(policy.log_probs(batch.action_SB) - batch.behaviour["log_prob"])[:-1],
        reward_TB=batch.reward_SB[:-1],
        discount_TB=(~batch.terminated_SB[:-1]).float() * 0.9,
        value_SB=policy.value.detach(),
        valid_TB=(~batch.first_SB[1:]).float(),
        rho_clip=1.0,
        c_clip=1.0,
        trace_lambda=1.0,
    )
    num_valid = NUM_STEPS * NUM_ENVS - len(AUTORESET)
    chosen = nn.functional.one_hot(batch.action_SB[:-1], NUM_ACTIONS)
    expected_logits = targets.advantage_TB.unsqueeze(-1) * (probs[:-1] - chosen) / num_valid
    expected_value = (policy.value.detach()[:-1] - targets.vs_TB) / num_valid
    assert policy.logits.grad is not None
    assert policy.value.grad is not None
    torch.testing.assert_close(policy.logits.grad[:-1], expected_logits)
    torch.testing.assert_close(policy.value.grad[:-1], expected_value)
    assert policy.logits.grad[-1].abs().max() == 0
    assert policy.value.grad[-1].abs().max() == 0


def test_autoreset_steps_count_for_nothing() -> None:
    """Their action, reward and log probability may be anything; they get no gradient either."""
    policy = TablePolicy()
    batch = make_batch()
    reference = impala_loss(policy, batch, CONFIG)
    reference.loss.backward()
    assert policy.logits.grad is not None
    assert policy.value.grad is not None
    for t, b in AUTORESET:
        assert policy.logits.grad[t, b].abs().max() == 0
        assert policy.value.grad[t, b] == 0

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
    policy = TablePolicy()
    batch = make_batch()
    before = impala_loss(policy, batch, CONFIG).loss

    def moved(row: int, env: int) -> Tensor:
        other = TablePolicy()
        with torch.no_grad():
            other.value[row, env] += 10.0
        return impala_loss(other, batch, CONFIG).loss

    torch.testing.assert_close(moved(2, 1), before)
    assert abs(moved(3, 2) - before) > 0.1


def test_descending_raises_good_actions_and_fits_values() -> None:
    policy = TablePolicy()
    batch = make_batch()
    config = CONFIG.model_copy(update={"entropy_cost": 0.0})
    optimiser = torch.optim.SGD(policy.parameters(), lr=0.5)
    first = impala_loss(policy, batch, config).metrics["value_loss"]
    for _ in range(200):
        optimiser.zero_grad()
        impala_loss(policy, batch, config).loss.backward()
        optimiser.step()
    last = impala_loss(policy, batch, config).metrics
    assert last["value_loss"] < 0.1 * first
    assert last["explained_variance"] > 0.5


def test_environments_without_weight_do_not_count() -> None:
    policy, batch = TablePolicy(), make_batch()
    weight = torch.ones(NUM_ENVS)
    weight[1:] = 0.0
    output = impala_loss(policy, replace(batch, weight_B=weight), CONFIG)
    output.loss.backward()
    assert policy.logits.grad is not None
    assert policy.logits.grad[:, 1:].abs().max() == 0
    assert policy.logits.grad[:, 0].abs().max() > 0
    alone = impala_loss(policy, batch.take(slice(0, 1)), CONFIG)
    torch.testing.assert_close(alone.loss, output.loss)


def test_metrics_are_detached_scalars() -> None:
    policy = TablePolicy()
    output = impala_loss(policy, make_batch(), CONFIG)
    assert set(output.metrics) == {
        "policy_loss",
        "value_loss",
        "entropy",
        "advantage_deviation",
        "mean_rho",
        "explained_variance",
    }
    assert not any(tensor.requires_grad for tensor in output.metrics.values())
    assert all(tensor.ndim == 0 for tensor in output.metrics.values())
    assert 0.0 < output.metrics["mean_rho"].item() <= 1.0


def test_a_batch_without_valid_steps_is_no_loss() -> None:
    policy = TablePolicy()
    batch = make_batch()
    output = impala_loss(policy, replace(batch, first_SB=torch.ones_like(batch.first_SB)), CONFIG)
    assert output.loss.item() == 0.0


def test_forbidden_actions_get_no_gradient_and_no_entropy() -> None:
    policy = TablePolicy()
    batch = make_batch()
    mask = torch.ones(NUM_STEPS + 1, NUM_ENVS, NUM_ACTIONS, dtype=torch.int8)
    mask.scatter_(-1, ((batch.action_SB + 1) % NUM_ACTIONS).unsqueeze(-1), 0)
    output = impala_loss(policy, replace(batch, observation=batch.observation | {ACTION_MASK: mask}), CONFIG)
    output.loss.backward()

    assert policy.logits.grad is not None
    assert policy.logits.grad[mask == 0].abs().max() == 0
    assert policy.logits.grad[:-1][mask[:-1] == 1].abs().max() > 0
    # As if there were one action less.
    assert 0.0 < output.metrics["entropy"].item() < math.log(NUM_ACTIONS - 1)


@pytest.mark.parametrize(("action", "num"), [(DiscreteAction(5), 5), (MultiDiscreteAction((2, 3)), 5)])
@pytest.mark.parametrize("settings", [{}, {"recurrent": "lstm", "frame_stack": 3}])
def test_what_the_policy_did_itself_is_on_policy(
    action: ActionSpec, num: int, settings: dict[str, object]
) -> None:
    """Acted step by step with masks and memory, learned from as an unroll: all ratios are 1."""
    spec = spec_of(action, VECTOR, mask_of(num))
    policy = build_policy(PolicySection.model_validate(settings), spec)
    assert isinstance(policy, ActorCritic)
    batch = acted_batch(policy, observe(spec, 6, 4), episode_starts(6, 4))
    # Neither clip is reached.
    output = impala_loss(policy, batch, CONFIG.model_copy(update={"rho_clip": 9.0, "c_clip": 9.0}))
    assert output.metrics["mean_rho"].item() == pytest.approx(1.0, abs=1e-5)
    output.loss.backward()
    assert all(
        parameter.grad is not None and parameter.grad.isfinite().all() for parameter in policy.parameters()
    )


def test_steps_shrink_with_what_advantages_of_all_learners_deviate_by() -> None:
    """The factor is made of the metric alone, and so it is alike on all learners."""
    policy, batch = TablePolicy(), make_batch()
    impala = Impala(CONFIG.model_copy(update={"advantage_noise": 0.5}), policy)
    output = impala.loss(batch)
    targets = vtrace(
        log_rho_TB=(policy.log_probs(batch.action_SB) - batch.behaviour["log_prob"])[:-1],
        reward_TB=batch.reward_SB[:-1],
        discount_TB=(~batch.terminated_SB[:-1]).float() * 0.9,
        value_SB=policy.value.detach(),
        valid_TB=batch.valid_TB,
        rho_clip=1.0,
        c_clip=1.0,
        trace_lambda=1.0,
    )
    counted = targets.advantage_TB[batch.valid_TB > 0]
    deviation = float(counted.std(correction=0))
    assert output.metrics["advantage_deviation"].item() == pytest.approx(deviation, rel=1e-4)
    assert impala.step_factor(output.metrics) == pytest.approx(deviation**2 / (deviation**2 + 0.25), rel=1e-4)
    assert Impala(CONFIG, policy).step_factor(output.metrics) == 1.0
