"""Everything of the learner that needs torch, wired together and run until it ends.

A module of its own so that `__main__` can import it in a thread while the gRPC server already answers: torch
takes seconds to import. `train` runs on the event loop: a training for each policy, which owns its threads of
prefetch and training. They share nothing but the process, and end together. Of several learners each trains
all policies, and those of one policy have a group of their own: its calls never wait for another policy's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from services.learner.batches import BatchLayout, make_slots
from services.learner.group import gather_group
from services.learner.loop import TrainingLoop
from services.learner.parts import Parts
from services.learner.peers import Alone, Peers
from services.learner.prefetch import Prefetcher
from services.learner.priorities import PriorityReturn
from services.learner.publisher import WeightsPublisher
from services.learner.result import STOPPED, RunResult, write_result
from services.learner.resume import build_or_resume
from services.learner.ring import BatchRing
from services.learner.schedule import effective_batch
from services.learner.sources import Source, make_source
from services.learner.start import await_spec, begin_alike
from services.learner.summaries import Curves, Several, Summaries
from services.learner.wandb_curves import WandbCurves
from shoal.config import Config
from shoal.config.policies import policy_seed, replay_tables
from shoal.config.ranks import Ranks, batch_share
from shoal.config.tables import SequenceTable, TransitionTable
from shoal.errors import ConfigError
from shoal.policy.device import cpu_threads, fitting_threads, pick_device, products_per_row
from shoal.policy.network import Policy
from shoal.records import EnvSpec
from shoal.wire import decode_sequence

log = logging.getLogger(__name__)

Found = TypeVar("Found")


def device_of(config: Config, ranks: Ranks) -> torch.device:
    """Of several learners on a machine each has a GPU. Raises UserError for one that is not there."""
    setting = "learner.device"
    device = pick_device(config.learner.device, setting)
    if ranks.size == 1 or device.type == "cpu":
        return device
    if ":" in config.learner.device:
        raise ConfigError(
            f"config key '{setting}': {config.learner.device} is one GPU, and each of {ranks.size} learners "
            "needs its own: set it to cuda"
        )
    return pick_device(f"cuda:{ranks.local_rank}", setting)


async def train(config: Config, policies: Sequence[Parts], ranks: Ranks, stopping: asyncio.Event) -> None:
    """Every policy, from when its spec has come until the first of them ends or fails, or `stopping`.

    The others then save and end too. The result of the run is that of the policy that ended it.
    """
    device = device_of(config, ranks)
    groups = await _unless(stopping, _gather_peers(config, ranks, device, len(policies)))
    if groups is None:
        return
    num_threads = cpu_threads(
        config.learner.threads, config.algorithm.learner_cpus, share=len(policies) * ranks.local_size
    )
    ending = asyncio.Event()
    shared = _Shared(config, ending, asyncio.Lock(), num_threads, device, ranks)
    trainings = [
        asyncio.create_task(_train_policy(shared, parts, peers))
        for parts, peers in zip(policies, groups, strict=True)
    ]
    signal = asyncio.create_task(stopping.wait())
    try:
        done, _ = await asyncio.wait([*trainings, signal], return_when=asyncio.FIRST_COMPLETED)
        ending.set()
        await asyncio.wait(trainings)
    finally:
        for task in (*trainings, signal):
            task.cancel()
        await asyncio.gather(*trainings, signal, return_exceptions=True)
    result = _first_result(sorted(trainings, key=lambda training: training not in done))
    if result is not None and ranks.is_chief:
        await asyncio.to_thread(write_result, config.run.dir, result)


async def _gather_peers(
    config: Config, ranks: Ranks, device: torch.device, num_policies: int
) -> Sequence[Peers]:
    """The other learners, once for each policy."""
    if ranks.size == 1:
        return [Alone()] * num_policies

    def gather() -> Sequence[Peers]:
        return gather_group(ranks, device, config.learner.peer_timeout_s).for_policies(num_policies)

    return await asyncio.to_thread(gather)


def _first_result(trainings: Sequence[asyncio.Task[RunResult | None]]) -> RunResult | None:
    """Raises what failed, the first before the others.

    A training that was merely stopped has ended nothing, even if it was the first to be over here: another
    learner may have been told by it before this one has saved.
    """
    failures = [error for training in trainings if (error := training.exception()) is not None]
    if len(failures) > 1:
        raise BaseExceptionGroup("several trainings failed", failures)
    if failures:
        raise failures[0]
    results = [result for training in trainings if (result := training.result()) is not None]
    return min(results, key=lambda result: result.reason == STOPPED, default=None)


@dataclass(frozen=True)
class _Shared:
    """What the trainings of a process have in common."""

    config: Config
    ending: asyncio.Event
    # Held while a policy is built.
    building: asyncio.Lock
    num_threads: int
    device: torch.device
    ranks: Ranks


async def _train_policy(shared: _Shared, parts: Parts, peers: Peers) -> RunResult | None:
    """None if the run ends before anybody has brought the policy's spec."""
    config, place = shared.config, parts.place
    pool = ThreadPoolExecutor(1, thread_name_prefix=f"train-{place.name}")
    with pool, _named(parts):
        spec = await _spec(shared, parts, peers, pool)
        if spec is None:
            return None
        async with _summaries(shared, parts) as summaries, _source(shared, parts) as source:
            training = await _prepare(shared, parts, peers, spec, source, summaries, pool)
            result = await training.run(shared.ending)
    if place.dir != config.run.dir and shared.ranks.is_chief:
        await asyncio.to_thread(write_result, place.dir, result)
    return result


async def _spec(shared: _Shared, parts: Parts, peers: Peers, pool: ThreadPoolExecutor) -> EnvSpec | None:
    """None when told to end before there is one."""
    if peers.size == 1:
        return await _unless(shared.ending, parts.publisher.spec())
    loop = asyncio.get_running_loop()
    coming = asyncio.run_coroutine_threadsafe(parts.publisher.spec(), loop)
    try:
        return await loop.run_in_executor(pool, await_spec, peers, coming, shared.ending.is_set)
    finally:
        coming.cancel()


async def _prepare(
    shared: _Shared,
    parts: Parts,
    peers: Peers,
    spec: EnvSpec,
    source: Source,
    summaries: Curves,
    pool: ThreadPoolExecutor,
) -> _Training:
    """The algorithm and its policy first: what that remembers is a part of every batch."""
    config, settings, device = shared.config, shared.config.learner, shared.device
    events = asyncio.get_running_loop()
    async with shared.building:
        resumed = await events.run_in_executor(pool, build_or_resume, config, parts, spec, device, peers)
    # Not while it is held: another learner may be building another policy first.
    seed = policy_seed(config, parts.place.name)
    resumed = await events.run_in_executor(pool, begin_alike, peers, resumed, seed)
    layout = BatchLayout(
        spec,
        resumed.algorithm.policy.state,
        resumed.algorithm.behaviour,
        item_length(config, parts.place.table),
        batch_share(config, shared.ranks.rank, shared.ranks.size),
        transitions=isinstance(replay_tables(config)[parts.place.table], TransitionTable),
    )
    source.go_on_from(resumed.progress.env_steps, layout.nbytes)
    # One is trained on while the others are filled or wait.
    ring = BatchRing(
        make_slots(layout, device, settings.prefetch_batches + 1), parts.metrics.outdated_steps.inc
    )
    prefetcher = Prefetcher(
        source,
        layout,
        ring,
        lambda payloads: decode_sequence(payloads, config.limits),
        settings.decode_threads,
        parts.metrics,
    )
    priorities = None
    if source.has_priorities:
        priorities = PriorityReturn(source.send_priorities, events)
    # Set per thread: this is the one that computes.
    num_threads = _training_threads(shared, resumed.algorithm.policy, layout.unroll_length)
    await events.run_in_executor(pool, torch.set_num_threads, num_threads)
    loop = TrainingLoop(config, spec, resumed, ring, parts, summaries, priorities, peers=peers)
    return _Training(loop, prefetcher, parts.publisher, pool)


def _training_threads(shared: _Shared, policy: Policy, length: int) -> int:
    """As `learner.threads` says; 0: as many as pay for the operations of one optimiser step."""
    if shared.config.learner.threads:
        return shared.num_threads
    batch = effective_batch(shared.config, length)
    # A memory is gone through step by step.
    num_rows = batch.num_steps if policy.trunk.core is None else batch.num_envs // batch.num_parts
    return fitting_threads(shared.num_threads, products_per_row(policy) * num_rows / shared.ranks.size)


@dataclass(frozen=True)
class _Training:
    """One policy's loop in its thread, and what is beside it: prefetching, and the publisher's failures."""

    loop: TrainingLoop
    prefetcher: Prefetcher
    publisher: WeightsPublisher
    pool: ThreadPoolExecutor

    async def run(self, ending: asyncio.Event) -> RunResult:
        """Until a stop condition, `ending`, or the first error of prefetch, publisher or training."""
        training = asyncio.get_running_loop().run_in_executor(self.pool, self.loop.run)
        prefetching = asyncio.create_task(self.prefetcher.run())
        publishing = asyncio.create_task(self.publisher.failure())
        told = asyncio.create_task(ending.wait())
        beside: list[asyncio.Future[Any]] = [prefetching, publishing, told]
        try:
            await asyncio.wait([training, *beside], return_when=asyncio.FIRST_COMPLETED)
            ended = [task for task in (prefetching, publishing) if task.done()]
            self.loop.stop()
            result = await training
            for task in ended:
                task.result()
            return result
        finally:
            self.loop.stop()
            for future in beside:
                future.cancel()
            await asyncio.gather(*beside, return_exceptions=True)


def item_length(config: Config, table_name: str) -> int:
    """T of the items that a table hands out."""
    table = replay_tables(config)[table_name]
    if isinstance(table, TransitionTable):
        return 1
    unrolls = table.unrolls if isinstance(table, SequenceTable) else 1
    return unrolls * config.actor.unroll_length


async def _unless(ending: asyncio.Event, awaited: Awaitable[Found]) -> Found | None:
    """None when told to end before it is there."""
    waiting = asyncio.ensure_future(awaited)
    told = asyncio.create_task(ending.wait())
    try:
        await asyncio.wait({waiting, told}, return_when=asyncio.FIRST_COMPLETED)
        return waiting.result() if waiting.done() else None
    finally:
        waiting.cancel()
        told.cancel()


@contextlib.contextmanager
def _named(parts: Parts) -> Iterator[None]:
    """Where there are several policies, the log says which of them failed."""
    try:
        yield
    except Exception as error:
        if parts.metrics.log_label:
            first: BaseException = error
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            log.error("%straining failed: %s", parts.metrics.log_label, first)
        raise


@contextlib.asynccontextmanager
async def _source(shared: _Shared, parts: Parts) -> AsyncIterator[Source]:
    source = make_source(shared.config, parts.place, shared.ranks, parts.metrics)
    source.start()
    try:
        yield source
    finally:
        await source.close()


@contextlib.asynccontextmanager
async def _summaries(shared: _Shared, parts: Parts) -> AsyncIterator[Curves]:
    """Of several learners the chief draws the curves of all."""
    summaries: Curves = Several([])
    if shared.ranks.is_chief:
        summaries = Summaries(parts.place.dir / "tensorboard")
        if shared.config.run.wandb:
            summaries = Several([summaries, WandbCurves(shared.config, parts.place)])
    try:
        yield summaries
    finally:
        await asyncio.to_thread(summaries.close)
