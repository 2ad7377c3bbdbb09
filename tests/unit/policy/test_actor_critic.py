"""The actor-critic: acting step by step and unrolling give the same, with all kinds of memory and spaces."""

from __future__ import annotations

import math

import pytest
import torch

from shoal.config.network import PolicySection
from shoal.errors import UserError
from shoal.policy.action_size import MAX_ACTIONS
from shoal.policy.array_input import MAX_INPUTS
from shoal.policy.network import ActorCritic, Choice, build_policy
from shoal.records import (
    ACTION_MASK,
    ActionSpec,
    ArraySpec,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    MultiDiscreteAction,
)
from tests.unit.policy.stepping import (
    BOX,
    CPU,
    MIXED,
    PIXELS,
    UNBOUNDED,
    VECTOR,
    episode_starts,
    mask_of,
    observe,
    outputs_of,
    random_state,
    spec_of,
    step_through,
)

NUM_ROWS, NUM_ENVS = 9, 5
MULTI = MultiDiscreteAction((3, 2, 4))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(3)


def actor_critic(spec: EnvSpec, **settings: object) -> ActorCritic:
    policy = build_policy(PolicySection.model_validate(settings), spec)
    assert isinstance(policy, ActorCritic)
    with torch.no_grad():
        # Far from uniform, so that differences show.
        policy.policy_head.weight *= 100.0
    return policy


@pytest.mark.parametrize(
    ("observation", "settings"),
    [
        ((VECTOR,), {}),
        (MIXED, {"frame_stack": 3}),
        ((VECTOR,), {"recurrent": "lstm", "recurrent_size": 16}),
        ((VECTOR,), {"recurrent": "gru", "recurrent_size": 16}),
        (MIXED, {"recurrent": "lstm", "recurrent_size": 8, "frame_stack": 4}),
        ((PIXELS, *MIXED), {"recurrent": "gru", "recurrent_size": 8, "frame_stack": 2}),
    ],
)
@pytest.mark.parametrize("action", [DiscreteAction(3), MULTI, BOX])
def test_unrolling_equals_acting_step_by_step(
    observation: tuple[ArraySpec, ...], settings: dict[str, object], action: ActionSpec
) -> None:
    spec = spec_of(action, *observation)
    policy = actor_critic(spec, **settings)
    seen = observe(spec, NUM_ROWS, NUM_ENVS)
    first, state = episode_starts(NUM_ROWS, NUM_ENVS), random_state(policy, NUM_ENVS)

    acted = step_through(policy, seen, first, state, Choice())
    params, value = policy(seen, first, state)

    assert value.shape == (NUM_ROWS, NUM_ENVS)
    unrolled = policy.distribution(params).log_prob(outputs_of(acted, "action"))
    torch.testing.assert_close(unrolled, outputs_of(acted, "log_prob"), atol=1e-5, rtol=0)
    # In two pieces, the second from the state that acting left: the same again.
    second = policy({name: tensor[4:] for name, tensor in seen.items()}, first[4:], acted[3].state)
    torch.testing.assert_close(second.params, params[4:], atol=1e-5, rtol=0)
    torch.testing.assert_close(second.value, value[4:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("settings", [{"recurrent": "lstm"}, {"recurrent": "gru"}, {"frame_stack": 3}])
def test_an_episode_starts_without_memory_and_goes_on_with_it(settings: dict[str, object]) -> None:
    policy = actor_critic(spec_of(DiscreteAction(3)), **settings)
    seen = observe(policy.spec, 4, 2)
    first = torch.zeros(4, 2, dtype=torch.bool)
    first[2, 0] = True

    one, other = (policy(seen, first, random_state(policy, 2)).value for _ in range(2))
    assert torch.equal(one[2:, 0], other[2:, 0])
    assert not torch.isclose(one[:2], other[:2]).any()
    if "recurrent" in settings:
        assert not torch.isclose(one[:, 1], other[:, 1]).any()
    else:
        # Of three frames the third is the first row's own successor: nothing older is seen.
        assert torch.equal(one[2:], other[2:])


@pytest.mark.parametrize("action", [DiscreteAction(3), MULTI, BOX, UNBOUNDED])
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
@pytest.mark.parametrize("recurrent", ["none", "lstm", "gru"])
def test_act_gives_what_is_announced_in_every_precision(
    action: ActionSpec, precision: torch.dtype | None, recurrent: str
) -> None:
    spec = spec_of(action, PIXELS, *MIXED)
    policy = actor_critic(spec, recurrent=recurrent, frame_stack=2)
    state = policy.initial_state(6, CPU)
    with torch.inference_mode(), torch.autocast("cpu", precision, enabled=precision is not None):
        acted = policy.act(observe(spec, 6), torch.ones(6, dtype=torch.bool), state, Choice())
        again = policy.act(observe(spec, 6), torch.zeros(6, dtype=torch.bool), acted.state, Choice())

    assert [array.name for array in policy.outputs] == list(again.outputs) == ["action", "log_prob"]
    assert {array.name for array in policy.state} == set(again.state) == set(state)
    for array, tensor in [
        *((array, again.outputs[array.name]) for array in policy.outputs),
        *((array, again.state[array.name]) for array in policy.state),
        *((array, state[array.name]) for array in policy.state),
    ]:
        assert tensor.shape == (6, *array.shape)
        assert tensor.dtype == getattr(torch, array.dtype)
        assert bool(tensor.isfinite().all())


def test_a_training_pass_in_low_precision_gives_full_precision_and_gradients() -> None:
    spec = spec_of(BOX, PIXELS)
    policy = actor_critic(spec, recurrent="lstm")
    with torch.autocast("cpu", torch.bfloat16):
        params, value = policy(observe(spec, 3, 2), episode_starts(6, 3)[:3, :2], random_state(policy, 2))
    assert params.dtype == value.dtype == torch.float32
    (params.sum() + value.sum()).backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())


def test_what_is_remembered() -> None:
    mask = mask_of(3)
    policy = actor_critic(spec_of(DiscreteAction(3), VECTOR, mask), recurrent="lstm", frame_stack=4)
    assert [array.describe() for array in policy.state] == [
        "recurrent.h float32[128]",
        "recurrent.c float32[128]",
        "frames.observation float32[3, 4]",
    ]
    assert actor_critic(spec_of(DiscreteAction(3))).state == ()


@pytest.mark.parametrize("action", [DiscreteAction(50), BOX, MultiDiscreteAction((50, 40))])
def test_greedy_rows_get_the_mode_and_others_a_sample(action: ActionSpec) -> None:
    policy = build_policy(PolicySection(), spec_of(action))
    assert isinstance(policy, ActorCritic)
    seen, first = observe(policy.spec, 64), torch.zeros(64, dtype=torch.bool)
    greedy = torch.arange(64) % 2 == 0
    params = policy({name: tensor[None] for name, tensor in seen.items()}, first[None], {}).params[0]
    distribution = policy.distribution(params)
    outputs = policy.act(seen, first, {}, Choice(greedy=greedy)).outputs

    same = (outputs["action"] == distribution.mode()).reshape(64, -1).all(-1)
    assert bool(same[greedy].all())
    assert not bool(same[~greedy].all())
    torch.testing.assert_close(outputs["log_prob"], distribution.log_prob(outputs["action"]))


def test_the_mask_is_no_input_of_the_network() -> None:
    plain, masked = spec_of(DiscreteAction(3)), spec_of(DiscreteAction(3), mask_of(3), VECTOR)
    shapes = [
        {name: tensor.shape for name, tensor in actor_critic(spec).state_dict().items()}
        for spec in (plain, masked)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(("action", "num"), [(DiscreteAction(9), 9), (MULTI, 9)])
@pytest.mark.parametrize("epsilon", [None, 0.5])
def test_forbidden_actions_are_never_taken(action: ActionSpec, num: int, epsilon: float | None) -> None:
    spec = spec_of(action, VECTOR, mask_of(num))
    policy = actor_critic(spec)
    seen = observe(spec, 10_000)
    first, rows = torch.zeros(10_000, dtype=torch.bool), torch.arange(10_000)
    choice = Choice(rows % 3 == 0, None if epsilon is None else torch.full((10_000,), epsilon))
    outputs = policy.act(seen, first, {}, choice).outputs

    starts = torch.tensor([0, 3, 5]) if isinstance(action, MultiDiscreteAction) else torch.tensor([0])
    sizes = torch.tensor([3, 2, 4]) if isinstance(action, MultiDiscreteAction) else torch.tensor([9])
    mask = seen[ACTION_MASK]
    taken = outputs["action"].reshape(10_000, -1)
    assert bool((taken < sizes).all())
    for element, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        part = mask[:, start : start + size] != 0
        allowed = part[rows, taken[:, element]] | ~part.any(-1)
        assert bool(allowed.all())
        # Where nothing is allowed, everything is.
        assert len(taken[~part.any(-1), element].unique()) > 1
    assert bool(outputs["log_prob"].isfinite().all())


@pytest.mark.parametrize(
    ("action", "mask"), [(DiscreteAction(3), mask_of(2)), (MULTI, mask_of(3)), (BOX, mask_of(4))]
)
def test_a_mask_that_does_not_fit_the_actions_is_refused(action: ActionSpec, mask: ArraySpec) -> None:
    with pytest.raises(UserError, match="shows an action mask"):
        build_policy(PolicySection(), spec_of(action, VECTOR, mask))


def test_exploration_that_makes_no_sense_is_refused() -> None:
    for action in (DiscreteAction(2), MULTI):
        policy = build_policy(PolicySection(), spec_of(action))
        policy.check_exploration(epsilon=True, noise=False)
        with pytest.raises(UserError, match=r"exploration\.noise.*'actor_critic'"):
            policy.check_exploration(epsilon=False, noise=True)
    policy = build_policy(PolicySection(), spec_of(BOX))
    policy.check_exploration(epsilon=False, noise=False)
    with pytest.raises(UserError, match=r"exploration\.epsilon.*discrete actions"):
        policy.check_exploration(epsilon=True, noise=False)


def test_the_first_policy_is_near_uniform() -> None:
    policy = build_policy(PolicySection(), spec_of(DiscreteAction(4)))
    assert isinstance(policy, ActorCritic)
    params = policy(observe(policy.spec, 2, 64), torch.zeros(2, 64, dtype=torch.bool), {}).params
    assert policy.distribution(params).entropy().min().item() > 0.99 * math.log(4)


@pytest.mark.parametrize("settings", [{}, {"recurrent": "lstm"}, {"recurrent": "gru"}, {"frame_stack": 2}])
@pytest.mark.parametrize("action", [DiscreteAction(3), MULTI, BOX])
def test_gradients_reach_all_parameters(settings: dict[str, object], action: ActionSpec) -> None:
    spec = spec_of(action, PIXELS, *MIXED)
    policy = actor_critic(spec, **settings)
    params, value = policy(observe(spec, 3, 4), torch.zeros(3, 4, dtype=torch.bool), random_state(policy, 4))
    (params.square().sum() + value.square().sum()).backward()
    for name, parameter in policy.named_parameters():
        if name == "log_std":
            continue  # zero at the start, and so is the gradient of its square
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) > 0, name


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (spec_of(DiscreteAction(MAX_ACTIONS + 1)), "65537 actions"),
        (spec_of(BoxAction((0,), (), ())), "0 elements of the action"),
        (spec_of(MultiDiscreteAction(())), "at least one value"),
        (spec_of(MultiDiscreteAction((3, 0))), "at least one value"),
        (spec_of(MultiDiscreteAction((60_000, 1, 1))), "180000 values"),
        (spec_of(DiscreteAction(2), ArraySpec("observation", "uint8", (MAX_INPUTS, 2))), "2097152 inputs"),
        (spec_of(DiscreteAction(2), ArraySpec("observation", "float32", (0,))), "0 inputs"),
        (EnvSpec("Blind-v0", (), DiscreteAction(2)), "no observation"),
        (EnvSpec("Blind-v0", (mask_of(2),), DiscreteAction(2)), "no observation"),
    ],
)
def test_a_space_that_cannot_be_handled_is_the_users_error(spec: EnvSpec, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_policy(PolicySection(), spec)
