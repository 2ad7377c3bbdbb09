"""V-trace against the paper's definition (sums of products, episode by episode) and hand-worked numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.algorithms.vtrace import VTrace, vtrace
from tests.unit.algorithms.rows import Rows, random_rows, stacked


@dataclass(frozen=True)
class Unroll(Rows):
    log_rho: np.ndarray


def random_unroll(rng: np.random.Generator, length: int, done_rate: float) -> Unroll:
    rows = random_rows(rng, length, done_rate)
    # Of an autoreset step beyond exp's range.
    log_rho = np.where(rows.first[1:], 200.0, rng.normal(0.0, 1.0, length))
    return Unroll(**vars(rows), log_rho=log_rho)


def by_definition(
    unroll: Unroll, gamma: float, rho_clip: float, c_clip: float, trace_lambda: float
) -> tuple[np.ndarray, np.ndarray]:
    """Equation 1 of the paper, term by term, within each episode; what an autoreset step has is unused."""
    length = unroll.length
    valid = ~unroll.first[1:]
    value, ratio = unroll.value, np.exp(np.clip(unroll.log_rho, None, 50.0))
    rho = np.minimum(rho_clip, ratio)
    c = trace_lambda * np.minimum(c_clip, ratio)

    def gamma_at(t: int) -> float:
        return 0.0 if unroll.terminated[t] else gamma

    def delta(t: int) -> float:
        return float(rho[t] * (unroll.reward[t] + gamma_at(t) * value[t + 1] - value[t]))

    vs = value.copy()
    for s in range(length):
        if not valid[s]:
            continue
        for t in range(s, unroll.end_of_episode(s) + 1):
            vs[s] += np.prod([gamma * c[i] for i in range(s, t)]) * delta(t)
    advantage = np.zeros(length)
    for s in range(length):
        if valid[s]:
            done = unroll.terminated[s] or unroll.truncated[s]
            after = value[s + 1] if done else vs[s + 1]
            advantage[s] = rho[s] * (unroll.reward[s] + gamma_at(s) * after - value[s])
    return vs[:-1], advantage


def fast(unrolls: list[Unroll], gamma: float, rho_clip: float, c_clip: float, trace_lambda: float) -> VTrace:
    return vtrace(
        log_rho_TB=stacked(unrolls, "log_rho"),
        reward_TB=stacked(unrolls, "reward"),
        discount_TB=(~stacked(unrolls, "terminated")).double() * gamma,
        value_SB=stacked(unrolls, "value"),
        valid_TB=(~stacked(unrolls, "first")[1:]).double(),
        rho_clip=rho_clip,
        c_clip=c_clip,
        trace_lambda=trace_lambda,
    )


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(1, 24),
    num_envs=st.integers(1, 5),
    done_rate=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    gamma=st.sampled_from([0.0, 0.9, 0.99, 1.0]),
    rho_clip=st.sampled_from([0.5, 1.0, 4.0]),
    c_clip=st.sampled_from([0.5, 1.0, 2.0]),
    trace_lambda=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_equals_the_definition(
    seed: int,
    length: int,
    num_envs: int,
    done_rate: float,
    gamma: float,
    rho_clip: float,
    c_clip: float,
    trace_lambda: float,
) -> None:
    rng = np.random.default_rng(seed)
    unrolls = [random_unroll(rng, length, done_rate) for _ in range(num_envs)]
    result = fast(unrolls, gamma, rho_clip, c_clip, trace_lambda)
    for env, unroll in enumerate(unrolls):
        vs, advantage = by_definition(unroll, gamma, rho_clip, c_clip, trace_lambda)
        np.testing.assert_allclose(result.vs_TB[:, env].numpy(), vs, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(result.advantage_TB[:, env].numpy(), advantage, rtol=1e-9, atol=1e-9)


def hand_worked(**changes: list[float]) -> VTrace:
    """gamma 0.5, ratios 2, 0.5, 1 (rho and c: 1, 0.5, 1), rewards 1, 2, 3, V = 4, 3, 2, 1 unless changed."""
    rows: dict[str, list[float]] = {
        "ratio": [2.0, 0.5, 1.0],
        "reward": [1.0, 2.0, 3.0],
        "discount": [0.5, 0.5, 0.5],
        "value": [4.0, 3.0, 2.0, 1.0],
        "valid": [1.0, 1.0, 1.0],
    }
    column = {name: torch.tensor(row).unsqueeze(1) for name, row in (rows | changes).items()}
    return vtrace(
        log_rho_TB=column["ratio"].log(),
        reward_TB=column["reward"],
        discount_TB=column["discount"],
        value_SB=column["value"],
        valid_TB=column["valid"],
        rho_clip=1.0,
        c_clip=1.0,
        trace_lambda=1.0,
    )


def check(result: VTrace, vs: list[float], advantage: list[float]) -> None:
    assert result.vs_TB.squeeze(1).tolist() == pytest.approx(vs)
    assert result.advantage_TB.squeeze(1).tolist() == pytest.approx(advantage)


def test_running_episode_by_hand() -> None:
    # delta: 1(1 + 1.5 - 4) = -1.5;  .5(2 + 1 - 3) = 0;  1(3 + .5 - 2) = 1.5
    # v2 = 2 + 1.5 = 3.5;  v1 = 3 + 0 + .5*.5*1.5 = 3.375;  v0 = 4 - 1.5 + .5*1*.375 = 2.6875
    # advantage: 1 + .5*3.375 - 4;  .5(2 + .5*3.5 - 3);  3 + .5*1 - 2
    check(hand_worked(), [2.6875, 3.375, 3.5], [-1.3125, 0.375, 1.5])


def test_terminated_by_hand() -> None:
    # The episode terminates at step 1: row 2 shows its final observation, step 2 is the autoreset.
    # v2 = V = 2;  delta1 = .5(2 - 3) = -.5, v1 = 2.5;  v0 = 4 - 1.5 + .5*1*(-.5) = 2.25
    result = hand_worked(discount=[0.5, 0.0, 0.5], valid=[1.0, 1.0, 0.0], reward=[1.0, 2.0, 0.0])
    check(result, [2.25, 2.5, 2.0], [1 + 0.5 * 2.5 - 4, -0.5, 0.0])


def test_truncated_by_hand() -> None:
    # As above, but truncated: step 1 bootstraps from V = 2 of the final observation.
    # delta1 = .5(2 + .5*2 - 3) = 0, v1 = 3;  v0 = 4 - 1.5 + 0 = 2.5
    result = hand_worked(valid=[1.0, 1.0, 0.0], reward=[1.0, 2.0, 0.0])
    check(result, [2.5, 3.0, 2.0], [1 + 0.5 * 3 - 4, 0.0, 0.0])


def test_autoreset_first_then_running_by_hand() -> None:
    # Step 0 is the autoreset left over from the previous unroll: v0 = V, and steps 1, 2 stand alone.
    check(hand_worked(valid=[0.0, 1.0, 1.0]), [4.0, 3.375, 3.5], [0.0, 0.375, 1.5])


def test_on_policy_is_the_n_step_return() -> None:
    """With pi = mu the target is the discounted sum of rewards plus the bootstrap (paper, remark)."""
    result = hand_worked(ratio=[1.0, 1.0, 1.0])
    expected = [1 + 0.5 * (2 + 0.5 * (3 + 0.5 * 1)), 2 + 0.5 * (3 + 0.5 * 1), 3 + 0.5 * 1]
    assert result.vs_TB.squeeze(1).tolist() == pytest.approx(expected)


def test_needs_no_gradient() -> None:
    value = torch.randn(4, 2, requires_grad=True)
    ones = torch.ones(3, 2)
    result = vtrace(
        log_rho_TB=torch.zeros(3, 2),
        reward_TB=ones,
        discount_TB=ones,
        value_SB=value,
        valid_TB=ones,
        rho_clip=1.0,
        c_clip=1.0,
        trace_lambda=1.0,
    )
    assert not any(tensor.requires_grad for tensor in result)
