"""Synchronous training: every batch is of the newest version, whatever was lost, repeated or restarted."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from services.actor.shares import slots_by_rank
from services.actor.split import split_by_share
from services.learner.batches import BatchLayout, BatchSlot
from services.learner.metrics import PHASES
from services.learner.ring import BatchRing, Packer
from shoal.config.ranks import env_shares
from shoal.metrics import Phases
from shoal.records import ArraySpec, DiscreteAction, EnvSpec, Trajectory

SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", ()),), DiscreteAction(2))
T = 2


def trajectory(oldest: int, num_envs: int, newest: int | None = None) -> Trajectory:
    """An unroll of T steps, the last of which may be of a newer version; its first step is an autoreset."""
    layout = BatchLayout(SPEC, (), (), T, num_envs)
    columns = {spec.name: np.zeros((T + 1, num_envs), spec.dtype) for spec in layout.columns()}
    columns["policy_version"][:] = oldest
    columns["policy_version"][T - 1 :] = oldest if newest is None else newest
    columns["first"][1] = True
    return Trajectory(columns)


class Rig:
    """A ring and its packer, for batches of `batch_envs`."""

    def __init__(self, batch_envs: int, num_slots: int = 4) -> None:
        layout = BatchLayout(SPEC, (), (), T, batch_envs)
        self.outdated: list[int] = []
        slots = [BatchSlot(layout, torch.device("cpu")) for _ in range(num_slots)]
        self.ring = BatchRing(slots, self.outdated.append)
        self.packer = Packer(self.ring, Phases(CollectorRegistry(), "test", "test", PHASES))
        self._slot: BatchSlot | None = None

    def has_batch(self) -> bool:
        """One that is kept until it is trained on, as the loop does."""
        while self._slot is None and self.ring.num_ready:
            self._slot = self.ring.take_ready(0.0)
        return self._slot is not None

    def train(self) -> set[int] | None:
        """Versions of the next batch, all of it; None if there is none."""
        if not self.has_batch():
            return None
        slot, self._slot = self._slot, None
        assert slot is not None
        versions = set(slot.arrays["policy_version"][:-1].ravel().tolist())
        self.ring.release(slot)
        return versions


def test_unrolls_of_an_older_version_are_left_out_and_counted() -> None:
    rig = Rig(batch_envs=2)
    rig.ring.refuse_older_than(5)
    rig.packer.add(trajectory(4, 1))
    rig.packer.add(trajectory(4, 3, newest=5))
    assert rig.outdated == [1, 3]
    rig.packer.add(trajectory(5, 2))
    assert rig.train() == {5}


def test_what_an_open_batch_holds_of_an_older_version_is_thrown_out() -> None:
    rig = Rig(batch_envs=3)
    rig.ring.refuse_older_than(5)
    rig.packer.add(trajectory(5, 2))
    rig.ring.refuse_older_than(6)
    rig.packer.add(trajectory(6, 1))
    assert rig.outdated == [2]
    assert rig.train() is None
    rig.packer.add(trajectory(6, 2))
    assert rig.train() == {6}


def test_a_whole_batch_of_an_older_version_is_passed_over_and_its_slot_used_again() -> None:
    rig = Rig(batch_envs=2, num_slots=1)
    rig.ring.refuse_older_than(5)
    rig.packer.add(trajectory(5, 2))
    rig.ring.refuse_older_than(6)
    assert rig.ring.take_ready(0.0) is None
    assert rig.outdated == [2]
    rig.packer.add(trajectory(6, 2))
    assert rig.train() == {6}


@pytest.mark.parametrize("newest", [0, 7])
def test_others_train_on_any_version(newest: int) -> None:
    rig = Rig(batch_envs=2)
    rig.packer.add(trajectory(0, 1))
    rig.packer.add(trajectory(newest, 1))
    assert rig.train() == {0, newest}
    assert rig.outdated == []


@dataclass
class ModelGroup:
    """What `services.actor.group` does, step by step: act, hand over, wait for a newer version."""

    num_envs: int
    min_version: int = 0
    versions: list[int] = field(default_factory=list)

    def step(self, newest: int) -> Trajectory | None:
        """One step, if there is a version to act with; the unroll, if it is full."""
        if newest < self.min_version:
            return None
        self.versions.append(newest)
        if len(self.versions) < T:
            return None
        oldest, last = self.versions[0], self.versions[-1]
        self.versions.clear()
        self.min_version = oldest + 1
        return trajectory(oldest, self.num_envs, newest=last)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    num_learners=st.integers(1, 3),
)
def test_every_batch_is_of_the_newest_version_and_training_goes_on_after_any_fault(
    seed: int, sizes: list[int], num_learners: int
) -> None:
    """Groups, actors, the replay and the learners are restarted at random; then all must be in step again."""
    chance, num_envs = random.Random(seed), sum(sizes)
    num_learners = min(num_learners, num_envs)
    groups = [ModelGroup(size) for size in sizes]
    starts = [0, *accumulate(sizes)]
    shares = env_shares(num_envs, num_learners)
    queues: list[list[Trajectory]] = [[] for _ in shares]

    def new_lives() -> list[Rig]:
        rigs = [Rig(len(share)) for share in shares]
        for rig in rigs:
            rig.ring.refuse_older_than(version)
        return rigs

    version = 1
    rigs = new_lives()

    def fault() -> None:
        nonlocal rigs, version
        match chance.randrange(4):
            case 0:
                # A new life of an actor: it knows nothing of what it has handed over.
                index = chance.randrange(len(groups))
                groups[index] = ModelGroup(sizes[index])
            case 1:
                # A stream that breaks: the open unroll is dropped.
                groups[chance.randrange(len(groups))].versions.clear()
            case 2:
                # A new life of all learners: what they had taken is gone, and they publish what they begin
                # with.
                version += 1
                rigs = new_lives()
            case 3:
                # A shard is lost, with what some learners had in it: who has waited too long acts on.
                for queue in queues:
                    if chance.random() < 0.5:
                        queue.clear()
                for group in groups:
                    group.min_version = min(group.min_version, version)

    def move(trains: bool) -> bool:
        """Every group a step, all that is queued is packed; True if a batch was trained on."""
        nonlocal version
        for index in chance.sample(range(len(groups)), len(groups)):
            if (unroll := groups[index].step(version)) is not None:
                slots = slots_by_rank(shares, range(starts[index], starts[index + 1]), sizes[index])
                parts = split_by_share(unroll, list(slots.values()))
                for rank, part in zip(slots, parts, strict=True):
                    queues[rank].append(part)
        for rig, queue in zip(rigs, queues, strict=True):
            while queue and rig.ring.num_ready < 2:
                rig.packer.add(queue.pop(0))
        if not trains or not all(rig.has_batch() for rig in rigs):
            return False
        assert [rig.train() for rig in rigs] == [{version}] * num_learners
        version += 1
        for rig in rigs:
            rig.ring.refuse_older_than(version)
        return True

    for _ in range(60):
        if chance.random() < 0.3:
            fault()
        move(trains=chance.random() < 0.25)
    # No more faults: once what was lost is not waited for any more, there is a batch per unroll.
    for group in groups:
        group.min_version = min(group.min_version, version)
    trained = [move(trains=True) for _ in range(20 * T)]
    assert sum(trained[-10 * T :]) == 10
