"""Composition root of the inference server: `python -m services.inference --config run.yaml`.

Builds an engine and a subscription for each policy and the gRPC server, wires them and runs them until a
signal, the user's mistake or a crash.
"""

from __future__ import annotations

import asyncio
import gc
import zlib
from collections.abc import Awaitable

import torch

from services.inference.engine import Engine
from services.inference.engines import Engines
from services.inference.metrics import InferenceMetrics
from services.inference.seats import Seats
from services.inference.servicer import InferenceServicer
from services.inference.subscription import Subscription
from shoal.clients.weights import WeightsClient, policy_text
from shoal.clients.weights_grpc import GrpcWeightsClient
from shoal.config import Config
from shoal.config.policies import policy_places
from shoal.heap import keep_freed_memory
from shoal.metrics import start_metrics_server
from shoal.policy.device import cpu_threads, pick_device
from shoal.rpc.addresses import AddressBook
from shoal.rpc.backoff import Backoff
from shoal.rpc.process import ServiceContext, run_service
from shoal.rpc.server import RpcServer


async def main(config: Config, context: ServiceContext) -> None:
    keep_freed_memory()
    section = config.inference
    device = pick_device(section.device, "inference.device")
    # Replicas of one run must not draw the same actions.
    torch.manual_seed(zlib.crc32(f"{config.run.seed}/{section.id}".encode()))

    metrics = InferenceMetrics(context.registry)
    seats, names = Seats(section.max_envs), [place.name for place in policy_places(config)]
    num_threads = cpu_threads(section.threads, config.algorithm.inference_cpus, share=len(names))
    engines = [Engine(section, config.policy, device, metrics, name, seats, num_threads) for name in names]
    backend = Engines(engines)
    servicer = InferenceServicer(backend, config.limits, metrics)
    server = RpcServer(section.listen.grpc, section.listen.health, config.security, config.limits, config.rpc)
    servicer.add_to(server)
    metrics_server = start_metrics_server(section.listen.metrics, context.registry)
    await server.start()
    backend.start()
    # What torch creates on import takes the garbage collector a tenth of a second to look through, and
    # all actors would wait for it.
    gc.freeze()
    try:
        await context.announce(
            grpc=server.address, health=server.health_address, metrics=metrics_server.address
        )
        policy, dial = policy_text(config.policy), LearnerDialler(config)
        following = [
            Subscription(dial, section.id, policy, engine, metrics, Backoff(max_s=config.rpc.max_backoff_s))
            for engine in engines
        ]
        await _first_of(
            context.stopping.wait(), backend.crashed(), *(subscription.run() for subscription in following)
        )
    finally:
        backend.drain()
        await servicer.drain()
        await server.drain(context.grace_s())
        await backend.close()
        metrics_server.close()


class LearnerDialler:
    """A new connection to the learner each time, at the address that its name has by then."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._addresses = AddressBook([config.addresses.learner], config.rpc)

    async def __call__(self) -> WeightsClient:
        address, *_ = await self._addresses.resolve()
        config = self._config
        return GrpcWeightsClient(address, config.security, config.limits, config.rpc)


async def _first_of(*awaitables: Awaitable[object]) -> None:
    """Returns when one of them does, raises what one of them raises; the others are cancelled."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    run_service("inference", main)
