"""Batches: packing against the obvious version, and which trajectories are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from services.learner.batches import BatchLayout, BatchSlot, make_slots
from services.learner.metrics import PHASES
from services.learner.ring import BatchRing, Packer
from shoal.errors import UserError
from shoal.metrics import Phases
from shoal.records import (
    ArraySpec,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    Episode,
    MultiDiscreteAction,
    Trajectory,
)

SPEC = EnvSpec(
    "Test-v0",
    (ArraySpec("observation.position", "float32", (3,)), ArraySpec("observation.image", "uint8", (2, 2))),
    DiscreteAction(5),
)
LENGTH = 4
STATE = (
    ArraySpec("recurrent.h", "float32", (6,)),
    ArraySpec("frames.observation.image", "uint8", (3, 2, 2)),
)
LAYOUT = BatchLayout(SPEC, STATE, (ArraySpec("log_prob", "float32", ()),), LENGTH, batch_envs=4)


def make_trajectory(rng: np.random.Generator, num_envs: int) -> Trajectory:
    leading = (LENGTH + 1, num_envs)
    return Trajectory(
        {
            "observation.position": rng.normal(size=(*leading, 3)).astype(np.float32),
            "observation.image": rng.integers(0, 255, (*leading, 2, 2)).astype(np.uint8),
            "action": rng.integers(0, 5, leading),
            "reward": rng.normal(size=leading).astype(np.float32),
            "terminated": rng.random(leading) < 0.2,
            "truncated": rng.random(leading) < 0.2,
            "first": rng.random(leading) < 0.2,
            "policy_version": rng.integers(0, 50, leading),
            "log_prob": rng.normal(size=leading).astype(np.float32),
            "ignored": rng.normal(size=leading).astype(np.float32),
            "initial.recurrent.h": rng.normal(size=(1, num_envs, 6)).astype(np.float32),
            "initial.frames.observation.image": rng.integers(0, 255, (1, num_envs, 3, 2, 2)).astype(np.uint8),
            "initial.ignored": rng.normal(size=(1, num_envs)),
        },
        tuple(Episode(float(rng.normal()), int(rng.integers(100))) for _ in range(rng.integers(3))),
    )


def make_ring(num_slots: int, layout: BatchLayout = LAYOUT) -> tuple[BatchRing, Packer]:
    ring = BatchRing([BatchSlot(layout, torch.device("cpu")) for _ in range(num_slots)])
    return ring, Packer(ring, Phases(CollectorRegistry(), "test", "test", PHASES))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 11), min_size=1, max_size=8),
    batch_envs=st.integers(1, 7),
)
def test_packing_equals_concatenation(seed: int, sizes: list[int], batch_envs: int) -> None:
    rng = np.random.default_rng(seed)
    trajectories = [make_trajectory(rng, size) for size in sizes]
    layout = replace(LAYOUT, batch_envs=batch_envs)
    ring, packer = make_ring(sum(sizes) // batch_envs + 1, layout)
    for trajectory in trajectories:
        packer.add(trajectory)

    whole = {
        spec.name: np.concatenate([t.columns[spec.name] for t in trajectories], axis=1)
        for spec in layout.columns()
    }
    states = {
        name: np.concatenate([t.columns[name][0] for t in trajectories])
        for name in ("initial.recurrent.h", "initial.frames.observation.image")
    }
    ends = np.cumsum(sizes)
    num_batches = int(ends[-1]) // batch_envs
    assert ring.num_ready == num_batches
    for index in range(num_batches):
        slot = ring.take_ready(0.0)
        assert slot is not None
        part = slice(index * batch_envs, (index + 1) * batch_envs)
        for name, array in whole.items():
            np.testing.assert_array_equal(slot.arrays[name], array[:, part])
        for name, array in states.items():
            np.testing.assert_array_equal(slot.arrays[name], array[part])
        valid = ~whole["first"][1:, part]
        assert slot.num_transitions == slot.env_steps == np.count_nonzero(valid)
        np.testing.assert_array_equal(slot.versions(), whole["policy_version"][:-1, part][valid])
        # The episodes of a trajectory come with the batch that holds its last environment.
        expected = [
            episode
            for trajectory, size, end in zip(trajectories, sizes, ends, strict=True)
            if size and part.start < end <= part.stop
            for episode in trajectory.episodes
        ]
        assert slot.episodes == expected


def test_tensors_share_memory_with_the_columns() -> None:
    slot = BatchSlot(LAYOUT, torch.device("cpu"))
    batch = slot.on_device()
    trajectory = make_trajectory(np.random.default_rng(1), 4)
    slot.fill(trajectory, 0, 4)
    columns = trajectory.columns
    assert set(batch.observation) == {"observation.position", "observation.image"}
    np.testing.assert_array_equal(batch.observation["observation.image"], columns["observation.image"])
    np.testing.assert_array_equal(batch.action_SB, columns["action"])
    np.testing.assert_array_equal(batch.reward_SB, columns["reward"])
    np.testing.assert_array_equal(batch.terminated_SB, columns["terminated"])
    np.testing.assert_array_equal(batch.truncated_SB, columns["truncated"])
    np.testing.assert_array_equal(batch.first_SB, columns["first"])
    np.testing.assert_array_equal(batch.behaviour["log_prob"], columns["log_prob"])
    assert set(batch.state) == {"recurrent.h", "frames.observation.image"}
    for name, tensor in batch.state.items():
        np.testing.assert_array_equal(tensor, columns[f"initial.{name}"][0])
    assert batch.state["recurrent.h"].shape == (4, 6)
    assert batch.state["frames.observation.image"].dtype == torch.uint8
    assert batch.action_SB.dtype == torch.int64
    assert batch.first_SB.dtype == torch.bool


def test_a_slot_that_comes_round_again_starts_empty() -> None:
    ring, packer = make_ring(1)
    rng = np.random.default_rng(2)
    for _ in range(3):
        trajectory = replace(make_trajectory(rng, 4), episodes=(Episode(1.0, 2),))
        packer.add(trajectory)
        slot = ring.take_ready(0.0)
        assert slot is not None
        assert slot.episodes == [Episode(1.0, 2)]
        assert slot.num_transitions == trajectory.num_transitions
        ring.release(slot)


def changed(name: str, array: np.ndarray | None) -> Trajectory:
    columns = dict(make_trajectory(np.random.default_rng(3), 2).columns)
    if array is None:
        del columns[name]
    else:
        columns[name] = array
    return Trajectory(columns)


SHAPE = (LENGTH + 1, 2)
BAD_ACTION = np.zeros(SHAPE, np.int64)
BAD_ACTION[1, 1] = 5


@pytest.mark.parametrize(
    ("trajectory", "said"),
    [
        (changed("log_prob", None), "no column 'log_prob' among observation.position"),
        (changed("reward", np.zeros(SHAPE, np.float64)), "'reward' is float64[] instead of float32[]"),
        (
            changed("observation.position", np.zeros((*SHAPE, 4), np.float32)),
            "float32[4] instead of float32[3]",
        ),
        (changed("reward", np.full(SHAPE, np.nan, np.float32)), "'reward' holds NaN or infinity"),
        (changed("log_prob", np.full(SHAPE, -np.inf, np.float32)), "'log_prob' holds NaN or infinity"),
        (changed("initial.recurrent.h", None), "no column 'initial.recurrent.h' among observation.position"),
        (
            changed("initial.recurrent.h", np.zeros((1, 2, 7), np.float32)),
            "'initial.recurrent.h' is float32[7] instead of float32[6]",
        ),
        (
            changed("initial.frames.observation.image", np.zeros((1, 2, 3, 2, 2), np.float32)),
            "float32[3, 2, 2] instead of uint8[3, 2, 2]",
        ),
        (
            changed("initial.recurrent.h", np.full((1, 2, 6), np.inf, np.float32)),
            "'initial.recurrent.h' holds NaN or infinity",
        ),
        (changed("action", BAD_ACTION), "actions from 0 to 5 instead of 0 to 4"),
        (changed("action", -BAD_ACTION), "actions from -5 to 0 instead of 0 to 4"),
    ],
)
def test_what_does_not_fit_is_named(trajectory: Trajectory, said: str) -> None:
    problem = LAYOUT.why_unusable(trajectory)
    assert problem is not None
    assert said in problem


def test_another_unroll_length_is_named() -> None:
    shorter = {
        name: array if name.startswith("initial.") else array[:-1]
        for name, array in make_trajectory(np.random.default_rng(4), 2).columns.items()
    }
    problem = LAYOUT.why_unusable(Trajectory(shorter))
    assert problem is not None
    assert problem.startswith("3 transitions per env instead of 4: actor.unroll_length")


def test_more_memory_than_there_is() -> None:
    wide = EnvSpec("Wide-v0", (ArraySpec("observation", "float32", (1 << 45,)),), DiscreteAction(2))
    with pytest.raises(UserError, match=r"cannot allocate 3 batches of \d+ bytes .*learner\.batch_envs"):
        make_slots(BatchLayout(wide, (), (), 20, 64), torch.device("cpu"), 3)
    assert LAYOUT.nbytes == sum(
        array.nbytes for array in BatchSlot(LAYOUT, torch.device("cpu")).arrays.values()
    )


def test_what_fits_is_fine() -> None:
    assert LAYOUT.why_unusable(make_trajectory(np.random.default_rng(5), 2)) is None
    box = EnvSpec("Box-v0", (ArraySpec("observation", "float32", ()),), BoxAction((2,), (-1, -1), (1, 1)))
    layout = BatchLayout(box, (), (), 1, 1)
    columns: dict[str, np.ndarray] = {
        spec.name: np.full((2, 3, *spec.shape), 7).astype(spec.dtype) for spec in layout.columns()
    }
    assert layout.why_unusable(Trajectory(columns)) is None


@pytest.mark.parametrize(
    ("worst", "said"),
    [
        ((2, 4), None),
        ((3, 0), "actions from [0, 0] to [3, 0] instead of 0 to [2, 4]"),
        ((0, 5), "actions from [0, 0] to [0, 5] instead of 0 to [2, 4]"),
        ((0, -1), "actions from [0, -1] to [0, 0] instead of 0 to [2, 4]"),
    ],
)
def test_each_element_of_an_action_has_its_own_range(worst: tuple[int, int], said: str | None) -> None:
    spec = EnvSpec("Multi-v0", (ArraySpec("observation", "float32", ()),), MultiDiscreteAction((3, 5)))
    layout = BatchLayout(spec, (), (), 1, 1)
    columns: dict[str, np.ndarray] = {
        spec.name: np.zeros((2, 3, *spec.shape), spec.dtype) for spec in layout.columns()
    }
    columns["action"][1, 2] = worst
    assert layout.why_unusable(Trajectory(columns)) == said
    slot = BatchSlot(layout, torch.device("cpu"))
    slot.fill(Trajectory(columns), 2, 1)
    np.testing.assert_array_equal(slot.on_device().action_SB[1, 0], worst)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_usable=st.integers(1, 4))
def test_sequences_fill_one_batch_and_what_is_missing_counts_nothing(seed: int, num_usable: int) -> None:
    rng = np.random.default_rng(seed)
    slot = BatchSlot(LAYOUT, torch.device("cpu"))
    slot.fill_sequences([make_trajectory(rng, 1) for _ in range(4)], np.ones(4))
    slot.clear()
    trajectories = [make_trajectory(rng, 1) for _ in range(num_usable)]
    weights = rng.random(num_usable)
    slot.fill_sequences(trajectories, weights)

    batch = slot.on_device()
    assert batch.discount_SB is None
    assert batch.weight_B.tolist() == [*weights.astype(np.float32).tolist(), *[0.0] * (4 - num_usable)]
    num_transitions = 0
    versions = []
    for env, trajectory in enumerate(trajectories):
        for spec in LAYOUT.columns():
            np.testing.assert_array_equal(slot.arrays[spec.name][:, env], trajectory.columns[spec.name][:, 0])
        for spec in LAYOUT.initial():
            np.testing.assert_array_equal(slot.arrays[spec.name][env], trajectory.columns[spec.name][0, 0])
        num_transitions += trajectory.num_transitions
        valid = ~trajectory.columns["first"][1:, 0]
        versions += trajectory.columns["policy_version"][:-1, 0][valid].tolist()
    assert slot.num_transitions == num_transitions
    assert sorted(slot.versions().tolist()) == sorted(versions)


TRANSITIONS = replace(LAYOUT, state=(), unroll_length=1, transitions=True)


def make_transitions(rng: np.random.Generator, number: int = 4) -> dict[str, np.ndarray]:
    return {
        "observation.position": rng.normal(size=(number, 3)).astype(np.float32),
        "observation.image": rng.integers(0, 255, (number, 2, 2)).astype(np.uint8),
        "next_observation.position": rng.normal(size=(number, 3)).astype(np.float32),
        "next_observation.image": rng.integers(0, 255, (number, 2, 2)).astype(np.uint8),
        "action": rng.integers(0, 5, number),
        "reward": rng.normal(size=number).astype(np.float32),
        "discount": rng.random(number).astype(np.float32),
        "num_steps": rng.integers(1, 4, number).astype(np.int32),
        "policy_version": rng.integers(0, 50, number),
        "log_prob": rng.normal(size=number).astype(np.float32),
        "weight": rng.normal(size=number).astype(np.float32),
    }


def test_transitions_are_unrolls_of_two_rows() -> None:
    rng = np.random.default_rng(7)
    slot = BatchSlot(TRANSITIONS, torch.device("cpu"))
    for _ in range(2):
        # The second time over what the first has left there.
        slot.clear()
        columns = make_transitions(rng)
        weights = rng.random(4)
        slot.fill_transitions(columns, weights)
    batch = slot.on_device()
    for i in range(4):
        for name in ("observation.position", "observation.image"):
            assert batch.observation[name][0, i].tolist() == columns[name][i].tolist()
            assert batch.observation[name][1, i].tolist() == columns[f"next_{name}"][i].tolist()
        assert batch.action_SB[0, i] == columns["action"][i]
        assert batch.reward_SB[0, i] == columns["reward"][i]
        assert batch.discount_SB is not None
        assert batch.discount_SB[0, i] == columns["discount"][i]
        assert batch.behaviour["log_prob"][0, i] == columns["log_prob"][i]
        assert batch.weight_B[i] == np.float32(weights[i])
    for flags in (batch.terminated_SB, batch.truncated_SB, batch.first_SB):
        assert not flags.any()
    assert batch.action_SB.shape == batch.reward_SB.shape == (2, 4)
    assert batch.action_SB[1].tolist() == [0] * 4, "an action that exists"
    assert slot.num_transitions == 4
    assert slot.versions().tolist() == columns["policy_version"].tolist()


def other_transitions(name: str, array: np.ndarray | None) -> dict[str, np.ndarray]:
    columns = make_transitions(np.random.default_rng(8))
    if array is None:
        del columns[name]
        return columns
    return columns | {name: array}


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (make_transitions(np.random.default_rng(8)), None),
        (other_transitions("next_observation.image", None), "no column 'next_observation.image' among obs"),
        (other_transitions("discount", None), "no column 'discount' among"),
        (other_transitions("log_prob", None), "no column 'log_prob' among"),
        (other_transitions("discount", np.zeros(4)), "'discount' is float64[] instead of float32[]"),
        (
            other_transitions("next_observation.position", np.zeros((4, 2), np.float32)),
            "'next_observation.position' is float32[2] instead of float32[3]",
        ),
        (other_transitions("reward", np.full(4, np.inf, np.float32)), "'reward' holds NaN or infinity"),
        (other_transitions("action", np.array([0, 1, 2, 5])), "actions from 0 to 5 instead of 0 to 4"),
    ],
)
def test_transitions_that_do_not_fit_are_named(columns: dict[str, np.ndarray], said: str | None) -> None:
    problem = TRANSITIONS.why_unusable_transitions(columns)
    assert (said in problem) if said and problem else problem is said
