"""Batches and policies over bounded Box actions, for the tests of SAC and TD3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.algorithms.algorithm import LossOutput
from shoal.algorithms.batch import Batch
from shoal.config.network import PolicySection
from shoal.policy.network import DeterministicPolicy, SoftActorCritic, build_policy
from shoal.records import BoxAction
from tests.unit.algorithms.ends import episode_ends, slow_return
from tests.unit.policy.stepping import VECTOR, observe, random_state, spec_of

# Three elements, each with bounds of its own.
BOX = BoxAction((3,), (-1.0, 0.0, -6.0), (1.0, 10.0, -2.0))
SPEC = spec_of(BOX, VECTOR)
NUM_STEPS, NUM_ENVS = 6, 3
# Kind of batch, n of its returns, what the policy remembers.
CASES: list[tuple[str, int, dict[str, object]]] = [
    ("transitions", 2, {}),
    ("unrolls", 1, {}),
    ("unrolls", 3, {}),
    ("unrolls", 1, {"frame_stack": 2}),
    ("unrolls", 3, {"recurrent": "lstm", "recurrent_size": 8}),
]


def soft_policy(**settings: object) -> SoftActorCritic:
    policy = _policy("soft_actor_critic", settings)
    assert isinstance(policy, SoftActorCritic)
    return policy


def deterministic_policy(**settings: object) -> DeterministicPolicy:
    policy = _policy("deterministic", settings)
    assert isinstance(policy, DeterministicPolicy)
    return policy


def _policy(kind: str, settings: dict[str, object]) -> SoftActorCritic | DeterministicPolicy:
    section = {"kind": kind, "hidden_sizes": (8,), **settings}
    policy = build_policy(PolicySection.model_validate(section), SPEC)
    assert isinstance(policy, SoftActorCritic | DeterministicPolicy)
    with torch.no_grad():
        # Far from the middle, so that differences show.
        policy.policy_head.weight *= 50.0
    return policy


def same_noise(monkeypatch: pytest.MonkeyPatch, deviations: float) -> None:
    """Every draw from a normal distribution is the same number of deviations off."""
    monkeypatch.setattr(torch, "randn_like", lambda tensor: torch.full_like(tensor, deviations))


def random_actions(*leading: int) -> Tensor:
    low, high = torch.tensor(BOX.low), torch.tensor(BOX.high)
    return low + (high - low) * torch.rand(*leading, len(low))


def unrolls(policy: SoftActorCritic | DeterministicPolicy) -> Batch:
    """The environments count differently."""
    shape = (NUM_STEPS + 1, NUM_ENVS)
    return Batch(
        observation=observe(SPEC, *shape),
        action_SB=random_actions(*shape),
        reward_SB=torch.randn(shape),
        **episode_ends(NUM_STEPS, NUM_ENVS)._asdict(),
        weight_B=torch.tensor([1.0, 0.5, 0.25]),
        state=random_state(policy, NUM_ENVS),
    )


def transitions(num: int = 5) -> Batch:
    """Single transitions as a table gives them; the last one ended in a terminal state."""
    none = torch.zeros(2, num, dtype=torch.bool)
    discount_SB = torch.full((2, num), 0.81)
    discount_SB[0, -1] = 0.0
    return Batch(
        observation=observe(SPEC, 2, num),
        action_SB=random_actions(2, num),
        reward_SB=torch.randn(2, num),
        terminated_SB=none,
        truncated_SB=none,
        first_SB=none,
        weight_B=torch.linspace(0.2, 1.0, num),
        discount_SB=discount_SB,
    )


def transitions_by_loops(batch: Batch, n: int, discount: float) -> list[tuple[int, int, float, float, int]]:
    """(t, b, summed reward, what the value after it is worth, row of that value), plain and slow."""
    if batch.discount_SB is not None:
        rewards, worth = batch.reward_SB[0].tolist(), batch.discount_SB[0].tolist()
        return [(0, b, rewards[b], worth[b], 1) for b in range(batch.num_items)]
    return [
        (t, b, *slow_return(batch, t, b, n, discount))
        for b in range(NUM_ENVS)
        for t in range(NUM_STEPS)
        if not batch.first_SB[t + 1, b]
    ]


def near(expected: float) -> Any:
    """As near as a loss in float32 is to the sums of plain loops."""
    return pytest.approx(expected, rel=2e-4, abs=1e-5)


class SlowCritics:
    """Squared errors of both critics and what priorities come of them, step by step."""

    def __init__(self, batch: Batch) -> None:
        self._weight_B: list[float] = batch.weight_B.tolist()
        self._errors: dict[int, list[float]] = {b: [] for b in range(batch.num_items)}
        self.loss = self.error = self.weight = 0.0

    def add(self, b: int, q: Sequence[float], target: float) -> float:
        """One step of environment `b`. Returns what it counts for."""
        weight = self._weight_B[b]
        self.loss += weight * 0.5 * sum((value - target) ** 2 for value in q)
        self._errors[b].append(sum(abs(value - target) for value in q) / 2)
        self.error += weight * self._errors[b][-1]
        self.weight += weight
        return weight

    def check(self, found: LossOutput) -> None:
        """All but the whole loss, which is the algorithm's own."""
        num_steps = sum(map(len, self._errors.values()))
        assert found.weight.item() == num_steps
        assert found.metrics["critic_loss"].item() == near(self.loss / num_steps)
        assert found.metrics["td_error"].item() == near(self.error / self.weight)
        assert found.priority_B is not None
        means = [sum(errors) / len(errors) for errors in self._errors.values()]
        assert found.priority_B.tolist() == pytest.approx(means, rel=1e-4)
        assert found.groups is None


def history(batch: Batch, t: int, b: int) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
    """All that environment `b` has shown up to row `t`, and what was remembered before."""
    observation = {name: tensor[: t + 1, b : b + 1] for name, tensor in batch.observation.items()}
    state = {name: tensor[b : b + 1] for name, tensor in batch.state.items()}
    return observation, batch.first_SB[: t + 1, b : b + 1], state
