"""Processes that keep one message in flight each, with an inference server or with a bare gRPC echo.

Every client is a process with one event loop, as actors are. All start to measure at the same moment. The
echo server is what Python's gRPC costs whatever a service does: it reads bytes and writes others back.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier, Event
from typing import Any, Protocol

import grpc
import numpy as np

from shoal.clients.inference import ActHello
from shoal.clients.inference_grpc import GrpcInferenceClient
from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.records import Columns, EnvSpec, Life
from shoal.rpc.addresses import Address

WARM_UP_S = 1.0
START_TIMEOUT_S = 120.0
ECHO = "/benchmarks.Echo/Stream"
# No limit on messages; the default of 4 MiB is below a batch of frames.
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
CONTEXT = multiprocessing.get_context("spawn")

Exchange = Callable[[], Awaitable[object]]


class Caller(Protocol):
    """Opens a stream; what it returns sends one message and waits for the answer."""

    async def open(self, number: int) -> Exchange: ...


@dataclass(frozen=True)
class ActCaller:
    """Steps of `num_envs` environments, with shoal's own client. Observations are sent in turn."""

    target: str
    spec: EnvSpec
    num_envs: int
    observations: Sequence[Columns]

    async def open(self, number: int) -> Exchange:
        client = GrpcInferenceClient(Address(self.target), SecuritySection(), LimitsSection(), RpcSection())
        hello = ActHello(Life(f"benchmark-{number}", "1"), self.spec, self.num_envs)
        stream = await client.open(hello)
        first = np.zeros(self.num_envs, np.bool_)
        step = 0

        async def exchange() -> None:
            nonlocal step
            step += 1
            await stream.act(self.observations[step % len(self.observations)], first)

        # The stream ends with its client.
        exchange.client = client  # type: ignore[attr-defined]
        return exchange


@dataclass(frozen=True)
class EchoCaller:
    """Bytes there, the server's bytes back."""

    target: str
    request: bytes

    async def open(self, number: int) -> Exchange:
        channel = grpc.aio.insecure_channel(self.target, OPTIONS)
        call: Any = channel.stream_stream(ECHO)(wait_for_ready=True)

        async def exchange() -> None:
            await call.write(self.request)
            await call.read()

        exchange.channel = channel  # type: ignore[attr-defined]
        return exchange


@dataclass(frozen=True)
class Load:
    """What all clients together saw."""

    latencies_s: np.ndarray
    seconds: float

    @property
    def per_s(self) -> float:
        return len(self.latencies_s) / self.seconds

    def percentile_s(self, percent: float) -> float:
        return float(np.percentile(self.latencies_s, percent))


def joined(loads: Sequence[Load]) -> Load:
    """Rounds as one."""
    return Load(np.concatenate([load.latencies_s for load in loads]), sum(load.seconds for load in loads))


def run_clients(
    caller: Caller, num_clients: int, seconds: float, on_start: Callable[[], None] = lambda: None
) -> Load:
    """`on_start` is called when all have warmed up and begin."""
    barrier = CONTEXT.Barrier(num_clients + 1)
    pipes, processes = [], []
    for number in range(num_clients):
        ours, theirs = CONTEXT.Pipe()
        given = (caller, number, seconds, barrier, theirs)
        process = CONTEXT.Process(target=_client, args=given, daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        barrier.wait(START_TIMEOUT_S)
        on_start()
        found = [np.frombuffer(pipe.recv_bytes()) for pipe in pipes]
    except EOFError:
        raise RuntimeError("a client of the benchmark ended early: see above") from None
    finally:
        for process in processes:
            process.kill()
            process.join()
    return Load(np.concatenate(found), seconds)


def _client(caller: Caller, number: int, seconds: float, barrier: Barrier, pipe: Connection) -> None:
    asyncio.run(_measure(caller, number, seconds, barrier, pipe))


async def _measure(caller: Caller, number: int, seconds: float, barrier: Barrier, pipe: Connection) -> None:
    exchange = await caller.open(number)
    await _exchange_for(exchange, WARM_UP_S)
    barrier.wait(START_TIMEOUT_S)
    took = await _exchange_for(exchange, seconds)
    pipe.send_bytes(np.array(took).tobytes())
    # Stays until it is killed: whoever is still measuring shall not see a stream end.
    await asyncio.Event().wait()


async def _exchange_for(exchange: Exchange, seconds: float) -> list[float]:
    clock = time.perf_counter
    took: list[float] = []
    until = clock() + seconds
    while (began := clock()) < until:
        await exchange()
        took.append(clock() - began)
    return took


@contextmanager
def echo_server(target: str, reply: bytes) -> Iterator[None]:
    """A process that answers whatever comes with `reply`."""
    ready = CONTEXT.Event()
    process = CONTEXT.Process(target=_serve, args=(target, reply, ready), daemon=True)
    process.start()
    try:
        if not ready.wait(START_TIMEOUT_S):
            raise RuntimeError("the echo server did not start")
        yield
    finally:
        process.kill()
        process.join()


def _serve(target: str, reply: bytes, ready: Event) -> None:
    asyncio.run(_serve_echo(target, reply, ready))


async def _serve_echo(target: str, reply: bytes, ready: Event) -> None:
    async def echo(_requests: Any, context: Any) -> None:
        while await context.read() is not grpc.aio.EOF:
            await context.write(reply)

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.stream_stream_rpc_method_handler(echo) if details.method == ECHO else None

    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((Handler(),))
    server.add_insecure_port(target)
    await server.start()
    ready.set()
    await server.wait_for_termination()
