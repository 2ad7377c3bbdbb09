"""One replay shard as a program: `python -m services.replay --config run.yaml`."""

from __future__ import annotations

from services.replay.drain import hand_over
from services.replay.metrics import ReplayMetrics
from services.replay.servicer import ReplayServicer
from services.replay.shard import Shard
from shoal.config import Config
from shoal.metrics import start_metrics_server
from shoal.rpc.process import ServiceContext, run_service
from shoal.rpc.server import RpcServer

# Of rpc.drain_s, and at most a quarter of it: kept for items that were taken last to reach their sampler.
CLOSING_S = 1.0


async def main(config: Config, context: ServiceContext) -> None:
    shard = Shard(config.replay, config.limits)
    metrics = ReplayMetrics(context.registry)
    metrics.watch(shard.tables)
    servicer = ReplayServicer(shard, metrics)
    listen = config.replay.listen
    server = RpcServer(listen.grpc, listen.health, config.security, config.limits, config.rpc)
    servicer.add_to(server)
    endpoint = start_metrics_server(listen.metrics, context.registry)
    try:
        await server.start()
        await context.announce(grpc=server.address, health=server.health_address, metrics=endpoint.address)
        await context.stopping.wait()
        server.set_serving(False)
        await hand_over(shard, servicer, context.grace_s() - min(CLOSING_S, config.rpc.drain_s / 4))
        await server.drain(context.grace_s())
    finally:
        endpoint.close()


if __name__ == "__main__":
    run_service("replay", main)
