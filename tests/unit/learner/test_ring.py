"""The ring between decoding and training: order, waiting, closing."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from services.learner.batches import BatchLayout, BatchSlot
from services.learner.metrics import PHASES
from services.learner.ring import BatchRing, Packer, RingClosed
from shoal.metrics import Phases
from shoal.records import ArraySpec, DiscreteAction, EnvSpec, Trajectory

SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", ()),), DiscreteAction(2))
LAYOUT = BatchLayout(SPEC, (), (), unroll_length=1, batch_envs=2)


def make_ring(num_slots: int) -> BatchRing:
    return BatchRing([BatchSlot(LAYOUT, torch.device("cpu")) for _ in range(num_slots)])


def trajectory(number: int, num_envs: int) -> Trajectory:
    columns = {spec.name: np.full((2, num_envs), number).astype(spec.dtype) for spec in LAYOUT.columns()}
    return Trajectory(columns | {"first": np.zeros((2, num_envs), bool)})


def test_batches_come_in_the_order_they_were_filled() -> None:
    ring = make_ring(3)
    slots = [ring.take_free() for _ in range(3)]
    for slot in reversed(slots):
        ring.put_ready(slot)
    assert [ring.take_ready(0.0) for _ in range(3)] == slots[::-1]
    assert ring.take_ready(0.0) is None


def test_packing_waits_for_training_and_goes_on() -> None:
    """With one slot every batch must go all the way round before the next one can be filled."""
    ring = make_ring(1)
    packer = Packer(ring, Phases(CollectorRegistry(), "test", "test", PHASES))
    thread = threading.Thread(target=lambda: [packer.add(trajectory(n, 2)) for n in range(20)])
    thread.start()
    seen = []
    for _ in range(20):
        slot = ring.take_ready(10.0)
        assert slot is not None
        assert ring.num_ready == 0
        seen.append(float(slot.arrays["reward"][0, 0]))
        ring.release(slot)
    thread.join(10.0)
    assert seen == [float(n) for n in range(20)]


def test_many_threads_pack_whole_trajectories() -> None:
    """The lock lets one thread in at a time: every environment arrives exactly once."""
    ring = make_ring(2)
    packer = Packer(ring, Phases(CollectorRegistry(), "test", "test", PHASES))
    numbers = range(40)
    threads = [threading.Thread(target=lambda n=n: packer.add(trajectory(n, 3))) for n in numbers]
    for thread in threads:
        thread.start()
    rewards: list[float] = []
    for _ in range(40 * 3 // 2):
        slot = ring.take_ready(10.0)
        assert slot is not None
        rewards.extend(slot.arrays["reward"][0].tolist())
        ring.release(slot)
    for thread in threads:
        thread.join(10.0)
    assert sorted(rewards) == sorted(float(n) for n in numbers for _ in range(3))
    # Of one trajectory all environments stand side by side.
    assert all(rewards[i : i + 3] == [rewards[i]] * 3 for i in range(0, len(rewards), 3))


def test_close_wakes_everybody() -> None:
    ring = make_ring(1)
    ring.take_free()
    ended = []

    def wait_for(take: object) -> None:
        try:
            take()  # type: ignore[operator]
        except RingClosed:
            ended.append(take)

    takes = [ring.take_free, ring.take_free, lambda: ring.take_ready(60.0)]
    threads = [threading.Thread(target=wait_for, args=(take,)) for take in takes]
    for thread in threads:
        thread.start()
    ring.close()
    for thread in threads:
        thread.join(10.0)
    assert len(ended) == 3


def test_a_closed_ring_hands_out_nothing() -> None:
    ring = make_ring(2)
    ring.put_ready(ring.take_free())
    ring.close()
    for _ in range(2):
        with pytest.raises(RingClosed):
            ring.take_ready(0.0)
        with pytest.raises(RingClosed):
            ring.take_free()
