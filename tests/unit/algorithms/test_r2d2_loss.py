"""The loss of R2D2 against plain loops, and its burn-in against stepping through the rows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from shoal.algorithms.batch import Batch
from shoal.algorithms.r2d2.algorithm import R2d2
from shoal.algorithms.r2d2.loss import burnt_in, r2d2_loss
from shoal.algorithms.r2d2.profile import R2d2Config
from shoal.config.network import PolicySection
from shoal.policy.network import Choice, QPolicy, build_policy
from shoal.records import DiscreteAction
from tests.unit.algorithms.ends import AUTORESET, slow_return
from tests.unit.algorithms.q_tables import NUM_ACTIONS, NUM_ENVS, NUM_STEPS, TableQ, make_batch
from tests.unit.policy.stepping import episode_starts, observe, random_state, spec_of, step_through

EPSILON = 0.01
CONFIG = R2d2Config(discount=0.9, n_step=2, rescale_epsilon=EPSILON, priority_max_share=0.75)


def h(x: float) -> float:
    return math.copysign(1.0, x) * (math.sqrt(abs(x) + 1.0) - 1.0) + EPSILON * x


def h_inverse(y: float) -> float:
    """As in the paper."""
    root = (math.sqrt(1 + 4 * EPSILON * (abs(y) + 1 + EPSILON)) - 1) / (2 * EPSILON)
    return math.copysign(1.0, y) * (root**2 - 1)


def test_value_and_priorities_against_plain_loops() -> None:
    policy, target, batch = TableQ(1), TableQ(2), make_batch()
    output = r2d2_loss(policy, target, batch, CONFIG)
    errors = {}
    for t in range(NUM_STEPS):
        for b in range(NUM_ENVS):
            if batch.first_SB[t + 1, b]:
                continue
            total, worth, row = slow_return(batch, t, b, 2, 0.9)
            best = max(range(NUM_ACTIONS), key=lambda a: policy.q[row, b, a].item())
            aim = h(total + worth * h_inverse(target.q[row, b, best].item()))
            errors[t, b] = aim - policy.q[t, b, batch.action_SB[t, b]].item()
    assert len(errors) == NUM_STEPS * NUM_ENVS - len(AUTORESET)
    weighted = [0.5 * batch.weight_B[b].item() * error**2 for (_, b), error in errors.items()]
    assert output.loss.item() == pytest.approx(sum(weighted) / len(errors), rel=1e-4)
    assert output.priority_B is not None
    for b in range(NUM_ENVS):
        own = [abs(error) for (_, env), error in errors.items() if env == b]
        mixed = 0.75 * max(own) + 0.25 * sum(own) / len(own)
        assert output.priority_B[b].item() == pytest.approx(mixed, rel=1e-4)


def recurrent(settings: dict[str, object]) -> QPolicy:
    spec = spec_of(DiscreteAction(NUM_ACTIONS))
    policy = build_policy(PolicySection.model_validate({"kind": "q", **settings}), spec)
    assert isinstance(policy, QPolicy)
    if policy.normaliser is not None:
        torch.nn.init.normal_(policy.normaliser.offset)
    return policy


def batch_for(policy: QPolicy) -> Batch:
    return replace(
        make_batch(),
        observation=observe(policy.spec, NUM_STEPS + 1, NUM_ENVS),
        first_SB=episode_starts(NUM_STEPS + 1, NUM_ENVS),
        state=random_state(policy, NUM_ENVS),
    )


KINDS: list[dict[str, object]] = [
    {"recurrent": "lstm"},
    {"recurrent": "gru", "frame_stack": 3},
    {"frame_stack": 2},
    {"recurrent": "gru", "frame_stack": 2, "normalise_observations": True},
    {},
]


@pytest.mark.parametrize("settings", KINDS)
@pytest.mark.parametrize("num_steps", [1, 2, 5])
def test_burn_in_leads_to_the_state_that_steps_lead_to(settings: dict[str, object], num_steps: int) -> None:
    policy = recurrent(settings)
    batch = batch_for(policy)
    rest = burnt_in(policy, batch, num_steps)
    acted = step_through(policy, batch.observation, batch.first_SB, batch.state, Choice())
    assert rest.state.keys() == {array.name for array in policy.state}
    for name, tensor in rest.state.items():
        torch.testing.assert_close(tensor, acted[num_steps - 1].state[name])
        assert not tensor.requires_grad
    assert len(rest.reward_SB) == len(rest.observation["observation"]) == NUM_STEPS + 1 - num_steps
    whole = policy(batch.observation, batch.first_SB, batch.state)
    torch.testing.assert_close(policy(rest.observation, rest.first_SB, rest.state), whole[num_steps:])


def test_each_network_burns_in_for_itself_and_the_burnt_in_steps_are_not_learned() -> None:
    """The loss is that of the later rows, each network with the state that it would have come to."""
    policy, target = recurrent({"recurrent": "lstm"}), recurrent({"recurrent": "lstm"})
    batch, config = batch_for(policy), CONFIG.model_copy(update={"burn_in": 3})
    output = r2d2_loss(policy, target, batch, config)

    class Fixed(TableQ):
        def __init__(self, q_SBA: Tensor) -> None:
            super().__init__(1)
            self.q = torch.nn.Parameter(q_SBA.detach()[3:])

    of_rows = (batch.observation, batch.first_SB, batch.state)
    later = batch.since(3, {})
    expected = r2d2_loss(Fixed(policy(*of_rows)), Fixed(target(*of_rows)), later, CONFIG)
    torch.testing.assert_close(output.loss, expected.loss)
    torch.testing.assert_close(output.priority_B, expected.priority_B)
    assert output.weight == later.valid_TB.sum()


def test_no_gradient_flows_through_the_burn_in() -> None:
    policy, target = recurrent({"recurrent": "lstm"}), recurrent({"recurrent": "lstm"})
    batch = batch_for(policy)
    batch = replace(batch, first_SB=torch.zeros_like(batch.first_SB))
    seen = batch.observation["observation"].requires_grad_()
    r2d2_loss(policy, target, batch, CONFIG.model_copy(update={"burn_in": 2})).loss.backward()
    assert seen.grad is not None
    assert seen.grad[:2].abs().max() == 0
    assert (seen.grad[2:-1].abs().amax((1, 2)) > 0).all()
    assert seen.grad[-1].abs().max() == 0


def test_the_target_follows_in_its_rhythm() -> None:
    policy = recurrent({"recurrent": "lstm"})
    algorithm = R2d2(CONFIG.model_copy(update={"target_every": 3}), policy)
    followed = []
    for _ in range(6):
        with torch.no_grad():
            policy.q_head.value[-1].bias.add_(1.0)
            algorithm.after_step()
        own, other = policy.state_dict(), algorithm.target.module.state_dict()
        followed.append(all(torch.equal(own[name], other[name]) for name in own))
    assert followed == [False, False, True, False, False, True]
    algorithm.loss(batch_for(policy)).loss.backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())
