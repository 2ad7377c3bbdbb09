"""Prefetching: items become batches, what does not fit is dropped and counted, and it stops cleanly."""

from __future__ import annotations

import asyncio
import logging
import threading

import numpy as np
import pytest
import torch
from prometheus_client import CollectorRegistry

from services.learner.batches import BatchLayout, BatchSlot
from services.learner.metrics import LearnerMetrics
from services.learner.prefetch import Prefetcher
from services.learner.ring import BatchRing
from shoal.config.tree import LimitsSection
from shoal.errors import NotFoundError
from shoal.records import ArraySpec, DiscreteAction, EnvSpec, Item, Life, Trajectory
from shoal.wire import decode_trajectory, encode_trajectory

SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (2,)),), DiscreteAction(2))
LAYOUT = BatchLayout(SPEC, (), unroll_length=2, batch_envs=4)
LIFE = Life("actor-1", "run")


def payload(number: int, num_envs: int = 4, length: int = 2) -> bytes:
    leading = (length + 1, num_envs)
    columns = {
        spec.name: np.full((*leading, *spec.shape), number % 2).astype(spec.dtype)
        for spec in LAYOUT.columns()
    }
    return encode_trajectory(
        Trajectory(
            columns
            | {"first": np.zeros(leading, bool), "policy_version": np.full(leading, number, dtype=np.int64)}
        )
    )


class Source:
    """Items from a list, then nothing for ever."""

    def __init__(self, payloads: list[bytes]) -> None:
        self._items = [Item(n, LIFE, n, data) for n, data in enumerate(payloads)]
        self.num_taken = 0

    async def next(self) -> Item:
        if self.num_taken == len(self._items):
            await asyncio.Event().wait()
        self.num_taken += 1
        return self._items[self.num_taken - 1]


class Rig:
    def __init__(self, payloads: list[bytes], num_slots: int = 2, threads: int = 1) -> None:
        self.source = Source(payloads)
        self.ring = BatchRing([BatchSlot(LAYOUT, torch.device("cpu")) for _ in range(num_slots)])
        self.registry = CollectorRegistry()
        self.metrics = LearnerMetrics(self.registry)
        limits = LimitsSection()
        self.prefetcher = Prefetcher(
            self.source,
            LAYOUT,
            self.ring,
            lambda data: decode_trajectory(data, limits),
            threads,
            self.metrics,
        )

    async def take(self) -> BatchSlot:
        slot = await asyncio.to_thread(self.ring.take_ready, 10.0)
        assert slot is not None
        return slot

    def value(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(name, labels)
        assert value is not None
        return value


@pytest.mark.parametrize("threads", [1, 3])
def test_every_item_is_in_one_batch(threads: int) -> None:
    async def run() -> None:
        rig = Rig([payload(n) for n in range(30)], threads=threads)
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


def test_back_pressure_reaches_the_source() -> None:
    """Two slots and one thread: two batches wait, the third is decoded, nothing more is asked for."""

    async def run() -> None:
        rig = Rig([payload(n) for n in range(30)])
        task = asyncio.create_task(rig.prefetcher.run())
        first = await rig.take()
        second = await rig.take()
        assert await asyncio.to_thread(rig.ring.take_ready, 0.05) is None
        assert rig.source.num_taken == 3
        rig.ring.release(first)
        assert int((await rig.take()).versions()[0]) == 2
        rig.ring.release(second)
        await rig.take()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_what_does_not_fit_is_dropped_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        damaged = bytearray(payload(0))
        damaged[-1] ^= 1
        rig = Rig([payload(0, length=3), bytes(damaged), b"nonsense", payload(7)])
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
        async def next(self) -> Item:
            raise NotFoundError("no table 'train'")

    async def run() -> None:
        rig = Rig([])
        limits = LimitsSection()
        prefetcher = Prefetcher(
            Refused(), LAYOUT, rig.ring, lambda data: decode_trajectory(data, limits), 2, rig.metrics
        )
        with pytest.raises(ExceptionGroup) as caught:
            await prefetcher.run()
        assert caught.group_contains(NotFoundError)

    asyncio.run(run())
