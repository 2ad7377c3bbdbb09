"""A service's gRPC server, with its health server and its drain. Built by each service's composition root.

Two listeners: the service's own, with token and TLS, and one for `grpc.health.v1` alone, in plaintext and
open to whoever reaches it on any address, because probes can do neither TLS nor tokens; all it tells is
whether we serve.
Everything runs on the process's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.errors import ConfigError, UnavailableError
from shoal.rpc.addresses import Endpoint, parse_endpoint
from shoal.rpc.auth import TokenInterceptor, TokenSource, is_mutual_tls, server_credentials
from shoal.rpc.channel import Options, keepalive_options, message_options
from shoal.rpc.listen import take_address
from shoal.rpc.status import Behavior, HandlerInterceptor, StatusInterceptor, wrap_handler

log = logging.getLogger(__name__)

# Per connection. A peer opens one stream per group of environments, shard or subscription.
MAX_CONCURRENT_STREAMS = 1024

# Clients may be configured to ping as often as once a second; more than this is abuse.
MIN_PING_INTERVAL_MS = 500

# After the grace: how long cut handlers may take to unwind, and gRPC to close its sockets.
UNWIND_S = 0.4
CLOSE_S = 0.4

# A health request is a few bytes.
MAX_HEALTH_MESSAGE_BYTES = 1 << 16

Servicer = TypeVar("Servicer")


class RpcServer:
    """`add` services, `start`, and at the end `drain`."""

    def __init__(
        self,
        listen: str,
        health_listen: str,
        security: SecuritySection,
        limits: LimitsSection,
        rpc: RpcSection,
    ) -> None:
        """`listen` "" is a process that nobody calls (an actor): health only."""
        self._listen = listen
        self._health_listen = health_listen
        self._security = security
        self._limits = limits
        self._rpc = rpc
        self._registrations: list[Callable[[grpc.aio.Server], None]] = []
        self._names = [""]
        self._server: grpc.aio.Server | None = None
        self._health_server: grpc.aio.Server | None = None
        self._health: HealthServicer | None = None
        self._health_tasks: set[asyncio.Task[None]] = set()
        self._serving = True
        self._admission = Admission()
        self._drained: asyncio.Task[None] | None = None
        self._address = ""
        self._health_address = ""

    def add(
        self, register: Callable[[Servicer, grpc.aio.Server], None], servicer: Servicer, service_name: str
    ) -> None:
        """Before `start`: serve `servicer`. `service_name` is the full one, for health checks by name."""
        self._registrations.append(lambda server: register(servicer, server))
        self._names.append(service_name)

    @property
    def address(self) -> str:
        """Where the service listens, with the port that was chosen if 0 was asked; "" without one."""
        return self._address

    @property
    def health_address(self) -> str:
        return self._health_address

    async def start(self) -> None:
        """Listen. Healthy from now on, unless `set_serving(False)` came first.

        Raises AddressInUseError, or ConfigError for an address open to the network without protection.
        """
        try:
            if self._listen:
                self._server, self._address = self._make_server(parse_endpoint(self._listen))
            if self._health_listen:
                self._health_server, self._health_address = await self._make_health_server()
            await self._start_servers()
        except BaseException:
            # gRPC frees an address only when it stops the server, and stops only a server that was started.
            self._admission.refuse()
            await self._start_servers()
            await self._close()
            raise

    def set_serving(self, serving: bool) -> None:
        """What health checks are told. Ignored once draining."""
        self._serving = serving
        if self._health is not None:
            task = asyncio.get_running_loop().create_task(self._tell_health())
            self._health_tasks.add(task)
            task.add_done_callback(self._health_tasks.discard)

    async def drain(self, grace_s: float) -> None:
        """Stop: not healthy, new calls refused, running ones have grace_s to end and are then cut.

        Takes at most grace_s and a second. Calling it again waits for the first call. A stream that never
        ends by itself uses up the whole grace: end it first, or give little.
        """
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_task(self._drain(grace_s))
        await asyncio.shield(self._drained)

    async def _drain(self, grace_s: float) -> None:
        self._admission.refuse()
        if self._health is not None:
            await self._health.enter_graceful_shutdown()
        cut = await self._admission.finish(grace_s)
        if cut:
            log.info("cut %d calls that were still running after %.1f s", cut, grace_s)
        await self._close()

    def _servers(self) -> list[grpc.aio.Server]:
        return [server for server in (self._server, self._health_server) if server is not None]

    async def _start_servers(self) -> None:
        for server in self._servers():
            await server.start()

    async def _close(self) -> None:
        stops = [asyncio.ensure_future(server.stop(None)) for server in self._servers()]
        if stops:
            await asyncio.wait(stops, timeout=CLOSE_S)

    def _make_server(self, endpoint: Endpoint) -> tuple[grpc.aio.Server, str]:
        tokens = TokenSource(self._security)
        credentials = None if endpoint.path else server_credentials(self._security)
        if not endpoint.is_local and not tokens.is_set and not is_mutual_tls(self._security):
            raise ConfigError(
                f"refusing to listen on {endpoint}, which other machines can reach, without protection: set "
                "security.token, security.token_file or security.tls.cert, key and ca, or listen on 127.0.0.1"
            )
        interceptors: list[grpc.aio.ServerInterceptor] = [StatusInterceptor(), self._admission]
        if tokens.is_set:
            interceptors.insert(0, TokenInterceptor(tokens))
        server = grpc.aio.server(interceptors=interceptors, options=_options(self._limits, self._rpc))
        for register in self._registrations:
            register(server)
        return server, str(take_address(server, endpoint, credentials))

    async def _make_health_server(self) -> tuple[grpc.aio.Server, str]:
        self._health = HealthServicer()
        await self._tell_health()
        limits = LimitsSection(max_message_bytes=MAX_HEALTH_MESSAGE_BYTES)
        server = grpc.aio.server(options=_options(limits, self._rpc))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        return server, str(take_address(server, parse_endpoint(self._health_listen), None))

    async def _tell_health(self) -> None:
        assert self._health is not None
        states = health_pb2.HealthCheckResponse
        for name in self._names:
            await self._health.set(name, states.SERVING if self._serving else states.NOT_SERVING)


class Admission(HandlerInterceptor):
    """Knows the running calls; refuses new ones once draining. Goes inside StatusInterceptor."""

    def __init__(self) -> None:
        super().__init__()
        self._running: set[asyncio.Task[Any]] = set()
        self._cut: set[asyncio.Task[Any]] = set()
        self._refusing = False

    def refuse(self) -> None:
        self._refusing = True

    async def finish(self, grace_s: float) -> int:
        """Wait for the running calls, then cut the rest. Returns how many were cut."""
        if self._running:
            await asyncio.wait(self._running, timeout=grace_s)
        self._cut = set(self._running)
        for task in self._cut:
            task.cancel()
        if self._cut:
            await asyncio.wait(self._cut, timeout=UNWIND_S)
        return len(self._cut)

    def wrap(self, handler: Any, method: str) -> grpc.RpcMethodHandler[Any, Any]:
        def around(behavior: Behavior) -> Behavior:
            async def run(request: Any, context: Any) -> Any:
                if self._refusing:
                    raise UnavailableError("draining")
                task = asyncio.current_task()
                assert task is not None
                self._running.add(task)
                try:
                    return await behavior(request, context)
                except asyncio.CancelledError:
                    if task in self._cut:
                        raise UnavailableError("draining: cut at the end of the grace period") from None
                    raise
                finally:
                    self._running.discard(task)

            return run

        return wrap_handler(handler, around)


def _options(limits: LimitsSection, rpc: RpcSection) -> Options:
    return [
        *message_options(limits),
        # The server pings too: a client that was black-holed must not hold its streams for ever.
        *keepalive_options(rpc),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
        # Otherwise a second server on the port would silently get half of the connections.
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", MAX_CONCURRENT_STREAMS),
    ]
