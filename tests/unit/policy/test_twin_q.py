"""The kinds of bounded Box actions: soft actor-critic and deterministic, with their twin critics."""

from __future__ import annotations

import math

import pytest
import torch

from shoal.config.network import PolicySection
from shoal.errors import UserError
from shoal.policy.network import Choice, DeterministicPolicy, SoftActorCritic, build_policy
from shoal.policy.twin_q import SeparateCritics, StackedCritics, StackedLinear, TwinQPolicy
from shoal.records import ActionSpec, BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction
from tests.unit.policy.stepping import (
    BOX,
    CPU,
    MIXED,
    PIXELS,
    UNBOUNDED,
    episode_starts,
    observe,
    outputs_of,
    random_state,
    spec_of,
    step_through,
)

KINDS = ("soft_actor_critic", "deterministic")
ALL_GREEDY = torch.ones(4, dtype=torch.bool)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(8)


def twin_q(kind: str, spec: EnvSpec, **settings: object) -> TwinQPolicy:
    policy = build_policy(PolicySection.model_validate({"kind": kind, **settings}), spec)
    assert isinstance(policy, SoftActorCritic | DeterministicPolicy)
    with torch.no_grad():
        # Far from the middle, so that differences show.
        policy.policy_head.weight *= 100.0
    return policy


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{}, {"recurrent": "lstm", "frame_stack": 3}, {"recurrent": "gru"}])
def test_unrolling_equals_acting_step_by_step(kind: str, settings: dict[str, object]) -> None:
    spec = spec_of(BOX, PIXELS, *MIXED)
    policy = twin_q(kind, spec, **settings)
    seen, first, state = observe(spec, 7, 4), episode_starts(7, 4), random_state(policy, 4)
    acted = step_through(policy, seen, first, state, Choice(greedy=ALL_GREEDY))
    unrolled = policy(seen, first, state)
    if isinstance(policy, SoftActorCritic):
        assert unrolled.shape == (7, 4, 8)
        unrolled = policy.distribution(unrolled).mode()
    assert unrolled.shape == (7, 4, 2, 2)
    torch.testing.assert_close(outputs_of(acted, "action"), unrolled.detach(), atol=1e-5, rtol=0)


def test_log_probabilities_of_acting_are_those_of_the_distribution() -> None:
    spec = spec_of(BOX)
    policy = twin_q("soft_actor_critic", spec)
    assert isinstance(policy, SoftActorCritic)
    seen, first = observe(spec, 1, 200), torch.zeros(1, 200, dtype=torch.bool)
    greedy = torch.arange(200) % 2 == 0
    outputs = step_through(policy, seen, first, {}, Choice(greedy=greedy))[0].outputs
    pi = policy.distribution(policy(seen, first, {})[0])
    torch.testing.assert_close(outputs["log_prob"], pi.log_prob(outputs["action"]), atol=2e-2, rtol=1e-3)
    same = (outputs["action"] == pi.mode()).flatten(1).all(-1)
    assert torch.equal(same, greedy)


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_act_gives_what_is_announced_in_every_precision(kind: str, precision: torch.dtype | None) -> None:
    spec = spec_of(BOX, PIXELS)
    policy = twin_q(kind, spec, recurrent="gru")
    first, epsilon = torch.zeros(6, dtype=torch.bool), torch.full((6,), 0.5)
    noise = epsilon if kind == "deterministic" else None
    with torch.inference_mode(), torch.autocast("cpu", precision, enabled=precision is not None):
        acted = policy.act(
            observe(spec, 6), first, policy.initial_state(6, CPU), Choice(first, epsilon, noise)
        )
    names = ["action"] if kind == "deterministic" else ["action", "log_prob"]
    assert [array.name for array in policy.outputs] == list(acted.outputs) == names
    for array in policy.outputs:
        assert acted.outputs[array.name].shape == (6, *array.shape)
        assert acted.outputs[array.name].dtype == torch.float32
    assert acted.state["recurrent.h"].dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
def test_epsilon_draws_within_the_bounds_and_greedy_rows_are_left_alone(kind: str) -> None:
    num_rows = 6000
    spec = spec_of(BOX)
    policy = twin_q(kind, spec)
    row = observe(spec, 1)["observation"].expand(num_rows, 4)
    rows = torch.arange(num_rows)
    # All random, but a third greedy and a third never random.
    epsilon, greedy = torch.where(rows % 3 == 1, 0.0, 1.0), rows % 3 == 0
    first = torch.zeros(num_rows, dtype=torch.bool)
    outputs = policy.act({"observation": row}, first, {}, Choice(greedy, epsilon)).outputs
    action = outputs["action"].flatten(1)
    assert bool((action[greedy] == action[0]).all())

    low, high = torch.tensor(BOX.low), torch.tensor(BOX.high)
    uniform = (action[rows % 3 == 2] - low) / (high - low)
    assert bool(((uniform >= 0) & (uniform <= 1)).all())
    for decile in torch.arange(1, 10) / 10:
        torch.testing.assert_close((uniform < decile).float().mean(0), decile.expand(4), atol=0.04, rtol=0)
    if kind == "soft_actor_critic":
        log_uniform = torch.tensor(-math.log(80.0)).expand(num_rows // 3)
        torch.testing.assert_close(outputs["log_prob"][rows % 3 == 2], log_uniform)


def test_the_mixtures_log_probability_is_exact() -> None:
    spec = spec_of(BOX)
    policy = twin_q("soft_actor_critic", spec)
    assert isinstance(policy, SoftActorCritic)
    seen, first = observe(spec, 500), torch.zeros(500, dtype=torch.bool)
    epsilon = torch.rand(500)
    outputs = policy.act(seen, first, {}, Choice(epsilon=epsilon)).outputs
    params = policy({name: tensor[None] for name, tensor in seen.items()}, first[None], {})[0]
    density = policy.distribution(params).log_prob(outputs["action"]).double().exp()
    expected = ((1 - epsilon) * density + epsilon / 80.0).log()
    torch.testing.assert_close(outputs["log_prob"].double(), expected, atol=2e-2, rtol=1e-3)


def test_noise_is_in_half_widths_and_clipped() -> None:
    num_rows = 20_000
    action = BoxAction((2,), (-1.0, 0.0), (1.0, 10.0))
    spec = spec_of(action)
    policy = build_policy(PolicySection(kind="deterministic"), spec)
    row = observe(spec, 1)["observation"].expand(num_rows, 4)
    rows, first = torch.arange(num_rows), torch.zeros(num_rows, dtype=torch.bool)
    noise = torch.where(rows % 2 == 0, 0.1, 3.0)
    greedy = rows % 4 >= 2
    drawn = policy.act({"observation": row}, first, {}, Choice(greedy, noise=noise)).outputs["action"]

    assert bool((drawn[greedy] == drawn[2]).all())
    little = drawn[(rows % 4) == 0]
    torch.testing.assert_close(little.mean(0), drawn[2], atol=0.03, rtol=0.01)
    torch.testing.assert_close(little.std(0), torch.tensor([0.1, 0.5]), atol=0.0, rtol=0.05)
    much = drawn[(rows % 4) == 1]
    low, high = torch.tensor(action.low), torch.tensor(action.high)
    assert bool(((much >= low) & (much <= high)).all())
    assert float(((much == low) | (much == high)).float().mean()) > 0.6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [{}, {"frame_stack": 3}, {"recurrent": "lstm"}, {"hidden_sizes": ()}])
def test_two_critics_that_differ_and_depend_on_everything(kind: str, settings: dict[str, object]) -> None:
    spec = spec_of(BOX, PIXELS, *MIXED)
    policy = twin_q(kind, spec, **settings)
    seen, first, state = observe(spec, 5, 4), episode_starts(6, 4)[:5], random_state(policy, 4)
    action = policy.bounds.from_unit(torch.rand(5, 4, 4) * 2 - 1)
    one, two = policy.q_values(seen, first, state, action)
    assert one.shape == two.shape == (5, 4)
    assert not torch.isclose(one, two).all()
    other = policy.bounds.from_unit(torch.rand(5, 4, 4) * 2 - 1)
    for changed in (
        policy.q_values(seen, first, state, other),
        policy.q_values({**seen, PIXELS.name: seen[PIXELS.name].flip(0)}, first, state, action),
        policy.q_values({**seen, "observation.level": -seen["observation.level"]}, first, state, action),
    ):
        assert not torch.isclose(changed[0], one).all()
        assert not torch.isclose(changed[1], two).all()


def test_stacked_critics_are_two_networks() -> None:
    """Against plain loops over each network's own weights."""
    spec = spec_of(BOX)
    policy = twin_q("deterministic", spec, hidden_sizes=(7, 5), activation="relu")
    critics = policy.critics
    assert isinstance(critics, StackedCritics)
    seen, first = observe(spec, 3, 4), torch.zeros(3, 4, dtype=torch.bool)
    unit = torch.rand(3, 4, 4) * 2 - 1
    found = policy.q_values(seen, first, {}, policy.bounds.from_unit(unit))
    layers = [critics.hidden[0], critics.hidden[2], critics.value_head]
    for number in range(2):
        values = torch.cat([seen["observation"].reshape(3, 4, -1), unit], -1).double()
        for layer in layers:
            assert isinstance(layer, StackedLinear)
            values = values @ layer.weight[number].double().T + layer.bias[number].double()
            values = values if layer is critics.value_head else values.clamp(min=0)
        torch.testing.assert_close(found[number].double(), values.squeeze(-1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_critics_are_stacked_where_trunks_have_no_weights(kind: str) -> None:
    assert isinstance(twin_q(kind, spec_of(BOX)).critics, StackedCritics)
    assert isinstance(twin_q(kind, spec_of(BOX), frame_stack=3).critics, StackedCritics)
    assert isinstance(twin_q(kind, spec_of(BOX), recurrent="gru").critics, SeparateCritics)
    assert isinstance(twin_q(kind, spec_of(BOX, PIXELS)).critics, SeparateCritics)


def test_a_critic_weighs_an_action_by_the_state() -> None:
    """What an action is worth must be able to differ between states: Q is no sum of the two."""
    spec = spec_of(BOX)
    policy = twin_q("deterministic", spec)
    seen, first = observe(spec, 1, 2), torch.zeros(1, 2, dtype=torch.bool)
    high, low = (policy.bounds.from_unit(torch.full((1, 2, 4), unit)) for unit in (0.9, -0.9))
    gain = policy.q_values(seen, first, {}, high)[0] - policy.q_values(seen, first, {}, low)[0]
    assert abs(float((gain[0, 0] - gain[0, 1]).detach())) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_all_parameters(kind: str) -> None:
    spec = spec_of(BOX, PIXELS, *MIXED)
    policy = twin_q(kind, spec, recurrent="lstm", frame_stack=2)
    seen, first, state = observe(spec, 3, 4), torch.zeros(3, 4, dtype=torch.bool), random_state(policy, 4)
    made = policy(seen, first, state)
    action = policy.distribution(made).rsample()[0] if isinstance(policy, SoftActorCritic) else made
    one, two = policy.q_values(seen, first, state, action)
    (one.square().sum() + two.square().sum()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) > 0, name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action", [DiscreteAction(2), MultiDiscreteAction((2,)), UNBOUNDED])
def test_other_actions_are_refused(kind: str, action: ActionSpec) -> None:
    with pytest.raises(UserError, match=f"'{kind}', which needs Box actions with finite bounds"):
        build_policy(PolicySection.model_validate({"kind": kind}), spec_of(action))


def test_noise_is_for_the_deterministic_kind() -> None:
    twin_q("deterministic", spec_of(BOX)).check_exploration(epsilon=True, noise=True)
    soft = twin_q("soft_actor_critic", spec_of(BOX))
    soft.check_exploration(epsilon=True, noise=False)
    with pytest.raises(UserError, match=r"exploration\.noise.*'soft_actor_critic'"):
        soft.check_exploration(epsilon=False, noise=True)
