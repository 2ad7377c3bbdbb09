"""What is done to rewards, by hand; the size of returns against slow sums and against returns themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.batch import Batch
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.algorithms.returns import MAX_NORMALISED, MIN_RATE, ReturnScale
from shoal.algorithms.rewards import RewardConditioner

REWARDS = torch.tensor([[-20.0, -0.5], [0.0, 3.0]])


def make_batch(
    reward_SB: Tensor,
    terminated_SB: Tensor | None = None,
    truncated_SB: Tensor | None = None,
    first_SB: Tensor | None = None,
    discount_SB: Tensor | None = None,
) -> Batch:
    none = torch.zeros(reward_SB.shape, dtype=torch.bool)
    return Batch(
        observation={},
        action_SB=none,
        reward_SB=reward_SB,
        terminated_SB=none if terminated_SB is None else terminated_SB,
        truncated_SB=none if truncated_SB is None else truncated_SB,
        first_SB=none if first_SB is None else first_SB,
        weight_B=torch.ones(reward_SB.shape[1]),
        discount_SB=discount_SB,
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [[-20.0, -0.5], [0.0, 3.0]]),
        ({"reward_scale": 0.1}, [[-2.0, -0.05], [0.0, 0.3]]),
        ({"reward_clip": 1.0}, [[-1.0, -0.5], [0.0, 1.0]]),
        ({"reward_symlog": True}, [[-math.log(21.0), -math.log(1.5)], [0.0, math.log(4.0)]]),
        (
            {"reward_symlog": True, "reward_clip": 2.0, "reward_scale": 10.0},
            [[-20.0, -10.0 * math.log(1.5)], [0.0, 10.0 * math.log(4.0)]],
        ),
    ],
)
def test_symlog_then_clip_then_scale(settings: dict[str, object], expected: list[list[float]]) -> None:
    rewards = RewardConditioner(ImpalaConfig.model_validate(settings))
    torch.testing.assert_close(rewards(REWARDS), torch.tensor(expected))
    assert rewards.moments(make_batch(REWARDS)) is None
    assert not rewards.state_dict()


def test_returns_are_those_of_clipped_rewards_and_the_scale_comes_last() -> None:
    config = ImpalaConfig(normalise_returns=True, reward_clip=2.0, reward_scale=3.0, discount=0.5)
    rewards = RewardConditioner(config)
    torch.testing.assert_close(rewards(torch.tensor([1.0])), torch.tensor([3.0]))
    batch = make_batch(torch.tensor([[2.0, 9.0], [7.0, 7.0]]))
    moments = rewards.moments(batch)
    assert moments is not None
    rewards.observe(moments)
    # A reward of 2 each step, halved each time: a return of 4.
    torch.testing.assert_close(rewards(torch.tensor([2.0, -9.0])), torch.tensor([1.5, -1.5]))


def slow_unroll(batch: Batch, env: int, discount: float) -> tuple[float, float] | None:
    """A and d, step by step; None of an unroll that starts with an autoreset step."""
    total, factor = 0.0, 1.0
    num_steps = len(batch.reward_SB) - 1
    if batch.first_SB[1, env]:
        return None
    for step in range(num_steps):
        if batch.first_SB[step + 1, env]:
            break
        total += factor * batch.reward_SB[step, env].item()
        factor *= discount
        if batch.terminated_SB[step, env]:
            return total, 0.0
        if batch.truncated_SB[step, env]:
            break
    return total, factor


def random_batch(rng: np.random.Generator, num_steps: int, num_envs: int) -> Batch:
    """Ends of both kinds, each followed by an autoreset step, here and there two in a row."""
    shape = (num_steps + 1, num_envs)
    terminated, truncated, first = (torch.zeros(shape, dtype=torch.bool) for _ in range(3))
    for env in range(num_envs):
        step = int(rng.integers(0, 2 * num_steps))
        while step < num_steps:
            (terminated if rng.random() < 0.5 else truncated)[step, env] = True
            # The step behind the end is the autoreset step, which leads to the first row of the next episode.
            if step + 2 <= num_steps:
                first[step + 2, env] = True
            step += 2 + int(rng.integers(0, num_steps))
        if rng.random() < 0.3:
            first[1, env] = True
    return make_batch(torch.from_numpy(rng.normal(1.0, 2.0, shape)).float(), terminated, truncated, first)


@pytest.mark.parametrize("num_learners", [1, 2])
def test_moments_are_those_of_slow_sums(num_learners: int) -> None:
    rng = np.random.default_rng(5)
    scale = ReturnScale(0.9)
    pairs: list[tuple[float, float]] = []
    for _ in range(3):
        parts = [random_batch(rng, 7, 40) for _ in range(num_learners)]
        for part in parts:
            pairs += [pair for env in range(40) if (pair := slow_unroll(part, env, 0.9)) is not None]
        scale.observe(torch.stack([scale.moments(part, part.reward_SB) for part in parts]).sum(0))
    assert {0.0} < {d for _, d in pairs}
    sums, rests = np.array(pairs).T
    assert scale.count.item() == len(pairs)
    expected = [np.mean(x) for x in (sums, sums**2, rests, rests**2, sums * rests)]
    np.testing.assert_allclose(scale.means.numpy(), expected, rtol=1e-6)
    mean = expected[0] / (1 - expected[2])
    assert scale.mean_square().item() == pytest.approx(
        (expected[1] + 2 * expected[4] * mean) / (1 - expected[3])
    )


def test_of_single_transitions_the_table_has_summed_up() -> None:
    scale = ReturnScale(0.9)
    reward = torch.tensor([[3.0, 5.0], [77.0, 77.0]])
    discount = torch.tensor([[0.81, 0.0], [0.0, 0.0]])
    scale.observe(scale.moments(make_batch(reward, discount_SB=discount), reward))
    np.testing.assert_allclose(scale.means.numpy(), [4.0, 17.0, 0.405, 0.81**2 / 2, 3 * 0.81 / 2], rtol=1e-6)


@pytest.mark.parametrize("end_chance", [0.0, 0.02])
@pytest.mark.parametrize("deviation", [0.0, 3.0])
def test_unrolls_tell_the_size_of_whole_returns(end_chance: float, deviation: float) -> None:
    """Rewards 1 +- deviation, ends at any time: short unrolls know the returns of long runs."""
    discount, num_steps, length, num_envs = 0.97, 4_000, 8, 32
    rng = np.random.default_rng(1)
    reward = rng.normal(1.0, deviation, (num_steps, num_envs))
    terminated = rng.random((num_steps, num_envs)) < end_chance
    returns = np.zeros((num_steps + 1, num_envs))
    for step in reversed(range(num_steps)):
        returns[step] = reward[step] + discount * returns[step + 1] * ~terminated[step]
    truth = np.sqrt(np.square(returns[:-500]).mean())

    scale = ReturnScale(discount)
    for start in range(0, num_steps - length, length):
        rows = slice(start, start + length + 1)
        batch = make_batch(torch.from_numpy(reward[rows]).float(), torch.from_numpy(terminated[rows]))
        scale.observe(scale.moments(batch, batch.reward_SB))
    found = scale.mean_square().sqrt().item()
    print(f"ends {end_chance}, deviation {deviation}: {found:.2f} of {truth:.2f}")
    assert found == pytest.approx(truth, rel=0.06)


def test_any_unit_of_rewards_gives_the_same() -> None:
    rng = np.random.default_rng(2)
    batch = random_batch(rng, 7, 40)
    shown = []
    for unit in (1e-3, 1.0, 1e5):
        scale = ReturnScale(0.99)
        reward = batch.reward_SB * unit
        scale.observe(scale.moments(batch, reward))
        shown.append(scale(reward))
    torch.testing.assert_close(shown[0], shown[1])
    torch.testing.assert_close(shown[2], shown[1])


def test_the_first_reward_after_many_zeros_is_clipped_and_old_batches_fade() -> None:
    scale = ReturnScale(0.5)
    zeros, ones = torch.zeros(5, 4), torch.ones(5, 4)
    scale.observe(scale.moments(make_batch(zeros), zeros))
    # As if there had been very many of them.
    scale.count.fill_(1e9)
    assert scale(zeros).eq(0.0).all()
    moments = scale.moments(make_batch(ones), ones)
    scale.observe(moments)
    assert scale(ones * 100.0).eq(MAX_NORMALISED).all()
    for _ in range(299):
        scale.observe(moments)
    # Four rewards, halved each time; of what was before, this much is left.
    left = (1.0 - MIN_RATE) ** 300
    assert scale.means[0].item() == pytest.approx(1.875 * (1.0 - left))


def test_a_batch_of_autoreset_steps_changes_nothing() -> None:
    scale = ReturnScale(0.5)
    ones = torch.ones(2, 4)
    scale.observe(scale.moments(make_batch(ones), ones))
    before = {name: array.clone() for name, array in scale.state_dict().items()}
    first = torch.tensor([False, True])[:, None].expand(2, 4)
    scale.observe(scale.moments(make_batch(ones * 9.0, first_SB=first), ones * 9.0))
    for name, array in scale.state_dict().items():
        assert torch.equal(array, before[name])


def test_unrolls_that_do_not_count_have_no_part_in_the_moments() -> None:
    scale = ReturnScale(0.5)
    reward = torch.tensor([[1.0, 2.0, 900.0]]).expand(3, 3)
    batch = make_batch(reward)
    batch.weight_B[2] = 0.0
    kept = batch.take(slice(2))
    torch.testing.assert_close(scale.moments(batch, reward), scale.moments(kept, kept.reward_SB))


def test_without_discount_and_ends_the_scale_is_finite() -> None:
    scale = ReturnScale(1.0)
    ones = torch.ones(5, 4)
    scale.observe(scale.moments(make_batch(ones), ones))
    assert 0.0 < scale(ones).max().item() < 1.0
