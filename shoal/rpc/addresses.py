"""Addresses: their syntax, and DNS names with several records as several replicas.

`parse_endpoint` reads what users write (`host:port`, `[v6]:port`, `unix:/path`) for servers and clients.
`AddressBook` is used by every client of a service that can have replicas. Runs on the event loop; look-ups
happen in the loop's executor.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.config.connections import RpcSection
from shoal.errors import ConfigError, UnavailableError

log = logging.getLogger(__name__)

# A resolver that does not answer must not hold up a client for the half minute that libc takes.
LOOKUP_TIMEOUT_S = 5.0

# struct sockaddr_un has 108 bytes with the closing zero.
MAX_UNIX_PATH_BYTES = 107

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252})")

GetAddrInfo = Callable[[str, int], Awaitable[Sequence[Any]]]


@dataclass(frozen=True)
class Endpoint:
    """A place to listen at or to dial, as written: a unix socket, or host and port."""

    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{bracketed(self.host)}:{self.port}"

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    @property
    def is_local(self) -> bool:
        """Out of reach of other machines."""
        return bool(self.path) or self.host == "localhost" or (self.ip is not None and self.ip.is_loopback)


@dataclass(frozen=True)
class Address:
    """One server to dial. `target` is gRPC's; `authority` is the name its certificate must carry."""

    target: str
    authority: str | None = None


def parse_endpoint(text: str) -> Endpoint:
    """Read `host:port`, `[v6]:port` or `unix:/path`. Raises ConfigError."""
    if text.startswith("unix:"):
        return Endpoint(path=_unix_path(text))
    host, separator, port = text.rpartition(":")
    if not separator or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ConfigError(f"address {text!r} needs a port from 0 to 65535: write host:port or unix:/path")
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            raise ConfigError(f"address {text!r}: {host} is no IPv6 address") from None
        return Endpoint(host=host[1:-1], port=int(port))
    if ":" in host:
        raise ConfigError(f"address {text!r}: write an IPv6 address in brackets, like [::1]:50051")
    if not _NAME.fullmatch(host):
        raise ConfigError(f"address {text!r}: {host!r} is no host name: write host:port or unix:/path")
    return Endpoint(host=host, port=int(port))


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class AddressBook:
    """The servers behind a list of addresses, kept up to date."""

    def __init__(
        self,
        targets: Sequence[str],
        rpc: RpcSection,
        getaddrinfo: GetAddrInfo | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._endpoints = tuple(dict.fromkeys(parse_endpoint(text) for text in targets))
        for endpoint in self._endpoints:
            if not endpoint.path and endpoint.port == 0:
                raise ConfigError(f"address {str(endpoint)!r}: port 0 cannot be dialled")
        self._every_s = rpc.resolve_every_s
        self._getaddrinfo = getaddrinfo or _system_getaddrinfo
        self._sleep = sleep
        self._known: dict[Endpoint, tuple[Address, ...]] = {}
        self._failing: set[Endpoint] = set()
        self._current: tuple[Address, ...] = ()

    @property
    def current(self) -> tuple[Address, ...]:
        """What the last look-up gave; empty before the first."""
        return self._current

    async def resolve(self) -> tuple[Address, ...]:
        """Look everything up now: sorted, each address once.

        A name that fails keeps the addresses it had. Raises UnavailableError if none is known at all.
        """
        await asyncio.gather(*(self._look_up(endpoint) for endpoint in self._endpoints))
        found = {
            address.target: address
            for endpoint in self._endpoints
            for address in self._known.get(endpoint, ())
        }
        self._current = tuple(found[target] for target in sorted(found))
        if not self._current:
            names = ", ".join(str(endpoint) for endpoint in self._endpoints) or "no address"
            raise UnavailableError(f"cannot find {names}: the name does not resolve (yet)")
        return self._current

    async def watch(self, on_change: Callable[[tuple[Address, ...]], None]) -> None:
        """Resolve every resolve_every_s for ever; `on_change` gets each list that differs from the last."""
        while True:
            before = self._current
            try:
                now = await self.resolve()
            except UnavailableError:
                now = before
            if now != before:
                on_change(now)
            await self._sleep(self._every_s)

    async def _look_up(self, endpoint: Endpoint) -> None:
        if endpoint.path or endpoint.ip is not None:
            self._known[endpoint] = (_literal(endpoint),)
            return
        try:
            found = await asyncio.wait_for(self._getaddrinfo(endpoint.host, endpoint.port), LOOKUP_TIMEOUT_S)
            addresses = _replicas(endpoint, found)
        except (OSError, UnicodeError) as error:
            if endpoint not in self._failing:
                log.warning("cannot look up %s, keeping what is known: %s", endpoint.host, repr(error))
            self._failing.add(endpoint)
            return
        self._failing.discard(endpoint)
        self._known[endpoint] = addresses


async def _system_getaddrinfo(host: str, port: int) -> Sequence[Any]:
    return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _literal(endpoint: Endpoint) -> Address:
    if endpoint.path:
        return Address(f"unix:{endpoint.path}")
    return _ip_address(endpoint.host, endpoint.port, None)


def _replicas(endpoint: Endpoint, found: Sequence[Any]) -> tuple[Address, ...]:
    """One address per record. A host with records of both families is one replica, so only one counts."""
    families = {family for family, *_ in found}
    family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    hosts = {sockaddr[0] for kind, *_, sockaddr in found if kind == family}
    if not hosts:
        raise OSError("no addresses")
    return tuple(_ip_address(host, endpoint.port, endpoint.host) for host in hosts)


def _ip_address(host: str, port: int, authority: str | None) -> Address:
    if ":" in host:
        # '%' starts a scope id and must be escaped in gRPC's URI.
        return Address(f"ipv6:[{host.replace('%', '%25')}]:{port}", authority)
    return Address(f"ipv4:{host}:{port}", authority)


def _unix_path(text: str) -> str:
    path = text.removeprefix("unix:")
    if path.startswith("//"):
        path = "/" + path.lstrip("/")
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise ConfigError(f"address {text!r}: write an absolute path, like unix:/run/shoal/a.sock")
    if len(path.encode()) > MAX_UNIX_PATH_BYTES:
        raise ConfigError(
            f"address {text!r}: the path has {len(path.encode())} bytes, more than the {MAX_UNIX_PATH_BYTES} "
            "that a unix socket can have: use a shorter directory"
        )
    return path
