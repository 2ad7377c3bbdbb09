"""The previous action and reward as inputs of recurrent cores: acting and unrolling see the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from services.actor.unroll import UnrollBuilder
from shoal.clients.inference import ActReply, ActWelcome
from shoal.config.network import PolicySection
from shoal.envs.batch import EnvStep, Slots
from shoal.envs.previous import show_previous, symlog, with_previous
from shoal.policy.exporting import ActingNetwork
from shoal.policy.network import Choice, Policy, build_policy
from shoal.policy.playing import PolicyPlayer
from shoal.records import (
    ACTION,
    FIRST,
    INITIAL,
    PREVIOUS_ACTION,
    PREVIOUS_REWARD,
    REWARD,
    ActionSpec,
    ArraySpec,
    Columns,
    DiscreteAction,
    MultiDiscreteAction,
)
from tests.unit.policy.stepping import BOX, CPU, MIXED, UNBOUNDED, VECTOR, mask_of, observe, spec_of

NUM_ENVS, NUM_ROWS = 4, 9
ACTIONS: dict[str, tuple[str, ActionSpec]] = {
    "actor_critic": ("actor_critic", DiscreteAction(3)),
    "actor_critic, many": ("actor_critic", DiscreteAction(1500)),
    "actor_critic, multi": ("actor_critic", MultiDiscreteAction((3, 2))),
    "actor_critic, box": ("actor_critic", UNBOUNDED),
    "q": ("q", DiscreteAction(3)),
    "soft_actor_critic": ("soft_actor_critic", BOX),
    "deterministic": ("deterministic", BOX),
}


class RandomEnv:
    """Shows anything, and starts episodes in the midst of unrolls."""

    waits = False
    num_restarts = 0

    def __init__(self, action: ActionSpec, *observation: ArraySpec) -> None:
        self.spec = spec_of(action, *observation)
        self.slots: Mapping[str, Slots] = {"main": Slots(self.spec, NUM_ENVS)}
        self._random = np.random.default_rng(6)

    def reset(self, seed: int) -> dict[str, EnvStep]:
        return self._shown(np.ones(NUM_ENVS, np.bool_))

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, EnvStep]:
        return self._shown(self._random.random(NUM_ENVS) < 0.2)

    def close(self) -> None: ...

    def _shown(self, first: np.ndarray) -> dict[str, EnvStep]:
        observation = {name: array.numpy() for name, array in observe(self.spec, NUM_ENVS).items()}
        reward = self._random.normal(size=NUM_ENVS, scale=30.0).astype(np.float32)
        no = np.zeros(NUM_ENVS, np.bool_)
        return {"main": EnvStep(observation, reward, no, no, first, no)}


def build(kind: str, action: ActionSpec, *observation: ArraySpec, **settings: Any) -> Policy:
    torch.manual_seed(3)
    given = {"kind": kind, "hidden_sizes": (8,), "recurrent": "lstm", "recurrent_size": 6, **settings}
    return build_policy(PolicySection.model_validate(given), with_previous(spec_of(action, *observation)))


def unrolls(policy: Policy, num: int) -> list[tuple[Columns, list[Tensor]]]:
    """As an actor records them: columns, and what the policy made of each row when it acted (`best`)."""
    spec = policy.spec
    own = [array for array in spec.observation if not array.name.startswith("previous.")]
    env = show_previous(RandomEnv(spec.action, *own))
    builder = UnrollBuilder(spec, ActWelcome("server", 0, policy.outputs, policy.state), NUM_ROWS, NUM_ENVS)
    builder.start(env.reset(1)["main"])
    state = policy.initial_state(NUM_ENVS, CPU)
    recorded = []
    with torch.inference_mode():
        builder.begin_stream()
        for _ in range(num):
            made = []
            while not builder.full:
                observation = {name: torch.tensor(array) for name, array in builder.observation.items()}
                first = torch.tensor(builder.first)
                made.append(policy.best(observation, first, state).params)
                before = {name: tensor.numpy() for name, tensor in state.items() if "frames" not in name}
                acted = policy.act(observation, first, state, Choice())
                state = acted.state
                outputs = {name: tensor.numpy() for name, tensor in acted.outputs.items()}
                shown = env.step({"main": outputs[ACTION]})["main"]
                builder.add(ActReply(0, outputs, before), shown)
            recorded.append(
                ({name: column.copy() for name, column in builder.trajectory().columns.items()}, made)
            )
            builder.carry_over()
    return recorded


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("settings", [{}, {"frame_stack": 3, "normalise_observations": True}])
@pytest.mark.parametrize("case", list(ACTIONS))
def test_learning_sees_what_acting_saw(case: str, core: str, settings: dict[str, Any]) -> None:
    kind, action = ACTIONS[case]
    policy = build(kind, action, VECTOR, *MIXED, recurrent=core, **settings)
    for columns, made in unrolls(policy, 3):
        observation = {array.name: torch.tensor(columns[array.name]) for array in policy.spec.observation}
        state = {array.name: torch.tensor(columns[INITIAL + array.name][0]) for array in policy.state}
        with torch.no_grad():
            found = policy(observation, torch.tensor(columns[FIRST]), state)
            learned = found if isinstance(found, Tensor) else found.params
            if kind == "deterministic":
                learned = policy.bounds.to_unit(learned)  # type: ignore[operator, union-attr]
        for row, params in enumerate(made):
            torch.testing.assert_close(learned[row], params, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("case", ["q", "actor_critic, multi", "actor_critic, box"])
def test_rows_hold_the_action_and_reward_of_the_row_before(case: str) -> None:
    """Also over the border of two unrolls; nothing at the start of an episode."""
    kind, action = ACTIONS[case]
    policy = build(kind, action)
    (one, _), (two, _) = unrolls(policy, 2)
    for name in (PREVIOUS_ACTION, PREVIOUS_REWARD):
        np.testing.assert_array_equal(one[name][-1], two[name][0])
    assert one[FIRST][1:].any(), "an episode started in the midst"
    for columns in (one, two):
        for row in range(1, NUM_ROWS + 1):
            first = columns[FIRST][row]
            expected = np.where(first, 0.0, symlog(columns[REWARD][row - 1]))
            np.testing.assert_allclose(columns[PREVIOUS_REWARD][row], expected, rtol=1e-5)
            shown, taken = columns[PREVIOUS_ACTION][row], columns[ACTION][row - 1]
            if case == "actor_critic, box":
                assert not shown[first].any()
                # Elements without an upper bound are clipped, and no fresh policy goes as far.
                np.testing.assert_allclose(shown[~first], taken[~first], rtol=1e-5)
            else:
                assert not shown[first].any()
                np.testing.assert_array_equal(shown[~first], taken[~first] + 1)


@pytest.mark.parametrize("name", [PREVIOUS_ACTION, PREVIOUS_REWARD])
@pytest.mark.parametrize("case", ["q", "soft_actor_critic"])
def test_the_core_sees_both(case: str, name: str) -> None:
    policy = build(*ACTIONS[case], frame_stack=2)
    observation, first = observe(policy.spec, 5), torch.zeros(5, dtype=torch.bool)
    state = policy.initial_state(5, CPU)
    with torch.no_grad():
        observation[name] = torch.zeros_like(observation[name])
        before = policy.best(observation, first, state).params
        observation[name] = torch.ones_like(observation[name])
        after = policy.best(observation, first, state).params
    assert bool((before != after).any(-1).all())


def test_without_a_core_and_without_the_setting_nothing_needs_them() -> None:
    assert PolicySection.model_validate({"recurrent": "gru"}).needs_previous
    assert not PolicySection().needs_previous
    assert not PolicySection.model_validate({"recurrent": "gru", "previous_inputs": False}).needs_previous


def test_a_spec_without_them_makes_the_network_of_before() -> None:
    """What a checkpoint's spec does not show is no input, whatever the settings say."""
    section = PolicySection.model_validate({"recurrent": "lstm", "recurrent_size": 6, "hidden_sizes": (8,)})
    policy = build_policy(section, spec_of(DiscreteAction(3)))
    assert policy.trunk.core is not None
    assert policy.trunk.core.cell.weight_ih.shape == (24, 8)
    shown = build_policy(section, with_previous(spec_of(DiscreteAction(3))))
    assert shown.trunk.core is not None
    assert shown.trunk.core.cell.weight_ih.shape == (24, 8 + 4 + 1)


def test_eval_plays_and_export_steps_with_them() -> None:
    policy = build("actor_critic", DiscreteAction(3), VECTOR, mask_of(3))
    env = show_previous(RandomEnv(DiscreteAction(3), VECTOR, mask_of(3)))
    player, network = PolicyPlayer(policy, NUM_ENVS, CPU, greedy=True), ActingNetwork(policy)
    assert {PREVIOUS_ACTION, PREVIOUS_REWARD} <= {array.name for array in network.inputs}
    state = policy.initial_state(NUM_ENVS, CPU)
    shown = env.reset(1)["main"]
    for _ in range(6):
        observation = {name: torch.tensor(array) for name, array in shown.observation.items()}
        with torch.no_grad():
            outputs = network(observation, torch.tensor(shown.first), state)
        state = {array.name: outputs[f"next.{array.name}"] for array in policy.state}
        action = player.act(shown)
        np.testing.assert_array_equal(action, outputs[ACTION].numpy())
        shown = env.step({"main": action})["main"]
