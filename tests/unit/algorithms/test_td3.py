"""TD3: losses against plain loops and by hand, smoothed targets, the delay of policy and targets."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from services.learner.trainer import Trainer
from shoal.algorithms.algorithm import build_algorithm
from shoal.algorithms.td3.algorithm import Td3
from shoal.algorithms.td3.loss import smoothed
from shoal.algorithms.td3.profile import Td3Config
from shoal.policy.network import DeterministicPolicy
from shoal.policy.twin_q import StackedCritics
from tests.unit.algorithms.continuous import (
    CASES,
    SlowCritics,
    deterministic_policy,
    history,
    near,
    random_actions,
    same_noise,
    transitions,
    transitions_by_loops,
    unrolls,
)
from tests.unit.algorithms.ends import AUTORESET

DISCOUNT, NOISE = 0.9, 1.5


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(6)


@pytest.fixture
def _same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    same_noise(monkeypatch, NOISE)


def make_td3(policy: DeterministicPolicy, **settings: object) -> Td3:
    td3 = build_algorithm(Td3Config.model_validate({"discount": DISCOUNT, **settings}), policy)
    assert isinstance(td3, Td3)
    with torch.no_grad():
        for parameter in td3.target.parameters():
            parameter.mul_(0.7).add_(0.01)
    return td3


def at_its_turn(td3: Td3) -> Td3:
    """The next step is one of the policy too."""
    td3.steps.num.fill_(1)
    return td3


@pytest.mark.usefixtures("_same_noise")
@pytest.mark.parametrize(("kind", "n", "memory"), CASES)
def test_losses_against_plain_loops(kind: str, n: int, memory: dict[str, object]) -> None:
    policy = deterministic_policy(**memory)
    batch = unrolls(policy) if kind == "unrolls" else transitions()
    td3 = at_its_turn(make_td3(policy, n_step=n, target_noise=0.2, target_noise_clip=0.25))
    found = td3.loss(batch)

    def q_of(network: DeterministicPolicy, t: int, b: int, action: Tensor) -> list[float]:
        rows = history(batch, t, b)
        return [float(value[-1, 0]) for value in network.q_values(*rows, action.expand(*rows[1].shape, 3))]

    low, high = policy.bounds.low.tolist(), policy.bounds.high.tolist()
    critics, actor = SlowCritics(batch), 0.0
    steps = transitions_by_loops(batch, n, DISCOUNT)
    with torch.no_grad():
        for t, b, reward, worth, row in steps:
            chosen = td3.target.module(*history(batch, row, b))[-1, 0].tolist()
            # 1.5 x 0.2 is clipped to 0.25 half widths, and the action to its bounds.
            noisy = [
                min(value + 0.25 * (highest - lowest) / 2, highest)
                for value, lowest, highest in zip(chosen, low, high, strict=True)
            ]
            y = reward + worth * min(q_of(td3.target.module, row, b, torch.tensor(noisy)))
            q = q_of(policy, t, b, batch.action_SB[t, b])
            weight = critics.add(b, q, y)
            actor -= weight * q_of(policy, t, b, policy(*history(batch, t, b))[-1, 0])[0]

    critics.check(found)
    assert found.metrics["actor_loss"].item() == near(actor / len(steps))
    assert found.loss.item() == near((critics.loss + actor) / len(steps))


def test_target_by_hand() -> None:
    """Constant critics: Q' is 3 and 5, Q is 1 and 2. The second transition ended."""
    policy = deterministic_policy()
    td3 = make_td3(policy)
    with torch.no_grad():
        for critics, values in ((policy.critics, (1.0, 2.0)), (td3.target.module.critics, (3.0, 5.0))):
            assert isinstance(critics, StackedCritics)
            for parameter in critics.parameters():
                parameter.zero_()
            critics.value_head.bias.copy_(torch.tensor(values).unsqueeze(1))
    batch = replace(transitions(2), reward_SB=torch.tensor([[7.0, 7.0], [0.0, 0.0]]), weight_B=torch.ones(2))
    found = td3.loss(batch)
    assert found.priority_B is not None
    assert found.priority_B.tolist() == pytest.approx([7.0 + 0.81 * 3.0 - 1.5, 7.0 - 1.5], rel=1e-5)


def test_noise_on_target_actions_is_clipped_and_stays_within_the_bounds() -> None:
    policy = deterministic_policy()
    bounds = policy.bounds
    action = random_actions(1, 5000)
    noisy = smoothed(policy, action, Td3Config(target_noise=0.2, target_noise_clip=0.3))
    assert bool(((noisy >= bounds.low) & (noisy <= bounds.high)).all())
    moved = (noisy - action) / bounds.half_width
    assert float(moved.abs().max()) == pytest.approx(0.3, abs=1e-4)
    inside = ((bounds.to_unit(action).abs() < 0.7) & (moved.abs() < 0.29)).all(-1)
    # A normal of deviation 0.2, cut off at 1.45 deviations, has a deviation of 0.148.
    torch.testing.assert_close(moved[inside].std(0), torch.full((3,), 0.148), atol=0.01, rtol=0)
    still = smoothed(policy, action, Td3Config(target_noise=0.0))
    torch.testing.assert_close(still, action, atol=1e-5, rtol=1e-5)


def test_each_part_learns_from_its_own_loss_alone() -> None:
    """The critics' gradient is the same with and without the policy's loss; the actor's is that of Q."""
    policy, batch = deterministic_policy(), transitions()
    td3 = make_td3(policy, target_noise=0.0)
    torch.autograd.backward(td3.loss(batch).loss)
    alone = {name: parameter.grad for name, parameter in policy.named_parameters()}
    assert all((grad is None) != name.startswith("critics.") for name, grad in alone.items())

    policy.zero_grad()
    torch.autograd.backward(at_its_turn(td3).loss(batch).loss)
    both = {name: parameter.grad for name, parameter in policy.named_parameters()}
    still = copy.deepcopy(policy.critics)
    policy.zero_grad()
    rows = ({"observation": batch.observation["observation"][:1]}, batch.first_SB[:1], {})
    q, _ = policy.q_values(*rows, policy(*rows), still)
    torch.autograd.backward(-(q * batch.weight_B).sum() / 5)
    for name, parameter in policy.named_parameters():
        expected = alone[name] if name.startswith("critics.") else parameter.grad
        assert expected is not None
        assert float(expected.abs().sum()) > 0, name
        torch.testing.assert_close(both[name], expected, msg=name)
    assert all(parameter.grad is None for parameter in td3.target.parameters())


def test_steps_that_do_not_count() -> None:
    policy = deterministic_policy()
    td3 = at_its_turn(make_td3(policy, n_step=2, target_noise=0.0))
    batch = replace(unrolls(policy), weight_B=torch.tensor([1.0, 1.0, 0.0]))
    spoilt = batch.reward_SB.clone()
    for t, b in AUTORESET:
        spoilt[t, b] = 1e6
    spoilt[:, 2] = -1e6
    clean = td3.loss(batch)
    torch.testing.assert_close(clean.loss, td3.loss(replace(batch, reward_SB=spoilt)).loss)
    assert clean.weight.item() == 2 * 6 - 1


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("delay", [1, 2, 3])
def test_policy_and_targets_move_with_a_delay(delay: int, accumulate: int) -> None:
    """However many parts a batch is trained in: steps count, not losses."""
    td3 = make_td3(deterministic_policy(), policy_delay=delay, learning_rate=0.01)
    trainer = Trainer(td3, 1e9, accumulate=accumulate)
    for step in range(1, 7):
        before = copy.deepcopy(td3.state_dict())
        outcome = trainer.step(transitions())
        moved = {name for name, tensor in td3.state_dict().items() if not torch.equal(tensor, before[name])}
        is_policys = step % delay == 0
        assert any(name.startswith("policy.critics.") for name in moved)
        for part in (
            "policy.trunk.",
            "policy.policy_head.",
            "target.module.trunk.",
            "target.module.critics.",
        ):
            assert any(name.startswith(part) for name in moved) == is_policys, f"{part} at step {step}"
        assert ("actor_loss" in outcome.metrics) == is_policys
    assert int(td3.steps.num) == 6


def test_targets_follow_at_their_rate() -> None:
    td3 = at_its_turn(make_td3(deterministic_policy(), target_rate=0.25))
    before = [parameter.clone() for parameter in td3.target.parameters()]
    Trainer(td3, 1e9).step(transitions())
    after = zip(before, td3.target.parameters(), td3.policy.parameters(), strict=True)
    for old, new, source in after:
        torch.testing.assert_close(new, 0.75 * old + 0.25 * source.detach())


def test_observations_look_the_same_to_the_target() -> None:
    td3 = make_td3(deterministic_policy(normalise_observations=True))
    normaliser, batch = td3.policy.normaliser, transitions()
    assert normaliser is not None
    normaliser.observe(normaliser.moments(batch.observation))
    trainer = Trainer(td3, 1e9)
    trainer.step(batch)
    assert td3.target.module.normaliser is normaliser
    assert bool((normaliser.scale != 1.0).any())
    trainer.load_state(trainer.state())


def test_groups() -> None:
    td3 = make_td3(deterministic_policy(), learning_rate=0.01)
    trained = [name for name, parameter in td3.named_parameters() if parameter.requires_grad]
    assert all(name.startswith("policy.") for name in trained)
    for name in trained:
        assert td3.group_of(name) == ("critic" if name.startswith("policy.critics.") else "actor")
    assert td3.learning_rate("actor") == td3.learning_rate("critic") == 0.01
