"""SAC: losses against plain loops and by hand, what learns from what, targets, the temperature."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from services.learner.trainer import Trainer
from shoal.algorithms.algorithm import build_algorithm
from shoal.algorithms.batch import Batch
from shoal.algorithms.sac.algorithm import Sac
from shoal.algorithms.sac.loss import sac_loss
from shoal.algorithms.sac.profile import SacConfig
from shoal.config.network import PolicySection
from shoal.policy.network import SoftActorCritic, build_policy
from shoal.policy.twin_q import StackedCritics
from shoal.records import BoxAction
from tests.unit.algorithms.continuous import (
    CASES,
    SPEC,
    SlowCritics,
    history,
    near,
    same_noise,
    soft_policy,
    transitions,
    transitions_by_loops,
    unrolls,
)
from tests.unit.algorithms.ends import AUTORESET

ALPHA, DISCOUNT, NOISE = 0.3, 0.9, 0.4


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(5)


@pytest.fixture
def _same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    same_noise(monkeypatch, NOISE)


def make_sac(policy: SoftActorCritic, **settings: object) -> Sac:
    config = {"discount": DISCOUNT, "initial_temperature": ALPHA, **settings}
    sac = build_algorithm(SacConfig.model_validate(config), policy)
    assert isinstance(sac, Sac)
    with torch.no_grad():
        for parameter in sac.target_critics.parameters():
            parameter.mul_(0.7).add_(0.01)
    return sac


def drawn(policy: SoftActorCritic, batch: Batch, t: int, b: int) -> tuple[Tensor, float]:
    """The action of row t with the one noise, and its log density in half widths, by numeric derivatives."""
    params = policy(*history(batch, t, b))[-1, 0].tolist()
    action, log_density, step = [], 0.0, 1e-5
    for d, (low, high) in enumerate(
        zip(policy.bounds.low.tolist(), policy.bounds.high.tolist(), strict=True)
    ):
        mean, log_std = params[d], params[d + 3]
        latent = mean + math.exp(log_std) * NOISE
        slope = (math.tanh(latent + step) - math.tanh(latent - step)) / (2 * step)
        log_density += -0.5 * NOISE**2 - log_std - 0.5 * math.log(2 * math.pi) - math.log(slope)
        action.append((low + high) / 2 + (high - low) / 2 * math.tanh(latent))
    return torch.tensor(action), log_density


def q_pair(policy: SoftActorCritic, batch: Batch, t: int, b: int, action: Tensor, target: Sac) -> list[float]:
    """Of the targets."""
    rows = history(batch, t, b)
    actions = action.expand(*rows[1].shape, 3)
    critics = target.target_critics.module
    return [float(value[-1, 0]) for value in policy.q_values(*rows, actions, critics)]


@pytest.mark.usefixtures("_same_noise")
@pytest.mark.parametrize(("kind", "n", "memory"), CASES)
def test_losses_against_plain_loops(kind: str, n: int, memory: dict[str, object]) -> None:
    policy = soft_policy(**memory)
    batch = unrolls(policy) if kind == "unrolls" else transitions()
    sac = make_sac(policy, n_step=n, target_entropy=-2.0)
    found = sac.loss(batch)

    critics = SlowCritics(batch)
    actor = temperature = entropy = 0.0
    steps = transitions_by_loops(batch, n, DISCOUNT)
    with torch.no_grad():
        for t, b, reward, worth, row in steps:
            action, log_pi = drawn(policy, batch, row, b)
            value = min(q_pair(policy, batch, row, b, action, sac)) - ALPHA * log_pi
            y = reward + worth * value
            rows = history(batch, t, b)
            taken = batch.action_SB[t, b].expand(*rows[1].shape, 3)
            q = [float(value[-1, 0]) for value in policy.q_values(*rows, taken)]
            weight = critics.add(b, q, y)
            action, log_pi = drawn(policy, batch, t, b)
            mine = policy.q_values(*rows, action.expand(*rows[1].shape, 3))
            actor += weight * (ALPHA * log_pi - min(float(value[-1, 0]) for value in mine))
            temperature -= weight * ALPHA * (log_pi - 2.0)
            entropy -= weight * log_pi

    critics.check(found)
    assert found.metrics["actor_loss"].item() == near(actor / len(steps))
    assert found.loss.item() == near((critics.loss + actor + temperature) / len(steps))
    assert found.metrics["entropy"].item() == near(entropy / critics.weight)
    assert found.metrics["temperature"].item() == pytest.approx(ALPHA)


@pytest.mark.usefixtures("_same_noise")
def test_target_by_hand() -> None:
    """Constant networks: Q' is 3 and 5; of u the mean is 0 and the log std -1.5, in each of 3 elements."""
    policy = soft_policy()
    sac = make_sac(policy)
    with torch.no_grad():
        for parameter in sac.parameters():
            if parameter is not sac.log_temperature:
                parameter.zero_()
        for critics, values in ((policy.critics, (1.0, 2.0)), (sac.target_critics.module, (3.0, 5.0))):
            assert isinstance(critics, StackedCritics)
            critics.value_head.bias.copy_(torch.tensor(values).unsqueeze(1))
    latent = math.exp(-1.5) * NOISE
    log_pi = 3 * (-0.08 + 1.5 - 0.5 * math.log(2 * math.pi) - math.log(1 - math.tanh(latent) ** 2))
    batch = replace(transitions(2), reward_SB=torch.tensor([[7.0, 7.0], [0.0, 0.0]]), weight_B=torch.ones(2))
    # The first is worth 0.81 of what follows; the second ended.
    y = [7.0 + 0.81 * (3.0 - ALPHA * log_pi), 7.0]
    found = sac.loss(batch)
    assert found.priority_B is not None
    assert found.priority_B.tolist() == pytest.approx([abs(1.5 - target) for target in y], rel=1e-5)
    squares = sum(0.5 * ((1.0 - target) ** 2 + (2.0 - target) ** 2) for target in y)
    assert found.metrics["critic_loss"].item() == pytest.approx(squares / 2, rel=1e-5)
    assert found.metrics["q_mean"].item() == pytest.approx(1.5)
    assert found.metrics["actor_loss"].item() == pytest.approx(ALPHA * log_pi - 1.0, rel=1e-5)


@pytest.mark.usefixtures("_same_noise")
def test_each_part_learns_from_its_own_loss_alone() -> None:
    """Against three backward passes, with copies where the one pass holds something still."""
    policy = soft_policy()
    batch = transitions()
    sac = make_sac(policy)
    torch.autograd.backward(sac.loss(batch).loss)

    other = copy.deepcopy(sac)
    other.zero_grad()
    mean = other.policy
    rows, after = ({"observation": batch.observation["observation"][i : i + 1]} for i in (0, 1))
    first, weight = batch.first_SB[:1], batch.weight_B
    with torch.no_grad():
        action, log_pi = mean.distribution(mean(after, first, {})).rsample()
        log_pi = log_pi + mean.bounds.log_half_volume
        q = torch.minimum(*mean.q_values(after, first, {}, action, other.target_critics.module))
        y = batch.reward_SB[:1] + batch.discount_SB[:1] * (q - ALPHA * log_pi)  # type: ignore[index]
    for number in range(2):
        value = mean.q_values(rows, first, {}, batch.action_SB[:1])[number]
        torch.autograd.backward(0.5 * ((value - y).square() * weight).sum() / 5)
    still = copy.deepcopy(mean.critics)
    action, log_pi = mean.distribution(mean(rows, first, {})).rsample()
    log_pi = log_pi + mean.bounds.log_half_volume
    q = torch.minimum(*mean.q_values(rows, first, {}, action, still))
    torch.autograd.backward(((ALPHA * log_pi - q) * weight).sum().div(5))
    torch.autograd.backward(-other.log_temperature.exp() * ((log_pi.detach() - 3.0) * weight).sum() / 5)

    expected = dict(other.named_parameters())
    for name, parameter in sac.named_parameters():
        if name.startswith("target_critics."):
            assert parameter.grad is None
            continue
        assert parameter.requires_grad, name
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) > 0, name
        torch.testing.assert_close(parameter.grad, expected[name].grad, msg=name)


def test_steps_that_do_not_count() -> None:
    """Autoreset steps and environments of weight 0: whatever they hold, nothing changes."""
    policy = soft_policy()
    sac = make_sac(policy, n_step=2)
    batch = replace(unrolls(policy), weight_B=torch.tensor([1.0, 1.0, 0.0]))
    spoilt_reward, spoilt_action = batch.reward_SB.clone(), batch.action_SB.clone()
    for t, b in AUTORESET:
        spoilt_reward[t, b] = 1e6
        spoilt_action[t, b] = policy.bounds.high
    spoilt_reward[:, 2] = -1e6
    torch.manual_seed(1)
    clean = sac.loss(batch)
    torch.manual_seed(1)
    spoilt = sac.loss(replace(batch, reward_SB=spoilt_reward, action_SB=spoilt_action))
    torch.testing.assert_close(clean.loss, spoilt.loss)
    assert clean.weight.item() == 2 * 6 - 1
    nothing = sac.loss(replace(batch, weight_B=torch.zeros(3)))
    assert nothing.loss.item() == 0.0


def test_the_units_of_actions_do_not_matter() -> None:
    """An environment that counts its actions in other units has the same losses, entropy and temperature."""
    batch = transitions()
    outputs = []
    for scale in (1.0, 1e-3):
        torch.manual_seed(2)
        action = BoxAction((3,), (-scale,) * 3, (scale,) * 3)
        policy = build_policy(PolicySection(kind="soft_actor_critic"), replace(SPEC, action=action))
        assert isinstance(policy, SoftActorCritic)
        sac = Sac(SacConfig(), policy)
        torch.manual_seed(3)
        unit = torch.rand(2, 5, 3) * 2 - 1
        outputs.append(sac.loss(replace(batch, action_SB=unit * scale)))
    torch.testing.assert_close(outputs[0].loss, outputs[1].loss, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(outputs[0].metrics["entropy"], outputs[1].metrics["entropy"])


@pytest.mark.parametrize(("target", "rises"), [(50.0, True), (-50.0, False)])
def test_the_temperature_moves_towards_the_target_entropy(target: float, rises: bool) -> None:
    sac = make_sac(soft_policy(), target_entropy=target, temperature_learning_rate=0.1, learning_rate=1e-4)
    trainer = Trainer(sac, 1e9)
    trainer.step(transitions())
    # Adam's first step is the learning rate itself.
    assert sac.log_temperature.item() == pytest.approx(math.log(ALPHA) + (0.1 if rises else -0.1), abs=1e-5)


def test_no_target_stands_for_minus_the_elements_of_an_action() -> None:
    policy, batch = soft_policy(), transitions()
    losses = []
    for target in (None, -3.0, -4.0):
        torch.manual_seed(1)
        losses.append(make_sac(policy, target_entropy=target).loss(batch).loss.item())
    assert losses[0] == losses[1] != losses[2]


def test_a_fixed_temperature_is_no_parameter() -> None:
    sac = make_sac(soft_policy(), learn_temperature=False)
    trainer = Trainer(sac, 1e9)
    trainer.step(transitions())
    assert sac.log_temperature.item() == pytest.approx(math.log(ALPHA))
    assert not any(name == "log_temperature" for name, _ in sac.named_parameters())
    assert "algorithm/log_temperature" in trainer.state()


def test_groups_and_their_learning_rates() -> None:
    sac = make_sac(soft_policy(), learning_rate=0.01, temperature_learning_rate=0.02)
    groups: dict[str, set[str]] = {}
    for name, parameter in sac.named_parameters():
        if parameter.requires_grad:
            groups.setdefault(sac.group_of(name), set()).add(name)
    assert groups["temperature"] == {"log_temperature"}
    assert groups["critic"] == {f"policy.critics.{name}" for name, _ in sac.policy.critics.named_parameters()}
    assert "policy.policy_head.weight" in groups["actor"]
    assert groups.keys() == {"actor", "critic", "temperature"}
    rates = [sac.learning_rate(group) for group in ("actor", "critic", "temperature")]
    assert rates == [0.01, 0.01, 0.02]


def test_the_learning_rate_that_is_shown_is_that_of_the_networks() -> None:
    sac = make_sac(soft_policy(), learning_rate=1e-3, temperature_learning_rate=5e-2)
    assert Trainer(sac, 1e9).step(transitions(), learning_rate_factor=0.5).learning_rate == 5e-4


def test_targets_follow_after_each_step() -> None:
    sac = make_sac(soft_policy(), target_rate=0.25)
    before = [parameter.clone() for parameter in sac.target_critics.parameters()]
    Trainer(sac, 1e9).step(transitions())
    after = zip(before, sac.target_critics.parameters(), sac.policy.critics.parameters(), strict=True)
    for old, new, source in after:
        torch.testing.assert_close(new, 0.75 * old + 0.25 * source.detach())


@pytest.mark.usefixtures("_same_noise")
def test_accumulated_parts_make_the_same_step() -> None:
    policy, batch = soft_policy(), transitions()
    ended = []
    for parts in (1, 3):
        sac = make_sac(copy.deepcopy(policy))
        outcome = Trainer(sac, 1e9, accumulate=parts).step(batch)
        ended.append((sac.state_dict(), outcome.priority_B))
    torch.testing.assert_close(ended[0], ended[1], rtol=1e-4, atol=1e-6)


def test_the_loss_is_pure() -> None:
    policy, batch = soft_policy(), transitions()
    sac = make_sac(policy)
    before = copy.deepcopy(sac.state_dict())
    config = SacConfig(discount=DISCOUNT)
    sac_loss(policy, sac.target_critics.module, sac.log_temperature, batch, config)
    torch.testing.assert_close(before, sac.state_dict(), rtol=0, atol=0)
    assert all(parameter.requires_grad for parameter in policy.parameters())
