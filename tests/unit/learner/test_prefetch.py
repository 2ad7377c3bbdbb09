"""Prefetching: items become batches, what does not fit is dropped and counted, and it stops cleanly."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from services.learner.batches import BatchLayout, BatchSlot
from services.learner.metrics import LearnerMetrics
from services.learner.prefetch import Prefetcher
from services.learner.ring import BatchRing
from shoal.clients.replay_draw import ItemRefs, SampledBatch
from shoal.clients.replay_draw import Source as Origin
from shoal.config.connections import LimitsSection
from shoal.errors import NotFoundError
from shoal.records import ArraySpec, DiscreteAction, EnvSpec, Episode, Item, Life, Trajectory, Transitions
from shoal.rpc.addresses import Address
from shoal.wire import decode_sequence, encode_trajectory

SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (2,)),), DiscreteAction(2))
LAYOUT = BatchLayout(SPEC, (), (), unroll_length=2, batch_envs=4)
LIFE = Life("actor-1", "run")
EPISODES = (Episode(1.0, 9), Episode(2.0, 8))


def payload(number: int, num_envs: int = 4, length: int = 2, first_step: int = 0) -> bytes:
    leading = (length + 1, num_envs)
    columns = {
        spec.name: np.full((*leading, *spec.shape), number % 2).astype(spec.dtype)
        for spec in LAYOUT.columns()
    }
    return encode_trajectory(
        Trajectory(
            columns
            | {"first": np.zeros(leading, bool), "policy_version": np.full(leading, number, dtype=np.int64)},
            first_step=first_step,
        )
    )


def refs(*keys: int) -> ItemRefs:
    origin = Origin(Address("127.0.0.1:1"), 0)
    return ItemRefs((origin,), np.zeros(len(keys), np.int64), np.array(keys, np.uint64))


def batch_of(payloads: Sequence[bytes], weights: Sequence[float]) -> SampledBatch:
    items = tuple(Item(n, LIFE, n, (data,)) for n, data in enumerate(payloads))
    return SampledBatch(items, None, np.array(weights), refs(*range(len(payloads))), 30, EPISODES)


def transitions_of(number: float, size: int = 4) -> SampledBatch:
    columns = {
        "observation": np.full((size, 2), number, np.float32),
        "next_observation": np.full((size, 2), number + 1, np.float32),
        "action": np.zeros(size, np.int64),
        "reward": np.full(size, number, np.float32),
        "discount": np.full(size, 0.5, np.float32),
        "num_steps": np.ones(size, np.int32),
        "policy_version": np.zeros(size, np.int64),
    }
    transitions = Transitions(np.arange(size, dtype=np.uint64), np.ones(size), columns)
    return SampledBatch((), transitions, np.linspace(0.25, 1, size), refs(*range(size)), 20, EPISODES)


class Batches:
    """Batches from a list, then nothing for ever."""

    def __init__(self, batches: Sequence[SampledBatch]) -> None:
        self._batches = list(batches)

    async def next(self) -> SampledBatch:
        if not self._batches:
            await asyncio.Event().wait()
        return self._batches.pop(0)


class Source:
    """Items from a list, `at_once` together, then nothing for ever."""

    def __init__(self, payloads: Sequence[bytes | tuple[bytes, ...]], at_once: int) -> None:
        self._items = [
            Item(n, LIFE, n, (data,) if isinstance(data, bytes) else data) for n, data in enumerate(payloads)
        ]
        self._at_once = at_once
        self.num_taken = 0

    async def next(self) -> list[Item]:
        if self.num_taken == len(self._items):
            await asyncio.Event().wait()
        taken = self._items[self.num_taken : self.num_taken + self._at_once]
        self.num_taken += len(taken)
        return taken


class Rig:
    def __init__(
        self,
        payloads: Sequence[bytes | tuple[bytes, ...]],
        num_slots: int = 2,
        threads: int = 1,
        at_once: int = 1,
        layout: BatchLayout = LAYOUT,
        batches: Sequence[SampledBatch] = (),
    ) -> None:
        self.source = Source(payloads, at_once)
        self.ring = BatchRing([BatchSlot(layout, torch.device("cpu")) for _ in range(num_slots)])
        self.registry = CollectorRegistry()
        self.metrics = LearnerMetrics(self.registry).of("policy")
        limits = LimitsSection()
        self.prefetcher = Prefetcher(
            Batches(batches) if batches else self.source,
            layout,
            self.ring,
            lambda payloads: decode_sequence(payloads, limits),
            threads,
            self.metrics,
        )

    async def take(self) -> BatchSlot:
        slot = await asyncio.to_thread(self.ring.take_ready, 10.0)
        assert slot is not None
        return slot

    def value(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(name, {"policy": "policy", **labels})
        assert value is not None
        return value


@pytest.mark.parametrize(("threads", "at_once"), [(1, 1), (3, 1), (2, 4)])
def test_every_item_is_in_one_batch(threads: int, at_once: int) -> None:
    async def run() -> None:
        rig = Rig([payload(n) for n in range(30)], threads=threads, at_once=at_once)
        task = asyncio.create_task(rig.prefetcher.run())
        seen = []
        for _ in range(30):
            slot = await rig.take()
            seen.append(int(slot.versions()[0]))
            rig.ring.release(slot)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert sorted(seen) == list(range(30))
        assert rig.value("shoal_learner_phase_seconds_total", phase="decode") > 0
        assert rig.value("shoal_learner_phase_seconds_total", phase="copy") > 0

    asyncio.run(run())


def test_sequences_of_several_unrolls_are_joined_and_broken_ones_dropped() -> None:
    async def run() -> None:
        joined = [
            (payload(10 * n, 1, first_step=2 * n), payload(10 * n + 1, 1, first_step=2 * n + 2))
            for n in range(8)
        ]
        gap = (payload(90, 1, first_step=0), payload(91, 1, first_step=3))
        rig = Rig(
            [gap, *joined[:3], joined[0][:1], *joined[3:]], at_once=5, layout=replace(LAYOUT, unroll_length=4)
        )
        task = asyncio.create_task(rig.prefetcher.run())
        for batch in range(2):
            slot = await rig.take()
            versions = slot.arrays["policy_version"]
            for env in range(4):
                first = 10 * (4 * batch + env)
                assert versions[:, env].tolist() == [first, first, first + 1, first + 1, first + 1]
            rig.ring.release(slot)
        assert rig.value("shoal_learner_trajectories_dropped_total") == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_back_pressure_reaches_the_source() -> None:
    """Two slots and one thread: two batches wait, the third is decoded, nothing more is asked for."""

    async def run() -> None:
        rig = Rig([payload(n) for n in range(30)])
        task = asyncio.create_task(rig.prefetcher.run())
        first = await rig.take()
        second = await rig.take()
        while rig.source.num_taken < 3:
            await asyncio.sleep(0.001)
        assert await asyncio.to_thread(rig.ring.take_ready, 0.05) is None
        assert rig.source.num_taken == 3
        rig.ring.release(first)
        assert int((await rig.take()).versions()[0]) == 2
        rig.ring.release(second)
        await rig.take()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.parametrize("at_once", [1, 4])
def test_what_does_not_fit_is_dropped_counted_and_logged(
    caplog: pytest.LogCaptureFixture, at_once: int
) -> None:
    async def run() -> None:
        damaged = bytearray(payload(0))
        damaged[-1] ^= 1
        rig = Rig([payload(0, length=3), bytes(damaged), b"nonsense", payload(7)], at_once=at_once)
        task = asyncio.create_task(rig.prefetcher.run())
        assert int((await rig.take()).versions()[0]) == 7
        assert rig.value("shoal_learner_trajectories_dropped_total") == 3
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "dropped trajectory 0 of actor-1: 3 transitions per env instead of 2" in caplog.text
    assert len(caplog.records) == 1, "one line for a burst"


def test_closing_the_ring_ends_it_though_a_thread_waits_for_a_slot() -> None:
    async def run() -> None:
        rig = Rig([payload(n) for n in range(30)])
        task = asyncio.create_task(rig.prefetcher.run())
        await rig.take()
        rig.ring.close()
        await asyncio.wait_for(task, 10.0)

    asyncio.run(run())
    assert not any(thread.name.startswith("decode") for thread in threading.enumerate())


def test_cancelling_ends_it_and_its_threads() -> None:
    async def run() -> None:
        rig = Rig([payload(n) for n in range(30)], threads=2)
        task = asyncio.create_task(rig.prefetcher.run())
        await rig.take()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert not any(thread.name.startswith("decode") for thread in threading.enumerate())


def test_an_error_of_the_source_is_raised() -> None:
    class Refused:
        async def next(self) -> list[Item]:
            raise NotFoundError("no table 'train'")

    async def run() -> None:
        rig = Rig([])
        limits = LimitsSection()
        prefetcher = Prefetcher(
            Refused(), LAYOUT, rig.ring, lambda payloads: decode_sequence(payloads, limits), 2, rig.metrics
        )
        with pytest.raises(ExceptionGroup) as caught:
            await prefetcher.run()
        assert caught.group_contains(NotFoundError)

    asyncio.run(run())


def test_a_sampled_batch_is_one_batch_with_its_weights_and_refs(caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be used is left out, of the refs too; a batch of nothing else is none.

    What it told of the actors is counted with the next.
    """

    async def run() -> None:
        bad = batch_of([b"nonsense"] * 4, [1.0] * 4)
        mixed = batch_of(
            [payload(0, 1), b"nonsense", payload(2, 2), payload(3, 1)], weights=[0.25, 0.5, 0.75, 1.0]
        )
        whole = batch_of([payload(n, 1) for n in range(4)], weights=[1.0] * 4)
        rig = Rig([], batches=[bad, mixed, whole])
        task = asyncio.create_task(rig.prefetcher.run())
        slot = await rig.take()
        assert slot.arrays["policy_version"][0, :2].tolist() == [0, 3]
        assert slot.on_device().weight_B.tolist() == [0.25, 1.0, 0.0, 0.0]
        assert slot.refs is not None
        assert slot.refs.keys.tolist() == [0, 3]
        assert (slot.num_filled, slot.num_transitions) == (2, 4)
        assert (slot.env_steps, slot.episodes) == (2 * 30, 2 * list(EPISODES))
        rig.ring.release(slot)
        slot = await rig.take()
        assert (slot.env_steps, slot.episodes) == (30, list(EPISODES))
        assert slot.on_device().weight_B.tolist() == [1.0] * 4
        assert slot.refs is not None
        assert slot.refs.keys.tolist() == [0, 1, 2, 3]
        rig.ring.release(slot)
        assert rig.value("shoal_learner_trajectories_dropped_total") == 4 + 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_what_was_drawn_for_several_batches_becomes_several() -> None:
    """Each item is in one of them, and steps and episodes are told of once."""

    async def run() -> None:
        layout = replace(LAYOUT, unroll_length=1, transitions=True)
        drawn = transitions_of(1.0, size=10)
        assert drawn.transitions is not None
        drawn.transitions.columns["reward"][:] = np.arange(10)
        rig = Rig([], layout=layout, batches=[drawn], num_slots=3)
        task = asyncio.create_task(rig.prefetcher.run())
        rewards, told = [], []
        for size in (4, 3, 3):
            slot = await rig.take()
            assert slot.refs is not None
            assert slot.num_filled == slot.num_transitions == len(slot.refs) == size
            batch = slot.on_device()
            assert batch.weight_B[size:].tolist() == [0.0] * (4 - size)
            rewards.append([int(reward) for reward in batch.reward_SB[0, :size].tolist()])
            assert rewards[-1] == slot.refs.keys.tolist()
            told.append((slot.env_steps, slot.episodes))
        # Of each shard as much: items stand in the order of shards.
        assert rewards == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
        assert told == [(20, list(EPISODES)), (0, []), (0, [])]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_transitions_are_one_batch_or_none(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        layout = replace(LAYOUT, unroll_length=1, transitions=True)
        rig = Rig([], layout=layout, batches=[transitions_of(np.nan), *map(transitions_of, range(5))])
        task = asyncio.create_task(rig.prefetcher.run())
        for number in range(5):
            slot = await rig.take()
            batch = slot.on_device()
            assert batch.reward_SB[0].tolist() == [number] * 4
            assert batch.observation["observation"][:, 2, 1].tolist() == [number, number + 1]
            assert batch.weight_B.tolist() == [0.25, 0.5, 0.75, 1.0]
            assert slot.refs is not None
            assert len(slot.refs) == 4
            told = 2 if number == 0 else 1  # the first is of the batch before it, too
            assert (slot.num_transitions, slot.env_steps) == (4, told * 20)
            assert slot.episodes == told * list(EPISODES)
            rig.ring.release(slot)
        assert rig.value("shoal_learner_trajectories_dropped_total") == 4
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "dropped 4 transitions: column 'observation' holds NaN or infinity" in caplog.text
