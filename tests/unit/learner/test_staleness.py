"""Unrolls that are too old: left out where they are trained on, counted, and worth nothing to the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from services.learner.batches import BatchLayout, BatchSlot
from services.learner.staleness import leave_out_stale
from shoal.records import ArraySpec, Trajectory
from tests.unit.learner.test_loop import LENGTH, NUM_ENVS, SPEC, TRANSITIONS, Rig, trajectory


def aged(versions: list[int]) -> Trajectory:
    """The version of each environment's steps."""
    made = trajectory()
    made.columns["policy_version"][:] = np.array(versions)
    return made


def slot_of(made: Trajectory) -> BatchSlot:
    layout = BatchLayout(SPEC, (), (ArraySpec("log_prob", "float32", ()),), LENGTH, NUM_ENVS)
    slot = BatchSlot(layout, torch.device("cpu"))
    slot.fill(made, 0, NUM_ENVS)
    return slot


def test_the_oldest_step_of_each_environment_decides() -> None:
    made = aged([10] * NUM_ENVS)
    version = made.columns["policy_version"]
    version[2, 1] = 4  # one old step in the middle
    version[2, 2] = 5  # as old as may be
    version[LENGTH, 3] = 0  # the last row has no transition
    version[1, 0] = 0  # nor has the autoreset step of environment 0, which row 2 ends
    fresh = leave_out_stale(slot_of(made), newest_version=10, max_lag=5)
    assert fresh.batch.weight_B.tolist() == [1.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    assert fresh.num_stale == LENGTH
    assert sorted(fresh.versions.tolist()) == [5, *[10] * (TRANSITIONS - LENGTH - 1)]


def test_autoreset_steps_are_not_counted() -> None:
    fresh = leave_out_stale(slot_of(aged([0, *[10] * (NUM_ENVS - 1)])), newest_version=10, max_lag=5)
    assert fresh.num_stale == LENGTH - 1


def test_columns_that_were_not_filled_do_not_count() -> None:
    slot = slot_of(aged([0] * NUM_ENVS))
    slot.num_filled = 2
    assert leave_out_stale(slot, newest_version=10, max_lag=5).num_stale == 2 * LENGTH - 1
    slot = slot_of(aged([10, 10, *[0] * (NUM_ENVS - 2)]))
    slot.num_filled = 2
    assert leave_out_stale(slot, newest_version=10, max_lag=5).num_stale == 0


def test_without_a_limit_nothing_is_too_old() -> None:
    fresh = leave_out_stale(slot_of(aged([0] * NUM_ENVS)), newest_version=1000, max_lag=None)
    assert fresh.num_stale == 0
    assert fresh.batch.weight_B.tolist() == [1.0] * NUM_ENVS


def test_importance_weights_stay_and_the_slot_is_not_touched() -> None:
    slot = slot_of(aged([0, *[10] * (NUM_ENVS - 1)]))
    slot.arrays["weight"][:] = np.arange(1, NUM_ENVS + 1)
    fresh = leave_out_stale(slot, newest_version=10, max_lag=5)
    assert fresh.batch.weight_B.tolist() == [0.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert slot.arrays["weight"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_what_is_too_old_does_not_move_the_weights(tmp_path: Path) -> None:
    """Two runs that differ in the rewards of the old environments only end with the same weights."""

    def trained(name: str, reward: float) -> dict[str, np.ndarray]:
        batches = []
        for step in range(5):
            made = aged([-9, -9, *[step] * (NUM_ENVS - 2)])
            made.columns["reward"][:, :2] = reward
            batches.append(made)
        rig = Rig(tmp_path / name, learner={"batch_envs": NUM_ENVS, "max_policy_lag": 3})
        assert rig.run(*batches).learner_steps == 5
        assert rig.value("stale_steps_total") == 5 * (2 * LENGTH - 1)
        assert rig.value("env_steps_total") == 5 * TRANSITIONS
        return rig.publisher.published[-1][1]

    weights = trained("a", 1.0)
    for name, array in trained("b", 50.0).items():
        np.testing.assert_array_equal(array, weights[name])


def test_batches_that_are_too_old_as_a_whole_are_no_steps(tmp_path: Path) -> None:
    """The newest version is 2 when the third batch comes, and stays there until a fresh one does."""
    rig = Rig(tmp_path, learner={"batch_envs": NUM_ENVS, "max_policy_lag": 1})
    ages = [0, 1, 0, 0, 2, 3]
    result = rig.run(*[trajectory(version=age) for age in ages])
    assert result.learner_steps == 4
    assert rig.publisher.versions == [0, 1, 2, 3, 4]
    assert rig.value("stale_batches_total") == 2
    assert rig.value("stale_steps_total") == 2 * TRANSITIONS
    assert result.env_steps == 6 * TRANSITIONS


@pytest.mark.parametrize(("limit", "steps"), [(0, 4), (2, 6)])
def test_the_lag_is_that_of_real_steps(tmp_path: Path, limit: int, steps: int) -> None:
    """Batches come two versions late, as from actors that are always behind."""
    rig = Rig(tmp_path, learner={"batch_envs": NUM_ENVS, "max_policy_lag": limit})
    result = rig.run(*[trajectory(version=max(0, n - 2)) for n in range(6)])
    assert result.learner_steps == steps
    buckets = {le: rig.value("policy_lag_versions_bucket", le=le) for le in ("0.0", "1.0", "2.0", "+Inf")}
    print(f"limit {limit}: {steps} steps, lag {buckets}")
    assert buckets["+Inf"] == steps * TRANSITIONS
    if limit == 2:
        assert buckets == {
            "0.0": TRANSITIONS,
            "1.0": 2 * TRANSITIONS,
            "2.0": 6 * TRANSITIONS,
            "+Inf": 6 * TRANSITIONS,
        }
