"""Programs that the tests of `shoal.rpc` start: `python -m tests.service.rpc_child MODE ...`.

The arguments after the mode are those of every service.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import grpc

from shoal.config import Config
from shoal.errors import SpecMismatchError
from shoal.rpc.process import ServiceContext, run_service
from shoal.rpc.server import RpcServer
from tests.service.rpc_echo import SERVICE, Echo, dialled, method, register


async def serve(config: Config, context: ServiceContext) -> None:
    listen = config.replay.listen
    server = RpcServer(listen.grpc, listen.health, config.security, config.limits, config.rpc)
    server.add(register, Echo(), SERVICE)
    await server.start()
    await context.announce(grpc=server.address, health=server.health_address)
    await context.stopping.wait()
    await server.drain(context.grace_s())


async def hold(config: Config, context: ServiceContext) -> None:
    """A client with one open stream."""
    async with dialled(config.addresses.replay[0]) as channel:
        call = method(channel, "Hold")(b"")
        while await call.read() is not grpc.aio.EOF:
            pass


async def deaf(config: Config, context: ServiceContext) -> None:
    """Does not stop when told."""
    await context.announce()
    await asyncio.Event().wait()


async def stuck(config: Config, context: ServiceContext) -> None:
    """Blocks the event loop."""
    await context.announce()
    while True:
        time.sleep(0.05)  # noqa: ASYNC251


async def lingering(config: Config, context: ServiceContext) -> None:
    """Leaves a thread behind in the loop's executor, as a look-up of a dead resolver does."""
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    await context.announce()
    await context.stopping.wait()


async def crash(config: Config, context: ServiceContext) -> None:
    raise RuntimeError("something broke")


async def mistake(config: Config, context: ServiceContext) -> None:
    raise SpecMismatchError("the specs differ:\n  a\n  b")


async def grouped_mistake(config: Config, context: ServiceContext) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.Event().wait())
        tasks.create_task(mistake(config, context))


if __name__ == "__main__":
    run_service("replay", globals()[sys.argv[1]], sys.argv[2:])
