"""TLS and mutual TLS between a real server and real channels."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from shoal.config.connections import SecuritySection, TlsSection
from shoal.errors import UnavailableError
from shoal.rpc.addresses import Address
from shoal.rpc.channel import open_channel
from shoal.rpc.status import from_rpc_error
from tests.service.certs import Authority, make_authority
from tests.service.rpc_echo import LIMITS, RPC, Echo, dialled, method, running_server


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return make_authority(tmp_path, "run")


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return make_authority(tmp_path, "stranger")


async def _call(server: TlsSection, client: TlsSection, name: str | None = None) -> bytes:
    """One call to a server at 127.0.0.1, whose certificate must carry `name` (or the address itself)."""
    async with running_server(Echo(), security=SecuritySection(tls=server)) as running:
        address = Address(f"ipv4:{running.address}", name)
        channel = open_channel(address, SecuritySection(tls=client), LIMITS, RPC)
        try:
            reply: bytes = await method(channel, "Unary")(b"x", timeout=20)
            return reply
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        finally:
            await channel.close()


def _refused(server: TlsSection, client: TlsSection, name: str | None = None) -> None:
    with pytest.raises(UnavailableError):
        asyncio.run(_call(server, client, name))


def test_mutual_tls_by_name_and_by_address(authority: Authority) -> None:
    server, client = authority.issue("server", "replay.svc", "127.0.0.1"), authority.issue("client")
    assert asyncio.run(_call(server, client, "replay.svc")) == b"x"
    assert asyncio.run(_call(server, client)) == b"x"


def test_a_name_that_resolves_to_numbers_is_checked_as_a_name(authority: Authority) -> None:
    async def run() -> None:
        security = SecuritySection(tls=authority.issue("server", "localhost"))
        async with running_server(Echo(), security=security) as server:
            port = server.address.rpartition(":")[2]
            async with dialled(f"localhost:{port}", security) as channel:
                assert await method(channel, "Unary")(b"x") == b"x"

    asyncio.run(run())


def test_tls_without_client_certificates(authority: Authority) -> None:
    server = authority.issue("server", "a").model_copy(update={"ca": None})
    assert asyncio.run(_call(server, TlsSection(ca=authority.ca), "a")) == b"x"


def test_a_client_without_a_certificate_is_refused(authority: Authority) -> None:
    _refused(authority.issue("server", "a"), TlsSection(ca=authority.ca), "a")


def test_a_client_of_another_authority_is_refused(authority: Authority, stranger: Authority) -> None:
    _refused(authority.issue("server", "a"), stranger.issue("client", ca=authority.ca), "a")


def test_a_server_of_another_authority_is_refused(authority: Authority, stranger: Authority) -> None:
    _refused(stranger.issue("server", "a", ca=authority.ca), authority.issue("client"), "a")


def test_a_server_with_another_name_is_refused(authority: Authority) -> None:
    _refused(authority.issue("server", "a"), authority.issue("client"), "b")
    _refused(authority.issue("server", "a"), authority.issue("client"))


@pytest.mark.parametrize("expired", ["server", "client"])
def test_an_expired_certificate_is_refused(authority: Authority, expired: str) -> None:
    server = authority.issue("server", "a", expired=expired == "server")
    client = authority.issue("client", expired=expired == "client")
    _refused(server, client, "a")


def test_a_plaintext_client_is_refused(authority: Authority) -> None:
    _refused(authority.issue("server", "a"), TlsSection(), "a")


def test_unix_sockets_stay_plain(authority: Authority, tmp_path: Path) -> None:
    async def run() -> None:
        security = SecuritySection(tls=authority.issue("server"))
        async with (
            running_server(Echo(), f"unix:{tmp_path}/a.sock", security) as server,
            dialled(server.address, security) as channel,
        ):
            assert await method(channel, "Unary")(b"x") == b"x"

    asyncio.run(run())
