"""Channels to other services: keepalive, quick reconnects, token, TLS. Used by `shoal.clients`.

One channel per address; created on, and used from, the process's event loop, and never before a fork.
"""

from __future__ import annotations

from typing import Any

import grpc

from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.rpc.addresses import Address
from shoal.rpc.auth import TokenSource, channel_credentials

INITIAL_BACKOFF_MS = 100

# Despite its name in gRPC this is how long one attempt to connect may take; the default of 20 s would
# hold up a reconnect to a peer that swallowed the first attempt.
CONNECT_TIMEOUT_MS = 2000

MAX_INT32 = (1 << 31) - 1

Options = list[tuple[str, Any]]


def open_channel(
    address: Address, security: SecuritySection, limits: LimitsSection, rpc: RpcSection
) -> grpc.aio.Channel:
    """A channel that connects on its first call and reconnects on any call after a break.

    Calls on it fail at once with UNAVAILABLE while the peer is away; retry with `Backoff`. Raises ConfigError
    for a token or TLS file that cannot be used. Unix sockets never use TLS: their file mode guards them.
    """
    tokens = TokenSource(security)
    credentials = None if address.target.startswith("unix:") else channel_credentials(security)
    options = _options(limits, rpc)
    if address.authority is not None:
        options.append(("grpc.default_authority", address.authority))
        if credentials is not None:
            options.append(("grpc.ssl_target_name_override", address.authority))
    if credentials is None:
        channel = grpc.aio.insecure_channel(address.target, options)
    else:
        channel = grpc.aio.secure_channel(address.target, credentials, options)
    return TokenChannel(channel, tokens) if tokens.is_set else channel


def message_options(limits: LimitsSection) -> Options:
    """Bounds on one message, for servers and clients."""
    max_bytes = min(limits.max_message_bytes, MAX_INT32)
    return [("grpc.max_receive_message_length", max_bytes), ("grpc.max_send_message_length", max_bytes)]


def keepalive_options(rpc: RpcSection) -> Options:
    """Pings that find a dead peer, also while no call is running and while nothing is sent."""
    timeout_ms = int(rpc.keepalive_timeout_s * 1000)
    return [
        ("grpc.keepalive_time_ms", int(rpc.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", timeout_ms),
        # gRPC 1.85 never starts the timer of keepalive_timeout_ms if it is shorter than this one of 60 s.
        ("grpc.http2.ping_timeout_ms", timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def _options(limits: LimitsSection, rpc: RpcSection) -> Options:
    # Half, because the pause of whoever calls again comes on top of it.
    max_backoff_ms = int(rpc.max_backoff_s * 500)
    return [
        *message_options(limits),
        *keepalive_options(rpc),
        ("grpc.initial_reconnect_backoff_ms", min(INITIAL_BACKOFF_MS, max_backoff_ms)),
        ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
        ("grpc.max_reconnect_backoff_ms", max_backoff_ms),
        ("grpc.dns_min_time_between_resolutions_ms", int(rpc.resolve_every_s * 1000)),
        # A channel opened after a break must not inherit another one's back-off.
        ("grpc.use_local_subchannel_pool", 1),
        # What is not acknowledged is resent by the clients, which know what may be repeated.
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
        # The services of a run talk to each other directly, whatever http_proxy says.
        ("grpc.enable_http_proxy", 0),
    ]


class TokenChannel(grpc.aio.Channel):
    """A channel that sends the token with every call.

    gRPC's call credentials need TLS, and its client interceptors put queues and wrappers around every
    message of a stream. This adds metadata when a call starts and is out of the way afterwards.
    """

    def __init__(self, channel: grpc.aio.Channel, tokens: TokenSource) -> None:
        self._channel = channel
        self._tokens = tokens

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_token(self._channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_token(self._channel.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_token(self._channel.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._with_token(self._channel.stream_stream(*args, **kwargs))

    def _with_token(self, start: Any) -> Any:
        def call(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
            return start(*args, metadata=(*(metadata or ()), *self._tokens.metadata()), **kwargs)

        return call

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    async def __aenter__(self) -> TokenChannel:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
