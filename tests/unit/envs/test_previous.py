"""The previous action and reward beside what environments show, over episode starts."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from shoal.envs.batch import EnvStep, Slots
from shoal.envs.previous import show_previous, symlog, with_previous
from shoal.records import (
    OBSERVATION,
    PREVIOUS_ACTION,
    PREVIOUS_REWARD,
    ActionSpec,
    ArraySpec,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    MultiDiscreteAction,
)


class Scripted:
    """Two slots, of which the first starts an episode with every third step; rewards count."""

    waits = False
    num_restarts = 7

    def __init__(self, action: ActionSpec) -> None:
        spec = EnvSpec("Scripted", (ArraySpec(OBSERVATION, "float32", ()),), action)
        self.slots = {"main": Slots(spec, 2)}
        self.num_steps = 0
        self.is_closed = False

    def reset(self, seed: int) -> dict[str, EnvStep]:
        self.num_steps = 0
        return self._shown(np.ones(2, np.bool_))

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, EnvStep]:
        self.num_steps += 1
        return self._shown(np.array([self.num_steps % 3 == 0, False]))

    def close(self) -> None:
        self.is_closed = True

    def _shown(self, first: np.ndarray) -> dict[str, EnvStep]:
        no = np.zeros(2, np.bool_)
        reward = np.array([self.num_steps, -100.0 * self.num_steps], np.float32)
        shown = np.full(2, self.num_steps, np.float32)
        return {"main": EnvStep({OBSERVATION: shown}, reward, no, no, first, no)}


def actions_shown(action: ActionSpec, taken: list[np.ndarray]) -> list[np.ndarray]:
    """After the reset and after each of the actions."""
    env = show_previous(Scripted(action))
    spec = env.slots["main"].spec
    assert [array.name for array in spec.observation] == [OBSERVATION, PREVIOUS_ACTION, PREVIOUS_REWARD]
    steps = [env.reset(1)["main"], *(env.step({"main": rows})["main"] for rows in taken)]
    for step in steps:
        for array in spec.observation:
            column = step.observation[array.name]
            assert (column.dtype, column.shape) == (array.dtype, (2, *array.shape))
            # Shards refuse categories out of range.
            assert not array.num_categories or 0 <= column.min() <= column.max() < array.num_categories
    return [step.observation[PREVIOUS_ACTION] for step in steps]


def test_discrete_actions_are_shown_but_for_starts() -> None:
    shown = actions_shown(DiscreteAction(4), [np.array([3, n]) for n in (1, 2, 3, 0)])
    assert [rows.tolist() for rows in shown] == [[0, 0], [4, 2], [4, 3], [0, 4], [4, 1]]


def test_every_element_of_multi_discrete() -> None:
    shown = actions_shown(MultiDiscreteAction((3, 2)), [np.array([[2, 1], [0, 1]])] * 3)
    assert shown[0].tolist() == [[0, 0], [0, 0]]
    assert shown[2].tolist() == [[3, 2], [1, 2]]
    assert shown[3].tolist() == [[0, 0], [1, 2]]


def test_box_actions_are_scaled_by_their_bounds() -> None:
    box = BoxAction((3,), (10.0, -math.inf, -3e38), (30.0, 5.0, 3e38))
    taken = np.array([[15.0, -3.0, 3e38], [35.0, 99.0, 0.0]], np.float32)
    shown = actions_shown(box, [taken] * 3)
    assert shown[0].tolist() == [[0.0] * 3] * 2
    np.testing.assert_allclose(shown[1], [[-0.5, -3.0, 1.0], [1.0, 10.0, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(shown[3], [[0.0] * 3, [1.0, 10.0, 0.0]], rtol=1e-6)


def test_rewards_are_shrunk_and_zero_at_starts() -> None:
    env = show_previous(Scripted(DiscreteAction(2)))
    steps = [env.reset(1)["main"], *(env.step({"main": np.zeros(2, int)})["main"] for _ in range(4))]
    shown = np.stack([step.observation[PREVIOUS_REWARD] for step in steps])
    expected = [
        [0.0 if n in (0, 3) else math.log1p(n), 0.0 if n == 0 else -math.log1p(100 * n)] for n in range(5)
    ]
    np.testing.assert_allclose(shown, expected, rtol=1e-6)
    assert symlog(np.array([-0.0])).item() == 0.0
    assert symlog(np.array([1e-3])).item() == pytest.approx(1e-3, rel=1e-3)


def test_the_rest_is_the_environments_own() -> None:
    inner = Scripted(DiscreteAction(2))
    env = show_previous(inner)
    step = env.reset(3)["main"]
    assert step.observation[OBSERVATION].tolist() == [0.0, 0.0]
    assert step.first.all()
    assert (env.waits, env.num_restarts) == (False, 7)
    env.close()
    assert inner.is_closed


def test_a_spec_says_whether_it_shows_them() -> None:
    spec = EnvSpec("X", (ArraySpec(OBSERVATION, "float32", ()),), DiscreteAction(5))
    assert not spec.shows_previous
    shown = with_previous(spec)
    assert shown.shows_previous
    assert shown.observation[1] == ArraySpec(PREVIOUS_ACTION, "int32", (), 6)
