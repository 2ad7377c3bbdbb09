"""P8: from the end of a learner step to the first action that its weights chose, with 10 MB of weights.

A real run on CartPole, each service a process of its own: the learner trains and publishes after every step,
an actor acts all the while. The benchmark is one more client of the inference server, with one environment,
and notes when it first sees each version. Both ends read the same clock.

In the figure: the copy of the weights and the check that they are finite, serialising, SHA-256, gRPC in
chunks, assembling, SHA-256 again, loading them beside those in use, the swap between two batches, the
forward pass of the batch and the reply to the client. Not in it: the learner step itself, and any network.
A version that is overtaken on its way counts until a newer one acts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.console import verdict
from benchmarks.service_process import ServiceProcess, running
from shoal.cli.scrape import fetch, parse, total
from shoal.clients.inference import ActHello
from shoal.clients.inference_grpc import GrpcInferenceClient
from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.records import OBSERVATION, ArraySpec, DiscreteAction, EnvSpec, Life

TARGET_MS = 150.0
# 4 x 1600 + 1600 x 1600 + 1600 x 3 and biases: 10.3 MB in float32.
HIDDEN = 1600
WEIGHTS_MB = 4 * (4 * HIDDEN + HIDDEN * HIDDEN + HIDDEN * 3 + 2 * HIDDEN + 3) / 1e6
CARTPOLE = EnvSpec("CartPole-v1", (ArraySpec(OBSERVATION, "float32", (4,)),), DiscreteAction(2))
# Between two looks of the client: it must not be a load of its own.
PAUSE_S = 0.002
# Tells the learner where to write the moments.
FILE_VARIABLE = "BENCHMARK_PUBLISHED"


@dataclass(frozen=True)
class Settings:
    warm_up_s: float = 5.0
    measure_s: float = 40.0
    num_envs: int = 64
    unroll_length: int = 20


@dataclass(frozen=True)
class Published:
    """One version: when its step ended, and when the training thread had handed it over."""

    version: int
    step_ended_s: float
    handed_over_s: float


@dataclass(frozen=True)
class Seen:
    """The first reply of a version that was not there before."""

    version: int
    time_s: float


def delays_s(published: Sequence[Published], seen: Sequence[Seen]) -> list[float]:
    """For each version published: until it, or a newer one, acted. Those that never did are left out."""
    versions = np.array([each.version for each in seen])
    found = []
    for each in published:
        index = int(np.searchsorted(versions, each.version))
        if index < len(seen):
            found.append(seen[index].time_s - each.step_ended_s)
    return found


def measure(settings: Settings, directory: Path) -> None:
    """Print P8."""
    place = directory / "p8"
    place.mkdir()
    services, moments = _services(settings, place)
    with running(services):
        seen, round_trips, load_s = asyncio.run(_watch(services[-2], settings))
    published = _in_window(read_moments(moments), seen)
    _print(published, seen, round_trips, load_s)


def _services(settings: Settings, directory: Path) -> tuple[list[ServiceProcess], Path]:
    moments = directory / "published"
    shared: dict[str, object] = {
        "run.dir": str(directory / "run"),
        "policy.hidden_sizes": [HIDDEN, HIDDEN],
        "actor.envs": settings.num_envs,
        "actor.groups": 2,
        "actor.unroll_length": settings.unroll_length,
        "learner.batch_envs": settings.num_envs // 2,
        "learner.checkpoint_every_s": 3600,
    }
    replay = ServiceProcess("replay", directory, shared)
    learner = ServiceProcess(
        "learner",
        directory,
        {**shared, "addresses.replay": [replay.target]},
        module="benchmarks.timed_learner",
        environment={FILE_VARIABLE: str(moments)},
    )
    inference = ServiceProcess("inference", directory, {**shared, "addresses.learner": learner.target})
    dialled = {"addresses.inference": [inference.target], "addresses.replay": [replay.target]}
    return [replay, learner, inference, ServiceProcess("actor", directory, {**shared, **dialled})], moments


async def _watch(inference: ServiceProcess, settings: Settings) -> tuple[list[Seen], list[float], float]:
    """What a client saw after the warm-up, how long its calls took, and the mean time of a load (s)."""
    client = GrpcInferenceClient(inference.address, SecuritySection(), LimitsSection(), RpcSection())
    stream = await client.open(ActHello(Life("benchmark", "1"), CARTPOLE, 1, greedy=True))
    observation, first = {OBSERVATION: np.zeros((1, 4), np.float32)}, np.zeros(1, np.bool_)
    seen: list[Seen] = []
    round_trips: list[float] = []
    begin = time.monotonic() + settings.warm_up_s
    newest = -1
    while (asked := time.monotonic()) < begin + settings.measure_s:
        reply = await stream.act(observation, first)
        answered = time.monotonic()
        if asked >= begin:
            round_trips.append(answered - asked)
            if reply.policy_version > newest:
                seen.append(Seen(reply.policy_version, answered))
        newest = max(newest, reply.policy_version)
        await asyncio.sleep(PAUSE_S)
    await stream.close()
    await client.close()
    metrics = parse(await fetch(inference.metrics_address))
    loads = total(metrics, "shoal_inference_weight_swaps_total") or 1.0
    return seen, round_trips, (total(metrics, "shoal_inference_weight_load_seconds_total") or 0.0) / loads


def read_moments(path: Path) -> list[Published]:
    """The last line may be half written."""
    lines = path.read_text().splitlines(keepends=True)
    words = [line.split() for line in lines if line.endswith("\n")]
    return [Published(int(version), float(ended), float(handed)) for version, ended, handed in words]


def _in_window(published: Sequence[Published], seen: Sequence[Seen]) -> list[Published]:
    """Those that came after the first version seen: only they had to be noticed."""
    if len(seen) < 2:
        raise RuntimeError(f"only {len(seen)} versions acted while they were watched: measure for longer")
    return [each for each in published if seen[0].version < each.version <= seen[-1].version]


def _print(
    published: Sequence[Published], seen: Sequence[Seen], round_trips: Sequence[float], load_s: float
) -> None:
    acted = {each.version for each in seen}
    delays_ms = 1000 * np.array(delays_s(published, seen))
    p50, p95, worst = np.percentile(delays_ms, [50, 95, 100])
    handed_ms = 1000 * np.median([each.handed_over_s - each.step_ended_s for each in published])
    span_s = published[-1].step_ended_s - published[0].step_ended_s
    overtaken = sum(each.version not in acted for each in published)
    print(
        f"\nP8  learner step ended -> its weights act: MLP {HIDDEN}x{HIDDEN}, {WEIGHTS_MB:.1f} MB, "
        f"{len(published)} versions, {(len(published) - 1) / span_s:.1f} a second, {overtaken} overtaken"
    )
    met = verdict(p95, TARGET_MS, at_most=True)
    print(f"    p50 {p50:.0f} ms, p95 {p95:.0f} ms ({met} ms), worst {worst:.0f} ms")
    look_ms, every_ms = 1000 * np.median(round_trips), 1000 * (np.mean(round_trips) + PAUSE_S)
    print(
        f"    of it: copy and hand-over {handed_ms:.0f} ms (median), load beside those in use "
        f"{1000 * load_s:.0f} ms (mean); the client looks every {every_ms:.0f} ms, for {look_ms:.0f} ms"
    )
