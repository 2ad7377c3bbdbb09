"""Asynchronous PPO: V-trace targets, and ratios to the policy at the beginning of the passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shoal.algorithms.appo.algorithm import Appo
from shoal.algorithms.appo.profile import AppoConfig
from shoal.algorithms.clipped import ADVANTAGE, OLD_LOG_PROB, OLD_VALUE, RETURN, RHO
from shoal.algorithms.impala.loss import impala_loss
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.algorithms.vtrace import vtrace
from tests.unit.algorithms.table_policy import TablePolicy, make_batch, places_of

CONFIG = AppoConfig(discount=0.9, trace_lambda=0.9, rho_clip=1.5, c_clip=1.0, normalise_advantages=False)


def test_targets_are_those_of_vtrace_before_the_passes() -> None:
    policy, batch = TablePolicy(), make_batch()
    log_prox, value = policy.log_probs(batch.action_SB)[:-1], policy.value.detach().clone()
    expected = vtrace(
        log_rho_TB=log_prox - batch.behaviour["log_prob"][:-1],
        reward_TB=batch.reward_SB[:-1],
        discount_TB=(~batch.terminated_SB[:-1]) * 0.9,
        value_SB=value,
        valid_TB=(~batch.first_SB[1:]).float(),
        rho_clip=1.5,
        c_clip=1.0,
        trace_lambda=0.9,
    )
    num_parts = 0
    for part in Appo(CONFIG, policy).passes(batch):
        num_parts += 1
        places, targets = places_of(part), part.targets
        torch.testing.assert_close(targets[ADVANTAGE] * targets[RHO], expected.advantage_TB[places])
        torch.testing.assert_close(targets[RETURN], expected.vs_TB[places])
        torch.testing.assert_close(targets[OLD_LOG_PROB], log_prox[places])
        torch.testing.assert_close(targets[OLD_VALUE], value[places])
        with torch.no_grad():
            policy.value += 1.0
            policy.logits.mul_(1.1)
    assert num_parts == CONFIG.epochs * CONFIG.minibatches


def test_the_first_step_is_impalas() -> None:
    """Before the policy has moved all ratios are 1: the gradient is that of IMPALA's loss."""
    batch = make_batch()
    appo = Appo(CONFIG.model_copy(update={"minibatches": 1}), TablePolicy())
    output = appo.loss(next(iter(appo.passes(batch))))
    output.loss.backward()
    policy = TablePolicy()
    impala = impala_loss(
        policy, batch, ImpalaConfig(discount=0.9, trace_lambda=0.9, rho_clip=1.5, c_clip=1.0)
    )
    impala.loss.backward()
    torch.testing.assert_close(appo.policy.get_parameter("logits").grad, policy.logits.grad)
    torch.testing.assert_close(appo.policy.get_parameter("value").grad, policy.value.grad)
    assert output.metrics["mean_rho"].item() == pytest.approx(impala.metrics["mean_rho"].item())
    assert output.metrics["approx_kl"].item() == 0.0


def test_normalised_advantages_are_weighed_by_rho_afterwards() -> None:
    appo = Appo(CONFIG.model_copy(update={"minibatches": 1, "normalise_advantages": True}), TablePolicy())
    batch = make_batch()
    plain, part = appo.targets(batch), next(iter(appo.passes(batch)))
    advantage = part.targets[ADVANTAGE][:, part.weight_B > 0]
    assert advantage.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert advantage.std(correction=0).item() == pytest.approx(1.0, abs=1e-4)
    torch.testing.assert_close(part.targets[RHO], plain[RHO][places_of(part)])


def test_old_environments_without_weight_do_not_count() -> None:
    weight = torch.tensor([1.0, 0.0, 0.0, 1.0])
    appo = Appo(CONFIG, TablePolicy())
    for part in appo.passes(replace(make_batch(), weight_B=weight)):
        appo.loss(part).loss.backward()
    gradient = appo.policy.get_parameter("logits").grad
    assert gradient is not None
    assert gradient[:, 1:3].abs().max() == 0
    assert gradient[:, 0].abs().max() > 0
    assert gradient[:, 3].abs().max() > 0
