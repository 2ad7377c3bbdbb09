"""Observation normalisation: its statistics against NumPy's over everything, and that all see the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from torch import Tensor

from services.learner.peers import Alone
from services.learner.trainer import Trainer
from shoal.algorithms.algorithm import build_algorithm
from shoal.algorithms.batch import Batch
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.config.network import PolicySection
from shoal.policy.network import ActorCritic, Choice, Policy, build_policy
from shoal.policy.normaliser import MAX_NORMALISED, ObservationNormaliser, can_normalise
from shoal.policy.twin_q import TwinQPolicy
from shoal.policy.weights import load_policy_bytes
from shoal.records import ArraySpec, DiscreteAction, EnvSpec
from tests.unit.algorithms.acted import acted_batch
from tests.unit.policy.stepping import (
    BOX,
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

GREEDY = Choice(greedy=torch.ones(4, dtype=torch.bool))
LEVEL = "observation.level"
COUNTS = ArraySpec("observation.counts", "int32", (3,), 0, -(2.0**31), 2.0**31 - 1)
SMALL = ArraySpec("observation.small", "uint8", (4, 4), 0, 0.0, 255.0)
BITS = ArraySpec("observation.bits", "int8", (3,), 0, 0.0, 1.0)
KIND = ArraySpec("observation.kind", "int64", (), 5)
DEPTH = ArraySpec("observation.depth", "float32", (36, 40), 0, 0.0, 1.0)


def build(spec: EnvSpec, **settings: object) -> Policy:
    torch.manual_seed(4)
    section = PolicySection.model_validate({"normalise_observations": True, "hidden_sizes": (8,), **settings})
    return build_policy(section, spec)


def shifted(spec: EnvSpec, num_rows: int, num_envs: int, factor: float = 5.0) -> dict[str, Tensor]:
    """Floats that are far from mean 0 and deviation 1, each element differently."""
    seen = observe(spec, num_rows, num_envs)
    for name, array in seen.items():
        if array.is_floating_point():
            element = torch.arange(array[0, 0].numel()).reshape(array.shape[2:]) + 1.0
            seen[name] = (array * factor * element + 100.0 * element).to(array.dtype)
    return seen


def make_batch(observation: dict[str, Tensor], first_SB: Tensor) -> Batch:
    shape = first_SB.shape
    none = torch.zeros(shape, dtype=torch.bool)
    return Batch(
        observation=observation,
        action_SB=torch.randint(0, 3, shape),
        reward_SB=torch.randn(shape),
        terminated_SB=none,
        truncated_SB=none,
        first_SB=first_SB,
        weight_B=torch.ones(shape[1]),
        behaviour={"log_prob": torch.full(shape, -1.1)},
    )


def normaliser_of(policy: Policy) -> ObservationNormaliser:
    assert policy.normaliser is not None
    return policy.normaliser


def rows_of(batches: list[dict[str, Tensor]], name: str) -> np.ndarray:
    """Every observation once, in float64: last rows come again as first rows."""
    return np.concatenate([batch[name].numpy()[:-1].reshape(-1, *batch[name].shape[2:]) for batch in batches])


@pytest.mark.parametrize("num_learners", [1, 3])
def test_statistics_are_those_of_all_observations_together(num_learners: int) -> None:
    spec = spec_of(DiscreteAction(3), VECTOR, *MIXED)
    normaliser = ObservationNormaliser([array for array in spec.observation if can_normalise(array)])
    batches = [shifted(spec, 5, 3 * num_learners, factor) for factor in (1.0, 30.0, 0.1)]
    for batch in batches:
        parts = [
            {name: array[:, 3 * rank : 3 * rank + 3] for name, array in batch.items()}
            for rank in range(num_learners)
        ]
        normaliser.observe(torch.stack([normaliser.moments(part) for part in parts]).sum(0))
    assert normaliser.count.item() == 3 * 4 * 3 * num_learners

    shown = normaliser(batches[0])
    for name in (VECTOR.name, LEVEL):
        rows = rows_of(batches, name).astype(np.float64)
        expected = (batches[0][name].numpy() - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-8)
        assert np.abs(expected).max() < MAX_NORMALISED
        assert shown[name].dtype == batches[0][name].dtype
        np.testing.assert_allclose(shown[name].numpy(), expected, rtol=1e-4, atol=1e-4)
    for name in ("observation.frame", "observation.kind"):
        assert shown[name] is batches[0][name]


def test_a_small_deviation_beside_a_large_mean_is_not_lost() -> None:
    normaliser = ObservationNormaliser((ArraySpec("x", "float64", ()),))
    rng = np.random.default_rng(3)
    for _ in range(50):
        normaliser.observe(normaliser.moments({"x": torch.from_numpy(1e6 + rng.normal(size=(9, 8)))}))
    assert normaliser.mean.item() == pytest.approx(1e6, abs=0.3)
    assert normaliser.variance.item() == pytest.approx(1.0, rel=0.1)


def test_what_never_changes_becomes_zero_and_outliers_are_clipped() -> None:
    normaliser = ObservationNormaliser((ArraySpec("x", "float32", (2,)),))
    rows = torch.tensor([0.1, 0.0]).repeat(5, 2, 1)
    rows[::2, :, 1] = 1.0
    normaliser.observe(normaliser.moments({"x": rows}))
    shown = normaliser({"x": torch.tensor([[0.1, 0.5], [7.0, -1e9]])})["x"]
    torch.testing.assert_close(shown, torch.tensor([[0.0, 0.0], [MAX_NORMALISED, -MAX_NORMALISED]]))


@pytest.mark.parametrize("kind", ["actor_critic", "q", "soft_actor_critic", "deterministic"])
@pytest.mark.parametrize("settings", [{}, {"frame_stack": 3}, {"frame_stack": 2, "recurrent": "gru"}])
def test_unrolling_equals_acting_and_acting_updates_nothing(kind: str, settings: dict[str, object]) -> None:
    action = BOX if "q" != kind != "actor_critic" else DiscreteAction(3)
    spec = spec_of(action, VECTOR, *MIXED, PIXELS, COUNTS, BITS, DEPTH)
    policy = build(spec, kind=kind, **settings)
    normaliser_of(policy).observe(normaliser_of(policy).moments(shifted(spec, 9, 6)))
    before = {name: array.clone() for name, array in policy.state_dict().items()}

    seen, first = shifted(spec, 7, 4), episode_starts(7, 4)
    state = random_state(policy, 4)
    acted = step_through(policy, seen, first, state, GREEDY)
    made = policy(seen, first, state)
    if isinstance(policy, TwinQPolicy):
        made = policy.distribution(made).mode() if kind == "soft_actor_critic" else made
        torch.testing.assert_close(outputs_of(acted, "action"), made.detach(), atol=1e-5, rtol=1e-5)
    elif isinstance(policy, ActorCritic):
        log_prob = policy.distribution(made.params).log_prob(outputs_of(acted, "action"))
        torch.testing.assert_close(outputs_of(acted, "log_prob"), log_prob.detach())
    else:
        torch.testing.assert_close(outputs_of(acted, "q_max"), made.max(-1).values.detach())
    for name, array in policy.state_dict().items():
        assert torch.equal(array, before[name]), name


@pytest.mark.parametrize("kind", ["soft_actor_critic", "deterministic"])
def test_critics_see_normalised_observations(kind: str) -> None:
    """What is shifted and stretched, and normalised so, is worth the same."""
    spec = spec_of(BOX)
    policy, plain = build(spec, kind=kind), build(spec, kind=kind, normalise_observations=False)
    assert isinstance(policy, TwinQPolicy)
    assert isinstance(plain, TwinQPolicy)
    seen, first, action = shifted(spec, 5, 4), torch.zeros(5, 4, dtype=torch.bool), torch.rand(5, 4, 2, 2)
    normaliser = normaliser_of(policy)
    normaliser.observe(normaliser.moments(seen))
    shown = normaliser(seen)
    assert shown["observation"].abs().max() < 4.0
    for ours, theirs in zip(
        policy.q_values(seen, first, {}, action), plain.q_values(shown, first, {}, action), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_the_learner_updates_once_a_step_and_inference_gets_the_same_numbers() -> None:
    spec = spec_of(DiscreteAction(3), VECTOR, mask_of(3))
    policy, server = build(spec), build(spec)
    trainer = Trainer(build_algorithm(ImpalaConfig(), policy), 0.5)
    batches = [shifted(spec, 6, 4) for _ in range(3)]
    first = torch.zeros(6, 4, dtype=torch.bool)
    for batch in batches:
        trainer.step(make_batch(batch, first))
    rows = rows_of(batches, "observation")
    np.testing.assert_allclose(normaliser_of(policy).mean.numpy(), rows.mean(0), rtol=1e-6)
    np.testing.assert_allclose(normaliser_of(policy).variance.numpy(), rows.var(0), rtol=1e-4)

    load_policy_bytes(server, save(trainer.weights()))
    seen = shifted(spec, 6, 4)
    acted = step_through(server, seen, first, {}, GREEDY)
    with torch.no_grad():
        made = policy(seen, first, {})
        pi = policy.distribution(made.params, seen["action_mask"])
    torch.testing.assert_close(
        outputs_of(acted, "log_prob"), pi.log_prob(outputs_of(acted, "action")), rtol=1e-5, atol=1e-5
    )


def test_environments_that_do_not_count_have_no_part_in_the_statistics() -> None:
    """Those that are too old, and what an older batch left in places that nothing was put in."""
    spec = spec_of(DiscreteAction(3))
    policy, twin = build(spec), build(spec)
    seen, first = shifted(spec, 6, 4), torch.zeros(6, 4, dtype=torch.bool)
    batch = make_batch(seen, first)
    batch.weight_B[2:] = 0.0
    kept = batch.take(slice(2))
    Trainer(build_algorithm(ImpalaConfig(), policy), 0.5).step(batch)
    Trainer(build_algorithm(ImpalaConfig(), twin), 0.5).step(kept)
    assert normaliser_of(policy).count == 10.0
    torch.testing.assert_close(normaliser_of(policy).mean, normaliser_of(twin).mean)
    torch.testing.assert_close(normaliser_of(policy).variance, normaliser_of(twin).variance)


def test_rows_without_a_transition_have_no_part_in_the_statistics() -> None:
    """Agents that are away show zeros and a new episode, step after step."""
    spec = spec_of(DiscreteAction(3))
    policy = build(spec)
    seen = shifted(spec, 6, 4)
    first = torch.zeros(6, 4, dtype=torch.bool)
    first[2:, 1:] = True
    (array,) = seen.values()
    array[1:, 1:] = 0.0
    batch = acted_batch(policy, seen, first)
    Trainer(build_algorithm(ImpalaConfig(), policy), 0.5).step(batch)
    # All five of environment 0, and of the others the one that was seen before they went away.
    rows = torch.cat([array[:5, 0], array[0, 1:]]).double()
    assert normaliser_of(policy).count == len(rows) == 8
    torch.testing.assert_close(normaliser_of(policy).mean, rows.mean(0))
    torch.testing.assert_close(normaliser_of(policy).variance, rows.var(0, correction=0))


def test_a_batch_in_which_nothing_counts_changes_no_statistics() -> None:
    normaliser = ObservationNormaliser((ArraySpec("x", "float32", (2,)),))
    normaliser.observe(normaliser.moments({"x": torch.full((5, 3, 2), 7.0)}, torch.zeros(4, 3)))
    assert normaliser.count == 0.0
    torch.testing.assert_close(normaliser({"x": torch.tensor([0.5, -0.5])})["x"], torch.tensor([0.5, -0.5]))


def test_a_policy_is_trained_as_it_acted() -> None:
    """The statistics change after the gradient: of data of the newest version every ratio is 1."""
    spec = spec_of(DiscreteAction(3))
    policy = build(spec)
    assert isinstance(policy, ActorCritic)
    trainer = Trainer(build_algorithm(ImpalaConfig(), policy), 0.5)
    first = torch.zeros(6, 4, dtype=torch.bool)
    for _ in range(3):
        batch = acted_batch(policy, shifted(spec, 6, 4), first)
        count = normaliser_of(policy).count.item()
        metrics = trainer.step(batch).metrics
        assert metrics["mean_rho"].item() == pytest.approx(1.0, abs=1e-6)
        assert normaliser_of(policy).count.item() == count + 20


class Twins(Alone):
    """Of two learners that see the same."""

    def sum(self, vector: Tensor) -> Tensor:
        return 2.0 * vector


def test_statistics_of_several_learners_are_added_up() -> None:
    spec = spec_of(DiscreteAction(3))
    policy, twin = build(spec), build(spec)
    doubled = Trainer(build_algorithm(ImpalaConfig(), policy), 0.5, peers=Twins())
    once = Trainer(build_algorithm(ImpalaConfig(), twin), 0.5)
    seen, first = shifted(spec, 6, 4), torch.zeros(6, 4, dtype=torch.bool)
    doubled.step(make_batch(seen, first))
    once.step(make_batch(seen, first))
    assert normaliser_of(policy).count == 2 * normaliser_of(twin).count
    torch.testing.assert_close(normaliser_of(policy).variance, normaliser_of(twin).variance)


def test_without_anything_to_normalise_there_is_no_normaliser() -> None:
    assert build(spec_of(DiscreteAction(3), PIXELS)).normaliser is None
    assert build(spec_of(DiscreteAction(3), BITS, KIND, DEPTH)).normaliser is None


@pytest.mark.parametrize("kind", ["actor_critic", "q", "soft_actor_critic", "deterministic"])
def test_integers_are_normalised_and_images_of_floats_are_not(kind: str) -> None:
    action = BOX if "q" != kind != "actor_critic" else DiscreteAction(3)
    spec = spec_of(action, COUNTS, SMALL, BITS, KIND, DEPTH)
    policy = build(spec, kind=kind, frame_stack=2)
    normaliser = normaliser_of(policy)
    seen = observe(spec, 30, 4)
    seen[COUNTS.name] += 1000
    normaliser.observe(normaliser.moments(seen))
    shown = normaliser(seen)
    for name in (COUNTS.name, SMALL.name):
        assert shown[name].dtype == torch.float32
        rows = shown[name][:-1].flatten(0, 1)
        torch.testing.assert_close(rows.mean(0), torch.zeros(rows.shape[1:]), atol=1e-4, rtol=0.0)
        torch.testing.assert_close(rows.std(0, correction=0), torch.ones(rows.shape[1:]), atol=1e-3, rtol=0.0)
    for array in (BITS, KIND, DEPTH):
        assert shown[array.name] is seen[array.name]


def test_integers_start_out_scaled_by_their_bounds() -> None:
    normaliser = ObservationNormaliser((SMALL,))
    shown = normaliser({SMALL.name: torch.full((1, 4, 4), 51, dtype=torch.uint8)})[SMALL.name]
    torch.testing.assert_close(shown, torch.full((1, 4, 4), 0.2))


def test_specs_without_bounds_are_normalised_as_they_were() -> None:
    """The statistics in a checkpoint of then are those of the floats alone."""
    spec = spec_of(DiscreteAction(3), VECTOR, COUNTS, SMALL, BITS)
    assert normaliser_of(build(spec.without_bounds())).mean.shape == VECTOR.shape
    assert normaliser_of(build(spec)).mean.shape == (4 + 3 + 16,)


def test_an_encoder_of_your_own_gets_the_dtypes_of_the_environment() -> None:
    spec = spec_of(DiscreteAction(3), VECTOR, COUNTS)
    policy = build(spec, network="tests.unit.policy.own_counts:make")
    assert normaliser_of(policy).mean.shape == VECTOR.shape
    policy.act(observe(spec, 4), torch.zeros(4, dtype=torch.bool), {}, GREEDY)
