"""Composition root of the learner: `python -m services.learner --config run.yaml`.

Listens first and imports torch meanwhile, so that subscribers never find the door closed. Then trains each
policy, from when the first of its subscribers brings its env spec, until a stop condition or a signal.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

from services.learner.metrics import LearnerMetrics
from services.learner.parts import build_parts, take_run_dir
from services.learner.servicer import WeightsServicer
from services.learner.wandb_curves import check_installed
from shoal.config import Config
from shoal.config.trainable import check_trainable
from shoal.heap import keep_freed_memory
from shoal.metrics import start_metrics_server
from shoal.rpc.process import ServiceContext, run_service
from shoal.rpc.server import RpcServer

# For calls to end once all subscriptions were told to.
CLOSING_S = 1.0


async def main(config: Config, context: ServiceContext) -> None:
    check_trainable(config)
    check_installed(config)
    keep_freed_memory()
    importing = asyncio.create_task(asyncio.to_thread(importlib.import_module, "services.learner.session"))
    lock = await asyncio.to_thread(take_run_dir, config)
    metrics = LearnerMetrics(context.registry)
    policies = build_parts(config, metrics)
    listen = config.learner.listen
    server = RpcServer(listen.grpc, listen.health, config.security, config.limits, config.rpc)
    WeightsServicer({parts.place.name: parts.publisher for parts in policies}, metrics).add_to(server)
    endpoint = start_metrics_server(listen.metrics, context.registry)
    try:
        await server.start()
        await context.announce(grpc=server.address, health=server.health_address, metrics=endpoint.address)
        session: Any = await importing
        session.device_of(config)
        await session.train(config, policies, context.stopping)
    finally:
        for parts in policies:
            parts.publisher.close()
        await server.drain(CLOSING_S)
        endpoint.close()
        lock.release()


if __name__ == "__main__":
    run_service("learner", main)
