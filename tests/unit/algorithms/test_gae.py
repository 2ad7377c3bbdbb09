"""GAE against its definition (a sum over the rest of the episode) and hand-worked numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.algorithms.gae import Gae, gae
from tests.unit.algorithms.rows import Rows, random_rows, stacked


def by_definition(rows: Rows, gamma: float, gae_lambda: float) -> np.ndarray:
    """Equation 16 of the paper: the sum of (gamma lambda)^l delta_t+l up to the end of the episode."""
    advantage = np.zeros(rows.length)
    for t in range(rows.length):
        if rows.first[t + 1]:
            continue
        for step in range(t, rows.end_of_episode(t) + 1):
            after = 0.0 if rows.terminated[step] else gamma * rows.value[step + 1]
            delta = rows.reward[step] + after - rows.value[step]
            advantage[t] += (gamma * gae_lambda) ** (step - t) * delta
    return advantage


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(1, 24),
    num_envs=st.integers(1, 5),
    done_rate=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    gamma=st.sampled_from([0.0, 0.9, 0.99, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.7, 0.95, 1.0]),
)
def test_equals_the_definition(
    seed: int, length: int, num_envs: int, done_rate: float, gamma: float, gae_lambda: float
) -> None:
    rng = np.random.default_rng(seed)
    envs = [random_rows(rng, length, done_rate) for _ in range(num_envs)]
    result = gae(
        reward_TB=stacked(envs, "reward"),
        discount_TB=(~stacked(envs, "terminated")).double() * gamma,
        value_SB=stacked(envs, "value"),
        valid_TB=(~stacked(envs, "first")[1:]).double(),
        gae_lambda=gae_lambda,
    )
    for env, rows in enumerate(envs):
        advantage = by_definition(rows, gamma, gae_lambda)
        np.testing.assert_allclose(result.advantage_TB[:, env], advantage, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(
            result.return_TB[:, env], advantage + rows.value[:-1], rtol=1e-9, atol=1e-9
        )


def hand_worked(**changes: list[float]) -> Gae:
    """gamma 0.5, lambda 0.5, rewards 1, 2, 3, V = 4, 3, 2, 1 unless changed."""
    rows: dict[str, list[float]] = {
        "reward": [1.0, 2.0, 3.0],
        "discount": [0.5, 0.5, 0.5],
        "value": [4.0, 3.0, 2.0, 1.0],
        "valid": [1.0, 1.0, 1.0],
    }
    column = {name: torch.tensor(row).unsqueeze(1) for name, row in (rows | changes).items()}
    return gae(
        reward_TB=column["reward"],
        discount_TB=column["discount"],
        value_SB=column["value"],
        valid_TB=column["valid"],
        gae_lambda=0.5,
    )


def check(result: Gae, advantage: list[float], returns: list[float]) -> None:
    assert result.advantage_TB.squeeze(1).tolist() == pytest.approx(advantage)
    assert result.return_TB.squeeze(1).tolist() == pytest.approx(returns)


def test_running_episode_by_hand() -> None:
    # delta: 1 + 1.5 - 4 = -1.5;  2 + 1 - 3 = 0;  3 + .5 - 2 = 1.5
    # A2 = 1.5;  A1 = 0 + .25*1.5 = .375;  A0 = -1.5 + .25*.375 = -1.40625
    check(hand_worked(), [-1.40625, 0.375, 1.5], [2.59375, 3.375, 3.5])


def test_terminated_by_hand() -> None:
    # The episode terminates at step 1: row 2 shows its final observation, step 2 is the autoreset.
    # delta1 = 2 - 3 = -1;  A0 = -1.5 + .25*(-1) = -1.75
    result = hand_worked(discount=[0.5, 0.0, 0.5], valid=[1.0, 1.0, 0.0], reward=[1.0, 2.0, 9.0])
    check(result, [-1.75, -1.0, 0.0], [2.25, 2.0, 2.0])


def test_truncated_by_hand() -> None:
    # As above, but truncated: step 1 bootstraps from V = 2 of the final observation: delta1 = 2 + 1 - 3 = 0
    result = hand_worked(valid=[1.0, 1.0, 0.0], reward=[1.0, 2.0, 9.0])
    check(result, [-1.5, 0.0, 0.0], [2.5, 3.0, 2.0])


def test_autoreset_first_then_running_by_hand() -> None:
    check(hand_worked(valid=[0.0, 1.0, 1.0]), [0.0, 0.375, 1.5], [4.0, 3.375, 3.5])


def test_needs_no_gradient() -> None:
    value, ones = torch.randn(4, 2, requires_grad=True), torch.ones(3, 2)
    result = gae(reward_TB=ones, discount_TB=ones, value_SB=value, valid_TB=ones, gae_lambda=0.9)
    assert not result.advantage_TB.requires_grad
    assert not result.return_TB.requires_grad
