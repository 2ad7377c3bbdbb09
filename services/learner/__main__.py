"""Composition root of the learner: `python -m services.learner --config run.yaml`.

Listens first and imports torch meanwhile, so that subscribers never find the door closed. Then trains each
policy, from when the first of its subscribers brings its env spec, until a stop condition or a signal.
Of several learners (`torchrun --nproc-per-node L -m services.learner ...`) rank 0 does all that; the others
train along with it, and have nothing but health and metrics of their own.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from typing import Any

from services.learner.metrics import LearnerMetrics
from services.learner.parts import build_parts, take_run_dir
from services.learner.servicer import WeightsServicer
from services.learner.wandb_curves import check_installed
from shoal.config import Config
from shoal.config.ranks import at_rank, check_shareable, ranks_of
from shoal.config.trainable import check_trainable
from shoal.heap import keep_freed_memory
from shoal.metrics import start_metrics_server
from shoal.rpc.process import ServiceContext, run_service, set_up_logging
from shoal.rpc.server import RpcServer

# For calls to end once all subscriptions were told to.
CLOSING_S = 1.0


async def main(config: Config, context: ServiceContext) -> None:
    ranks = ranks_of(os.environ)
    check_trainable(config)
    check_shareable(config, ranks.size)
    config = context.config = at_rank(config, ranks)
    if ranks.size > 1:
        set_up_logging("learner", f"learner-{ranks.rank}")
    check_installed(config)
    keep_freed_memory()
    importing = asyncio.create_task(asyncio.to_thread(importlib.import_module, "services.learner.session"))
    lock = await asyncio.to_thread(take_run_dir, config) if ranks.is_chief else None
    metrics = LearnerMetrics(context.registry)
    policies = build_parts(config, metrics, ranks.rank)
    listen = config.learner.listen
    server = RpcServer(listen.grpc, listen.health, config.security, config.limits, config.rpc)
    if ranks.is_chief:
        WeightsServicer({parts.place.name: parts.publisher for parts in policies}, metrics).add_to(server)
    endpoint = start_metrics_server(listen.metrics, context.registry)
    try:
        await server.start()
        await context.announce(grpc=server.address, health=server.health_address, metrics=endpoint.address)
        session: Any = await importing
        await session.train(config, policies, ranks, context.stopping)
    finally:
        for parts in policies:
            parts.publisher.close()
        await server.drain(CLOSING_S)
        endpoint.close()
        if lock is not None:
            lock.release()


if __name__ == "__main__":
    run_service("learner", main)
