"""The Q policy: dueling values, greedy and random actions, masks, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from shoal.config.network import PolicySection
from shoal.errors import UserError
from shoal.policy.network import Choice, QPolicy, build_policy
from shoal.policy.q import DuelingHead
from shoal.records import ACTION_MASK, ActionSpec, DiscreteAction, EnvSpec, MultiDiscreteAction
from tests.unit.policy.stepping import (
    BOX,
    CPU,
    MIXED,
    PIXELS,
    VECTOR,
    episode_starts,
    mask_of,
    observe,
    outputs_of,
    random_state,
    spec_of,
    step_through,
)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(6)


def q_policy(spec: EnvSpec, **settings: object) -> QPolicy:
    policy = build_policy(PolicySection.model_validate({"kind": "q", **settings}), spec)
    assert isinstance(policy, QPolicy)
    return policy


@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("settings", [{}, {"recurrent": "lstm", "frame_stack": 3}, {"recurrent": "gru"}])
def test_unrolling_equals_acting_step_by_step(dueling: bool, settings: dict[str, object]) -> None:
    spec = spec_of(DiscreteAction(4), PIXELS, *MIXED)
    policy = q_policy(spec, dueling=dueling, **settings)
    seen, first, state = observe(spec, 7, 4), episode_starts(7, 4), random_state(policy, 4)
    acted = step_through(policy, seen, first, state, Choice())
    values = policy(seen, first, state)

    assert values.shape == (7, 4, 4)
    assert values.dtype == torch.float32
    assert torch.equal(outputs_of(acted, "action"), values.argmax(-1))
    torch.testing.assert_close(outputs_of(acted, "q_max"), values.max(-1).values, atol=1e-5, rtol=0)
    torch.testing.assert_close(outputs_of(acted, "q_value"), outputs_of(acted, "q_max"))


def test_dueling_values_are_a_state_value_and_advantages_of_mean_zero() -> None:
    head = DuelingHead(5, 3)
    features = torch.randn(6, 5)
    values = head(features)
    torch.testing.assert_close(values.mean(-1, keepdim=True), head.value(features))
    advantage = head.advantage(features)
    torch.testing.assert_close(values - values[:, :1], advantage - advantage[:, :1])


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_act_gives_what_is_announced_in_every_precision(precision: torch.dtype | None) -> None:
    spec = spec_of(DiscreteAction(4), PIXELS, mask_of(4))
    policy = q_policy(spec, recurrent="lstm")
    with torch.inference_mode(), torch.autocast("cpu", precision, enabled=precision is not None):
        acted = policy.act(
            observe(spec, 6),
            torch.zeros(6, dtype=torch.bool),
            policy.initial_state(6, CPU),
            Choice(epsilon=torch.full((6,), 0.5)),
        )
    assert [array.describe() for array in policy.outputs[1:]] == ["q_value float32[]", "q_max float32[]"]
    assert list(acted.outputs) == [array.name for array in policy.outputs]
    for array in policy.outputs:
        assert acted.outputs[array.name].shape == (6,)
        assert acted.outputs[array.name].dtype == getattr(torch, array.dtype)


def test_epsilon_is_the_chance_of_a_random_action_that_is_allowed() -> None:
    num_rows = 30_000
    spec = spec_of(DiscreteAction(5), VECTOR, mask_of(5))
    policy = q_policy(spec)
    row = observe(spec, 1)["observation"]
    mask = torch.tensor([1, 0, 1, 1, 0], dtype=torch.int8)
    seen = {"observation": row.expand(num_rows, 4), ACTION_MASK: mask.expand(num_rows, 5)}
    greedy = torch.arange(num_rows) % 3 == 0
    first = torch.zeros(num_rows, dtype=torch.bool)
    outputs = policy.act(seen, first, {}, Choice(greedy, torch.full((num_rows,), 0.3))).outputs

    values = policy({"observation": row[None]}, first[None, :1], {})[0, 0].detach()
    best = int(values.masked_fill(mask == 0, -1e9).argmax())
    assert bool((outputs["action"][greedy] == best).all())
    counts = torch.bincount(outputs["action"][~greedy], minlength=5)
    assert counts[1] == counts[4] == 0
    expected = {action: 0.1 + 0.7 * (action == best) for action in (0, 2, 3)}
    num = int(counts.sum())
    chi_square = sum((int(counts[a]) - p * num) ** 2 / (p * num) for a, p in expected.items())
    print(f"chi-square of {num} samples, 2 degrees of freedom: {chi_square:.2f}")
    assert chi_square < 13.82  # p = 0.001
    torch.testing.assert_close(outputs["q_value"], values[outputs["action"]])
    torch.testing.assert_close(outputs["q_max"], values[best].expand(num_rows))


@pytest.mark.parametrize("epsilon", [None, 0.5, 1.0])
def test_forbidden_actions_are_never_taken(epsilon: float | None) -> None:
    spec = spec_of(DiscreteAction(3), VECTOR, mask_of(3))
    policy = q_policy(spec)
    seen, first = observe(spec, 10_000), torch.zeros(10_000, dtype=torch.bool)
    choice = Choice(epsilon=None if epsilon is None else torch.full((10_000,), epsilon))
    outputs = policy.act(seen, first, {}, choice).outputs
    mask = seen[ACTION_MASK]
    allowed = mask.gather(-1, outputs["action"].unsqueeze(-1)).squeeze(-1) | (mask == 0).all(-1)
    assert bool(allowed.all())
    assert bool((outputs["q_max"] > -1e8).all())
    assert bool((outputs["q_max"] >= outputs["q_value"]).all())


@pytest.mark.parametrize("dueling", [True, False])
def test_gradients_reach_all_parameters(dueling: bool) -> None:
    spec = spec_of(DiscreteAction(3), PIXELS, *MIXED)
    policy = q_policy(spec, dueling=dueling, recurrent="gru", frame_stack=2)
    values = policy(observe(spec, 3, 4), torch.zeros(3, 4, dtype=torch.bool), random_state(policy, 4))
    values.square().sum().backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) > 0, name


@pytest.mark.parametrize("action", [BOX, MultiDiscreteAction((2, 2))])
def test_other_actions_are_refused(action: ActionSpec) -> None:
    with pytest.raises(UserError, match="'q', which needs Discrete actions"):
        q_policy(spec_of(action))


def test_noise_is_refused() -> None:
    policy = q_policy(spec_of(DiscreteAction(2)))
    policy.check_exploration(epsilon=True, noise=False)
    with pytest.raises(UserError, match=r"exploration\.noise.*'q'"):
        policy.check_exploration(epsilon=True, noise=True)
