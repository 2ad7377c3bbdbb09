"""Everything of the learner that needs torch, wired together and run until it ends.

A module of its own so that `__main__` can import it in a thread while the gRPC server already answers: torch
takes seconds to import. `train` runs on the event loop and owns the threads of prefetch and training.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from services.learner.batches import BatchLayout, make_slots
from services.learner.checkpoint import CheckpointStore
from services.learner.loop import TrainingLoop
from services.learner.metrics import LearnerMetrics
from services.learner.prefetch import ItemSource, Prefetcher
from services.learner.publisher import WeightsPublisher
from services.learner.result import RunResult, write_result
from services.learner.ring import BatchRing
from services.learner.summaries import Summaries
from services.learner.versions import VersionCounter
from shoal.algorithms.algorithm import build_algorithm
from shoal.config import Config
from shoal.config.tables import SequenceTable
from shoal.policy.device import pick_device
from shoal.records import EnvSpec
from shoal.wire import decode_sequence


@dataclass(frozen=True)
class Parts:
    """What the composition root has already built."""

    publisher: WeightsPublisher
    versions: VersionCounter
    store: CheckpointStore
    metrics: LearnerMetrics


def device_of(config: Config) -> torch.device:
    """Raises UserError for a GPU that is not there."""
    return pick_device(config.learner.device, "learner.device")


async def train(
    config: Config, parts: Parts, spec: EnvSpec, source: ItemSource, stopping: asyncio.Event
) -> RunResult:
    """Until a stop condition of the run, `stopping`, or the first error of prefetch or training."""
    settings = config.learner
    device = device_of(config)
    algorithm = build_algorithm(config.algorithm)
    layout = BatchLayout(spec, algorithm.behaviour, item_length(config), settings.batch_envs)
    # One is trained on while the others are filled or wait.
    ring = BatchRing(make_slots(layout, device, settings.prefetch_batches + 1))
    prefetcher = Prefetcher(
        source,
        layout,
        ring,
        lambda payloads: decode_sequence(payloads, config.limits),
        settings.decode_threads,
        parts.metrics,
    )
    summaries = Summaries(config.run.dir / "tensorboard")
    loop = TrainingLoop(
        config,
        spec,
        algorithm,
        device,
        ring,
        parts.publisher,
        parts.versions,
        parts.store,
        parts.metrics,
        summaries,
    )
    with ThreadPoolExecutor(1, thread_name_prefix="train") as pool:
        training = asyncio.get_running_loop().run_in_executor(pool, loop.run)
        prefetching = asyncio.create_task(prefetcher.run())
        signal = asyncio.create_task(stopping.wait())
        tasks: list[asyncio.Future[Any]] = [training, prefetching, signal]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            failed = prefetching.done()
            loop.stop()
            result = await training
            if failed:
                prefetching.result()
            await asyncio.to_thread(write_result, config.run.dir, result)
            return result
        finally:
            loop.stop()
            prefetching.cancel()
            signal.cancel()
            await asyncio.gather(prefetching, signal, return_exceptions=True)
            await asyncio.to_thread(summaries.close)


def item_length(config: Config) -> int:
    """T of the items that `learner.table` hands out."""
    table = config.replay.tables[config.learner.table]
    unrolls = table.unrolls if isinstance(table, SequenceTable) else 1
    return unrolls * config.actor.unroll_length
