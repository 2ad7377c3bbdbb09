"""Taking addresses: ports and unix sockets that are taken, stale, unusable or open to the network."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from shoal.config.connections import LimitsSection, SecuritySection
from shoal.errors import AddressInUseError, ConfigError, UserError
from shoal.rpc.server import RpcServer
from tests.service.certs import make_authority
from tests.service.rpc_echo import (
    OPEN,
    RPC,
    SERVING,
    Echo,
    dialled,
    health_of,
    make_server,
    method,
    running_server,
)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _refused(server: RpcServer) -> UserError:
    with pytest.raises(UserError) as raised:
        await server.start()
    return raised.value


def _unix_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_taken_port_is_named(host: str) -> None:
    async def run() -> None:
        async with running_server(Echo()) as first:
            port = first.address.rpartition(":")[2]
            error = await _refused(make_server(Echo(), f"{host}:{port}"))
            assert isinstance(error, AddressInUseError)
            assert f"{host}:{port}" in str(error)

    asyncio.run(run())


def test_a_taken_health_port_releases_the_main_one() -> None:
    async def run() -> None:
        port = _free_port()
        async with running_server(Echo()) as first:
            server = RpcServer(f"127.0.0.1:{port}", first.address, OPEN, LimitsSection(), RPC)
            assert isinstance(await _refused(server), AddressInUseError)
            async with (
                running_server(Echo(), f"127.0.0.1:{port}") as second,
                dialled(second.address) as channel,
            ):
                assert await method(channel, "Unary")(b"x") == b"x"

    asyncio.run(run())


def test_a_port_of_a_socket_that_is_no_grpc_server_counts_as_taken() -> None:
    async def run(address: str) -> None:
        assert isinstance(await _refused(make_server(Echo(), address)), AddressInUseError)

    with socket.create_server(("127.0.0.1", 0)) as other:
        asyncio.run(run(f"127.0.0.1:{other.getsockname()[1]}"))


def test_an_address_of_another_machine_is_a_config_error() -> None:
    security = SecuritySection(token=SecretStr("t"))
    for address in ("192.0.2.1:50051", "no-such-host.invalid:50051"):
        error = asyncio.run(_refused(make_server(Echo(), address, security)))
        assert isinstance(error, ConfigError)
        assert address in str(error)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "some-host:0"])
def test_an_open_address_needs_a_token_or_mutual_tls(tmp_path: Path, address: str) -> None:
    tls = make_authority(tmp_path, "run").issue("server")
    for security in (OPEN, SecuritySection(tls=tls.model_copy(update={"ca": None}))):
        error = asyncio.run(_refused(make_server(Echo(), address, security)))
        assert isinstance(error, ConfigError)
        assert address in str(error)
        assert "security.token" in str(error)


def test_an_open_address_with_a_token_or_mutual_tls_is_fine(tmp_path: Path) -> None:
    async def run(security: SecuritySection) -> None:
        async with running_server(Echo(), "0.0.0.0:0", security) as server:
            assert not server.address.endswith(":0")

    asyncio.run(run(SecuritySection(token=SecretStr("t"))))
    asyncio.run(run(SecuritySection(tls=make_authority(tmp_path, "run").issue("server"))))


def test_a_unix_socket_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    path, health = tmp_path / "new" / "a.sock", tmp_path / "new" / "h.sock"

    async def run() -> None:
        server = RpcServer(f"unix:{path}", f"unix:{health}", OPEN, LimitsSection(), RPC)
        await server.start()
        assert (server.address, server.health_address) == (f"unix:{path}", f"unix:{health}")
        assert (_unix_mode(path), _unix_mode(health), _unix_mode(path.parent)) == (0o600, 0o600, 0o700)
        assert await health_of(server.health_address) == SERVING
        await server.drain(0)

    umask = os.umask(0)
    try:
        asyncio.run(run())
        assert os.umask(0) == 0
    finally:
        os.umask(umask)
    assert list(path.parent.iterdir()) == []


def test_a_unix_socket_of_a_live_server_is_left_alone(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/a.sock"

    async def run() -> None:
        async with running_server(Echo(), address) as first:
            error = await _refused(make_server(Echo(), address))
            assert isinstance(error, AddressInUseError)
            assert address in str(error)
            async with dialled(first.address) as channel:
                assert await method(channel, "Unary")(b"x") == b"x"

    asyncio.run(run())


def test_a_stale_unix_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    # A process that binds and dies without a chance to clean up.
    code = f"import os, socket; socket.socket(socket.AF_UNIX).bind({str(path)!r}); os._exit(1)"
    subprocess.run([sys.executable, "-c", code], check=False, timeout=30)
    assert stat.S_ISSOCK(path.stat().st_mode)

    async def run() -> None:
        async with running_server(Echo(), f"unix:{path}") as server, dialled(server.address) as channel:
            assert await method(channel, "Unary")(b"x") == b"x"

    asyncio.run(run())


def test_a_file_in_the_place_of_a_unix_socket_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    path.write_text("precious")
    error = asyncio.run(_refused(make_server(Echo(), f"unix:{path}")))
    assert isinstance(error, ConfigError)
    assert path.read_text() == "precious"


def test_a_unix_socket_below_a_file_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = asyncio.run(_refused(make_server(Echo(), f"unix:{tmp_path}/file/a.sock")))
    assert isinstance(error, ConfigError)
