"""The clipped objective against plain loops, and the passes over parts of a batch."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms.batch import Batch
from shoal.algorithms.clipped import (
    ADVANTAGE,
    OLD_LOG_PROB,
    OLD_VALUE,
    RETURN,
    RHO,
    ClippedAlgorithm,
    clipped_loss,
)
from shoal.algorithms.ppo.algorithm import Ppo
from shoal.algorithms.ppo.profile import PpoConfig
from shoal.algorithms.step_factor import step_factor
from tests.unit.algorithms.ends import AUTORESET
from tests.unit.algorithms.table_policy import NUM_ENVS, NUM_STEPS, TablePolicy, make_batch, places_of

CONFIG = PpoConfig(clip=0.2, value_cost=0.7, entropy_cost=0.05)


def with_targets(batch: Batch, *, rho: bool = False) -> Batch:
    """Targets at random; old log probabilities near the table's own, so that some ratios are clipped."""
    generator = torch.Generator().manual_seed(3)
    old = TablePolicy().log_probs(batch.action_SB)[:-1]

    def normal() -> Tensor:
        return torch.randn(NUM_STEPS, NUM_ENVS, generator=generator)

    targets = {
        ADVANTAGE: normal(),
        RETURN: normal(),
        OLD_LOG_PROB: old + 0.3 * normal(),
        OLD_VALUE: normal(),
    }
    return replace(batch, targets=targets | ({RHO: normal().abs()} if rho else {}))


@pytest.mark.parametrize("value_clip", [None, 0.3])
@pytest.mark.parametrize("rho", [False, True])
def test_value_against_plain_loops(value_clip: float | None, rho: bool) -> None:
    policy, batch = TablePolicy(), with_targets(make_batch(), rho=rho)
    log_pi, targets = policy.log_probs(batch.action_SB), batch.targets
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0])
    names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
    sums, count = dict.fromkeys(names, 0.0), 0
    for t in range(NUM_STEPS):
        for b in range(NUM_ENVS):
            if (t, b) in AUTORESET or weight[b] == 0:
                continue
            count += 1
            ratio = math.exp(log_pi[t, b] - targets[OLD_LOG_PROB][t, b])
            advantage = float(targets[ADVANTAGE][t, b]) * (float(targets[RHO][t, b]) if rho else 1.0)
            clipped = min(max(ratio, 0.8), 1.2)
            sums["policy_loss"] -= min(ratio * advantage, clipped * advantage)
            columns = (policy.value.detach(), targets[OLD_VALUE], targets[RETURN])
            value, old, goal = (float(column[t, b]) for column in columns)
            square = (value - goal) ** 2
            if value_clip is not None:
                kept = old + min(max(value - old, -value_clip), value_clip)
                square = max(square, (kept - goal) ** 2)
            sums["value_loss"] += 0.5 * square
            probs = torch.softmax(policy.logits[t, b], -1).tolist()
            sums["entropy"] -= sum(p * math.log(p) for p in probs)
            sums["approx_kl"] += ratio - 1.0 - math.log(ratio)
            sums["clip_fraction"] += clipped != ratio
    assert 0 < sums["clip_fraction"] < count

    output = clipped_loss(policy, replace(batch, weight_B=weight), CONFIG, value_clip)
    means = {name: total / count for name, total in sums.items()}
    assert {name: output.metrics[name].item() for name in names} == pytest.approx(means, rel=1e-4)
    total = means["policy_loss"] + 0.7 * means["value_loss"] - 0.05 * means["entropy"]
    assert output.loss.item() == pytest.approx(total, rel=1e-4)
    assert output.weight.item() == count
    assert not any(metric.requires_grad for metric in output.metrics.values())


def test_autoreset_steps_count_for_nothing() -> None:
    policy, batch = TablePolicy(), with_targets(make_batch())
    reference = clipped_loss(policy, batch, CONFIG)
    reference.loss.backward()
    assert policy.logits.grad is not None
    assert policy.value.grad is not None
    wild = {name: target.clone() for name, target in batch.targets.items()}
    for t, b in AUTORESET:
        assert policy.logits.grad[t, b].abs().max() == 0
        assert policy.value.grad[t, b] == 0
        for target in wild.values():
            target[t, b] = -1e9
    other = clipped_loss(policy, replace(batch, targets=wild), CONFIG)
    torch.testing.assert_close(other.loss, reference.loss)


def test_no_gradient_beyond_the_clip_in_the_direction_of_the_advantage() -> None:
    policy, batch = TablePolicy(), with_targets(make_batch())
    # Ratios of e and 1/e everywhere, good and bad actions: only moves back are worth something.
    log_pi = policy.log_probs(batch.action_SB)[:-1]
    further = torch.ones(NUM_STEPS, NUM_ENVS)
    further[::2] = -1.0
    targets = batch.targets | {OLD_LOG_PROB: log_pi - further}
    config = CONFIG.model_copy(update={"entropy_cost": 0.0, "value_cost": 0.0})
    clipped_loss(policy, replace(batch, targets=targets), config).loss.backward()
    assert policy.logits.grad is not None
    moved = policy.logits.grad[:-1].abs().amax(-1) > 0
    expected = (further * batch.targets[ADVANTAGE] < 0) & ~batch.first_SB[1:]
    assert moved.tolist() == expected.tolist()
    assert 0 < expected.sum() < expected.numel()


def test_a_policy_far_from_the_old_one_has_a_finite_loss() -> None:
    policy, batch = TablePolicy(), with_targets(make_batch())
    targets = batch.targets | {OLD_LOG_PROB: torch.full((NUM_STEPS, NUM_ENVS), -1e6)}
    output = clipped_loss(policy, replace(batch, targets=targets), CONFIG)
    output.loss.backward()
    assert output.loss.isfinite()
    assert all(metric.isfinite() for metric in output.metrics.values())


def algorithm(*, has_state: bool = False, **settings: object) -> Ppo:
    return Ppo(PpoConfig.model_validate({"name": "ppo", **settings}), TablePolicy(has_state))


def steps_of(part: Batch) -> list[tuple[int, int]]:
    """Row and environment of each step."""
    rows, envs = places_of(part)
    return list(zip(rows.flatten().tolist(), envs.flatten().tolist(), strict=True))


ALL_STEPS = [(t, b) for t in range(NUM_STEPS) for b in range(NUM_ENVS)]


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("minibatches", [1, 2, 3, 9, 99])
def test_each_epoch_sees_every_step_once_in_an_order_of_its_own(minibatches: int, has_state: bool) -> None:
    """Parts are as equal as can be: of steps, or of environments where the policy has a state."""
    torch.manual_seed(0)
    parts = list(algorithm(has_state=has_state, epochs=8, minibatches=minibatches).passes(make_batch()))
    num_items = NUM_ENVS if has_state else NUM_STEPS * NUM_ENVS
    per_epoch = min(minibatches, num_items)
    assert len(parts) == 8 * per_epoch
    orders = set()
    for start in range(0, len(parts), per_epoch):
        epoch = parts[start : start + per_epoch]
        sizes = [part.num_items for part in epoch]
        assert max(sizes) - min(sizes) <= 1
        order = list(chain(*map(steps_of, epoch)))
        assert sorted(order) == ALL_STEPS
        orders.add(tuple(order))
    assert len(orders) > 3


def test_a_policy_with_a_state_sees_whole_unrolls_from_the_state_before_them() -> None:
    for part in algorithm(has_state=True, minibatches=2).passes(make_batch()):
        assert not part.single_steps
        assert part.observation["row"].tolist() == [[row] * 2 for row in range(NUM_STEPS + 1)]
        assert part.state["memory"].tolist() == part.observation["env"][0].tolist()


@pytest.mark.parametrize("has_state", [False, True])
def test_parts_keep_all_that_belongs_to_their_steps(has_state: bool) -> None:
    ppo = algorithm(has_state=has_state, minibatches=3, normalise_advantages=False)
    batch = replace(make_batch(), weight_B=torch.tensor([1.0, 0.5, 1.0, 0.0]))
    whole = ppo.targets(batch)
    for part in ppo.passes(batch):
        places = places_of(part)
        for name, target in part.targets.items():
            torch.testing.assert_close(target, whole[name][places])
        for name in ("action_SB", "reward_SB", "terminated_SB", "truncated_SB", "first_SB"):
            assert torch.equal(part.at_steps(getattr(part, name)), getattr(batch, name)[places])
        log_prob = part.at_steps(part.behaviour["log_prob"])
        assert torch.equal(log_prob, batch.behaviour["log_prob"][places])
        weight = (batch.valid_TB * batch.weight_B)[places]
        assert torch.equal(part.valid_TB * part.weight_B, weight), "nothing of autoreset steps counts"


def test_the_loss_of_single_steps_is_that_of_the_unrolls() -> None:
    weight = torch.tensor([1.0, 0.5, 1.0, 0.0])
    gradients, outputs = [], []
    for has_state in (False, True):
        ppo = algorithm(has_state=has_state, epochs=1, minibatches=1)
        (part,) = ppo.passes(replace(make_batch(), weight_B=weight))
        output = ppo.loss(part)
        output.loss.backward()
        outputs.append(output)
        gradients.append([parameter.grad for parameter in ppo.parameters()])
    for single, whole in zip(*gradients, strict=True):
        torch.testing.assert_close(single, whole)
    torch.testing.assert_close(outputs[0].metrics, outputs[1].metrics)
    assert outputs[0].weight == outputs[1].weight


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("minibatches", [1, 3])
def test_advantages_are_normalised_over_all_steps_of_the_batch_that_count(
    minibatches: int, has_state: bool
) -> None:
    ppo = algorithm(has_state=has_state, epochs=2, minibatches=minibatches)
    batch = replace(make_batch(), weight_B=torch.tensor([1.0, 1.0, 1.0, 0.0]))
    plain = ppo.targets(batch)[ADVANTAGE].numpy()
    counting = [plain[t, b] for t, b in ALL_STEPS if (t, b) not in AUTORESET and b != 3]
    expected = (plain - np.mean(counting)) / np.std(counting)
    for part in ppo.passes(batch):
        rows, envs = places_of(part)
        np.testing.assert_allclose(
            part.targets[ADVANTAGE].numpy(), expected[rows, envs], rtol=1e-4, atol=1e-5
        )


def test_a_batch_without_steps_that_count_stays_finite() -> None:
    ppo = algorithm(epochs=1, minibatches=1)
    (part,) = ppo.passes(replace(make_batch(), weight_B=torch.zeros(NUM_ENVS)))
    output = ppo.loss(part)
    assert part.targets[ADVANTAGE].isfinite().all()
    assert output.loss.item() == 0.0


def trained_parts(ppo: ClippedAlgorithm, batch: Batch, rate: float) -> list[float]:
    """Steps of plain gradient descent, as many as the algorithm asks for: the divergence before each."""
    divergences = []
    for part in ppo.passes(batch):
        output = ppo.loss(part)
        divergences.append(output.metrics["approx_kl"].item())
        ppo.zero_grad()
        output.loss.backward()
        with torch.no_grad():
            for parameter in ppo.parameters():
                assert parameter.grad is not None
                parameter -= rate * parameter.grad
    return divergences


def on_policy(batch: Batch) -> Batch:
    return replace(batch, behaviour={"log_prob": TablePolicy().log_probs(batch.action_SB)})


def test_passes_end_once_the_policy_has_moved_too_far() -> None:
    batch = on_policy(make_batch())
    divergences = trained_parts(
        algorithm(epochs=50, minibatches=1, target_kl=0.004, entropy_cost=0.0), batch, 0.5
    )
    assert len(divergences) < 50
    assert divergences[-1] > 1.5 * 0.004
    assert max(divergences[:-1]) <= 1.5 * 0.004
    assert len(trained_parts(algorithm(epochs=50, minibatches=1), batch, 0.5)) == 50


def test_the_divergence_of_a_part_in_pieces_is_that_of_the_whole() -> None:
    """Gradients may be accumulated: losses of several pieces, one step."""
    batch = make_batch()
    ppo = algorithm(epochs=2, minibatches=1, target_kl=1e-6)
    passes = ppo.passes(batch)
    part = next(passes)
    mean = clipped_loss(ppo.policy, part, CONFIG).metrics["approx_kl"].item()
    for limit, more in ((mean * 1.01, True), (mean * 0.99, False)):
        ppo = algorithm(epochs=2, minibatches=1, target_kl=limit / 1.5)
        passes = ppo.passes(batch)
        part = next(passes)
        ppo.loss(part.take(slice(0, 7)))
        ppo.loss(part.take(slice(7, part.num_items)))
        assert (next(passes, None) is not None) == more


@pytest.mark.parametrize("recomputed", [False, True])
def test_learners_normalise_and_stop_alike(recomputed: bool) -> None:
    """Half of the environments each: with the sums of both, each sees what one with all of them would."""
    batch = make_batch()
    halves = [batch.take(slice(0, 2)), batch.take(slice(2, NUM_ENVS))]
    settings: dict[str, Any] = {"epochs": 3, "minibatches": 2, "recompute_advantages": recomputed}
    whole = next(algorithm(**settings | {"minibatches": 1}).passes(batch))
    expected = dict(zip(steps_of(whole), whole.targets[ADVANTAGE].flatten().tolist(), strict=True))
    told: list[Tensor] = []

    def listening(sums: Tensor) -> Tensor:
        told.append(sums)
        return sums

    other = algorithm(**settings)
    other.sum_over_learners = listening
    next(other.passes(halves[1]))
    ppo, asked = algorithm(**settings, target_kl=1e6), []

    def summed(sums: Tensor) -> Tensor:
        asked.append(len(sums))
        # Of the other learner: its sums of advantages, and from the fourth part on a policy far away.
        return sums + (told[0] if len(sums) == 3 else torch.tensor([1e9 * (len(parts) > 3), 1.0]))

    ppo.sum_over_learners = summed
    parts: list[Batch] = []
    for part in ppo.passes(halves[0]):
        parts.append(part)
        ppo.loss(part)
        found = part.targets[ADVANTAGE].flatten().tolist()
        assert found == pytest.approx([expected[step] for step in steps_of(part)], rel=1e-4, abs=1e-5)
    assert len(parts) == 4
    # Sums of advantages once per batch, or once per epoch; of divergences after each part.
    assert asked == [3, 2, 2, *([3] if recomputed else []), 2, 2]


@pytest.mark.parametrize(
    ("deviation", "noise", "factor"),
    [(0.2, 0.005, 0.999), (0.005, 0.005, 0.5), (0.001, 0.005, 0.038), (0.2, 0.0, 1.0), (0.0, 0.005, 1.0)],
)
def test_steps_shrink_where_advantages_are_noise(deviation: float, noise: float, factor: float) -> None:
    """A deviation of 0 is that of a batch in which nothing counts."""
    assert step_factor(deviation, noise) == pytest.approx(factor, abs=1e-3)


def test_the_step_of_a_batch_follows_its_advantages() -> None:
    ppo = algorithm(normalise_advantages=True, advantage_noise=0.5)
    batch = make_batch()
    next(iter(ppo.passes(batch)))
    advantage_TB = ppo.targets(batch)[ADVANTAGE]
    weight_TB = batch.valid_TB * batch.weight_B
    counted = advantage_TB[weight_TB > 0]
    factor = ppo.step_factor({})
    assert factor == pytest.approx(step_factor(float(counted.std(correction=0)), 0.5), rel=1e-4)
    assert factor < 1.0
