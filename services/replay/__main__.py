"""One replay shard as a program: `python -m services.replay --config run.yaml`."""

from __future__ import annotations

import asyncio
import gc
import sys

from services.replay.directory import DirectoryLock, shard_directory
from services.replay.drain import leave
from services.replay.metrics import ReplayMetrics
from services.replay.servicer import ReplayServicer
from services.replay.shard import Shard
from shoal.config import Config
from shoal.config.policies import replay_tables
from shoal.metrics import start_metrics_server
from shoal.rpc.process import ServiceContext, run_service
from shoal.rpc.server import RpcServer

# Of rpc.drain_s, and at most a quarter of it: kept for items that were taken last to reach their sampler.
CLOSING_S = 1.0
# How long a thread that writes a snapshot or a journal may keep the interpreter to itself (s). An answer
# changes hands several times, and with Python's 5 ms each of these takes that long while such a thread works.
SWITCH_INTERVAL_S = 0.0005


async def main(config: Config, context: ServiceContext) -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    directory = shard_directory(config)
    if directory:
        # Until the process ends: a thread that the disk holds up may write after all else is over.
        DirectoryLock(directory)
    settings = config.replay.model_copy(update={"tables": replay_tables(config)})
    shard = Shard(settings, config.limits, directory)
    metrics = ReplayMetrics(context.registry)
    servicer = ReplayServicer(shard, metrics)
    listen = config.replay.listen
    server = RpcServer(listen.grpc, listen.health, config.security, config.limits, config.rpc)
    servicer.add_to(server)
    endpoint = start_metrics_server(listen.metrics, context.registry)
    try:
        server.set_serving(False)
        await server.start()
        await context.announce(grpc=server.address, health=server.health_address, metrics=endpoint.address)
        if await _opened(shard, context.stopping):
            # What is here now stays: collections need not look at it again, each some 30 ms.
            gc.collect()
            gc.freeze()
            metrics.watch(shard.tables)
            server.set_serving(True)
            await context.stopping.wait()
            server.set_serving(False)
            await leave(shard, servicer, context.grace_s() - min(CLOSING_S, config.rpc.drain_s / 4))
        await server.drain(context.grace_s())
    finally:
        endpoint.close()


async def _opened(shard: Shard, stopping: asyncio.Event) -> bool:
    """Read the tables' files, however long that takes; False if the process is to stop before it is done."""
    opening = asyncio.ensure_future(shard.open())
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((opening, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not opening.done():
        opening.cancel()
        return False
    await opening
    return True


if __name__ == "__main__":
    run_service("replay", main)
