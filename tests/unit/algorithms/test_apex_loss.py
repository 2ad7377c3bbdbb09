"""The loss of Ape-X against plain loops; what its gradient and its priorities must and must not depend on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from shoal.algorithms.apex.algorithm import Apex
from shoal.algorithms.apex.loss import apex_loss
from shoal.algorithms.apex.profile import ApexConfig
from shoal.algorithms.batch import Batch
from shoal.config.network import PolicySection
from shoal.policy.network import QPolicy, build_policy
from shoal.records import ACTION_MASK, DiscreteAction
from tests.unit.algorithms.ends import AUTORESET, slow_return
from tests.unit.algorithms.q_tables import NUM_ACTIONS, NUM_ENVS, NUM_STEPS, TableQ, make_batch
from tests.unit.policy.stepping import VECTOR, episode_starts, mask_of, observe, random_state, spec_of

CONFIG = ApexConfig(discount=0.9, n_step=3, huber_delta=1.5)


def slow_errors(
    policy: TableQ, target: TableQ, batch: Batch, config: ApexConfig
) -> dict[tuple[int, int], float]:
    """G - q of every step with a transition."""
    errors = {}
    for t in range(NUM_STEPS):
        for b in range(NUM_ENVS):
            if batch.first_SB[t + 1, b]:
                continue
            total, worth, row = slow_return(batch, t, b, config.n_step, config.discount)
            chooser = policy if config.double else target
            mask = batch.observation.get(ACTION_MASK)
            allowed = [a for a in range(NUM_ACTIONS) if mask is None or mask[row, b, a]]
            best = max(allowed or range(NUM_ACTIONS), key=lambda a: chooser.q[row, b, a].item())
            aim = total + worth * target.q[row, b, best].item()
            errors[t, b] = aim - policy.q[t, b, batch.action_SB[t, b]].item()
    return errors


def huber(error: float, delta: float) -> float:
    return 0.5 * error**2 if abs(error) <= delta else delta * (abs(error) - 0.5 * delta)


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 20])
@pytest.mark.parametrize("masked", [False, True])
def test_value_and_priorities_against_plain_loops(double: bool, n: int, masked: bool) -> None:
    policy, target, batch = TableQ(1), TableQ(2), make_batch()
    if masked:
        mask = torch.randint(0, 2, (NUM_STEPS + 1, NUM_ENVS, NUM_ACTIONS), dtype=torch.int8)
        batch = replace(batch, observation={ACTION_MASK: mask})
    config = CONFIG.model_copy(update={"n_step": n, "double": double})
    output = apex_loss(policy, target, batch, config)

    errors = slow_errors(policy, target, batch, config)
    assert len(errors) == NUM_STEPS * NUM_ENVS - len(AUTORESET)
    weighted = [batch.weight_B[b].item() * huber(error, 1.5) for (_, b), error in errors.items()]
    assert output.loss.item() == pytest.approx(sum(weighted) / len(errors), rel=1e-5)
    assert output.weight.item() == len(errors)
    assert output.priority_B is not None
    for b in range(NUM_ENVS):
        own = [abs(error) for (_, env), error in errors.items() if env == b]
        assert output.priority_B[b].item() == pytest.approx(sum(own) / len(own), rel=1e-5)
    mean = sum(map(abs, errors.values())) / len(errors)
    assert output.metrics["td_error"].item() == pytest.approx(mean, rel=1e-5)


def test_items_that_do_not_count_are_in_no_curve() -> None:
    policy, target, batch = TableQ(1), TableQ(2), make_batch()
    batch.weight_B[0] = 0.0
    output = apex_loss(policy, target, batch, CONFIG)
    errors = slow_errors(policy, target, batch, CONFIG)
    own = [abs(error) for (_, env), error in errors.items() if env]
    assert output.metrics["td_error"].item() == pytest.approx(sum(own) / len(own), rel=1e-5)


def test_gradient_is_the_clipped_error_of_the_action_taken() -> None:
    policy, target, batch = TableQ(1), TableQ(2), make_batch()
    apex_loss(policy, target, batch, CONFIG).loss.backward()
    errors = slow_errors(policy, target, batch, CONFIG)
    expected = torch.zeros_like(policy.q)
    for (t, b), error in errors.items():
        clipped = max(-1.5, min(1.5, error))
        expected[t, b, batch.action_SB[t, b]] = -clipped * batch.weight_B[b] / len(errors)
    assert policy.q.grad is not None
    torch.testing.assert_close(policy.q.grad, expected)
    assert target.q.grad is None


def test_autoreset_steps_count_for_nothing() -> None:
    policy, target, batch = TableQ(1), TableQ(2), make_batch()
    reference = apex_loss(policy, target, batch, CONFIG)
    action, reward = batch.action_SB.clone(), batch.reward_SB.clone()
    for t, b in AUTORESET:
        action[t, b] = (action[t, b] + 1) % NUM_ACTIONS
        reward[t, b] = float("nan")
    changed = apex_loss(policy, target, replace(batch, action_SB=action, reward_SB=reward), CONFIG)
    torch.testing.assert_close(changed.loss, reference.loss)
    torch.testing.assert_close(changed.priority_B, reference.priority_B)


def test_termination_cuts_and_truncation_does_not() -> None:
    policy, target, batch = TableQ(1), TableQ(2), make_batch()
    before = apex_loss(policy, target, batch, CONFIG).loss

    def moved(row: int, env: int) -> Tensor:
        other = TableQ(2)
        with torch.no_grad():
            other.q[row, env] += 10.0
        return apex_loss(policy, other, batch, CONFIG).loss

    torch.testing.assert_close(moved(2, 1), before)
    assert abs(moved(3, 2) - before) > 0.1


def test_too_old_items_do_not_count_but_get_priorities() -> None:
    policy, target, batch = TableQ(1), TableQ(2), make_batch()
    output = apex_loss(policy, target, replace(batch, weight_B=torch.tensor([1.0, 0.0, 0.0])), CONFIG)
    output.loss.backward()
    assert output.weight.item() == NUM_STEPS
    assert policy.q.grad is not None
    assert policy.q.grad[:, 1:].abs().max() == 0
    assert output.priority_B is not None
    assert (output.priority_B > 0).all()


def test_items_without_a_step_have_no_priority_and_those_without_error_a_small_one() -> None:
    policy, target, batch = TableQ(1), TableQ(2), make_batch()
    with torch.no_grad():
        policy.q.zero_()
        target.q.zero_()
    first = batch.first_SB.clone()
    first[1:, 0] = True
    output = apex_loss(policy, target, replace(batch, first_SB=first, reward_SB=0 * batch.reward_SB), CONFIG)
    assert output.priority_B is not None
    assert output.priority_B[0] == 0
    assert 0 < output.priority_B[1] < 1e-5
    nothing = replace(batch, first_SB=torch.ones_like(first))
    assert apex_loss(policy, target, nothing, CONFIG).loss.item() == 0


def test_transitions_of_a_table_have_the_errors_of_the_steps_they_were_made_of() -> None:
    spec = spec_of(DiscreteAction(NUM_ACTIONS), VECTOR, mask_of(NUM_ACTIONS))
    policy, target = (build_policy(PolicySection(kind="q"), spec) for _ in range(2))
    assert isinstance(policy, QPolicy)
    assert isinstance(target, QPolicy)
    whole = replace(make_batch(), observation=observe(spec, NUM_STEPS + 1, NUM_ENVS))
    # Of a sequence whose rows have the values that the networks give them.
    tables = []
    for network in (policy, target):
        table = TableQ(1)
        table.q = nn.Parameter(network(whole.observation, whole.first_SB, {}).detach())
        tables.append(table)
    errors = slow_errors(tables[0], tables[1], whole, CONFIG)

    returns = [slow_return(whole, 0, b, CONFIG.n_step, CONFIG.discount) for b in range(NUM_ENVS)]
    reward, discount, row = (torch.tensor(values) for values in zip(*returns, strict=True))
    rows = torch.stack([torch.zeros_like(row), row])
    none = torch.zeros(2, NUM_ENVS, dtype=torch.bool)
    pairs = replace(
        whole,
        observation={name: seen[rows, torch.arange(NUM_ENVS)] for name, seen in whole.observation.items()},
        action_SB=whole.action_SB[:2],
        reward_SB=torch.stack([reward, 0 * reward]),
        discount_SB=torch.stack([discount, 0 * discount]),
        terminated_SB=none,
        truncated_SB=none,
        first_SB=none,
    )
    output = apex_loss(policy, target, pairs, CONFIG)
    assert output.priority_B is not None
    expected = [abs(errors[0, b]) for b in range(NUM_ENVS)]
    assert output.priority_B.tolist() == pytest.approx(expected, rel=1e-4)
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())
    assert all(parameter.grad is None for parameter in target.parameters())


@pytest.mark.parametrize("settings", [{}, {"frame_stack": 3}, {"recurrent": "gru", "dueling": False}])
def test_every_parameter_learns_and_the_target_follows_in_its_rhythm(settings: dict[str, object]) -> None:
    spec = spec_of(DiscreteAction(NUM_ACTIONS))
    policy = build_policy(PolicySection.model_validate({"kind": "q", **settings}), spec)
    algorithm = Apex(CONFIG.model_copy(update={"target_every": 2}), policy)
    batch = replace(
        make_batch(),
        observation=observe(spec, NUM_STEPS + 1, NUM_ENVS),
        first_SB=episode_starts(NUM_STEPS + 1, NUM_ENVS),
        state=random_state(policy, NUM_ENVS),
    )
    algorithm.loss(batch).loss.backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())
    assert not any(parameter.requires_grad for parameter in algorithm.target.parameters())

    followed = []
    for _ in range(5):
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(1.0)
            algorithm.after_step()
        pairs = zip(policy.parameters(), algorithm.target.parameters(), strict=True)
        followed.append(all(torch.equal(one, other) for one, other in pairs))
    assert followed == [False, True, False, True, False]


def test_the_rhythm_of_the_target_is_part_of_the_state() -> None:
    spec = spec_of(DiscreteAction(NUM_ACTIONS))
    policy = build_policy(PolicySection(kind="q"), spec)
    algorithm = Apex(CONFIG, policy)
    for _ in range(7):
        algorithm.after_step()
    assert algorithm.state_dict()["num_steps.num"].item() == 7
    assert algorithm.to("meta").num_steps.num.item() == 7
