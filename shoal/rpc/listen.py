"""Taking an address for a gRPC server, or saying exactly why not. Called by `shoal.rpc.server`.

gRPC reports every failure to bind alike, and takes a unix socket away from a live server; so the address is
looked at first.
"""

from __future__ import annotations

import errno
import os
import socket
import stat

import grpc

from shoal.errors import AddressInUseError, ConfigError
from shoal.rpc.addresses import Endpoint


def take_address(
    server: grpc.aio.Server, endpoint: Endpoint, credentials: grpc.ServerCredentials | None
) -> Endpoint:
    """Bind `server` and return where it listens. Raises AddressInUseError or ConfigError."""
    if endpoint.path:
        _take_unix(server, endpoint)
        return endpoint
    _check_port(endpoint)
    try:
        if credentials is None:
            port = server.add_insecure_port(str(endpoint))
        else:
            port = server.add_secure_port(str(endpoint), credentials)
    except RuntimeError:
        raise _in_use(endpoint) from None
    return Endpoint(host=endpoint.host, port=port)


def _take_unix(server: grpc.aio.Server, endpoint: Endpoint) -> None:
    path = endpoint.path
    _remove_stale_socket(endpoint)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the directory of {endpoint}: {error.strerror}") from None
    if not os.access(os.path.dirname(path), os.W_OK | os.X_OK):
        raise ConfigError(f"cannot listen on {endpoint}: the directory is not writable")
    # The file must not be open to others even for the moment between bind and chmod.
    umask = os.umask(0o177)
    try:
        server.add_insecure_port(str(endpoint))
    except RuntimeError:
        raise _in_use(endpoint) from None
    finally:
        os.umask(umask)


def _remove_stale_socket(endpoint: Endpoint) -> None:
    """Delete the file that a killed server left; refuse if a live one answers or if it is no socket."""
    path = endpoint.path
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot listen on {endpoint}: {error.strerror}") from None
    if not stat.S_ISSOCK(mode):
        raise ConfigError(f"cannot listen on {endpoint}: a file that is no socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A live server with a full backlog makes a non-blocking connect fail with EAGAIN: it is alive.
        probe.setblocking(False)
        failure = probe.connect_ex(path)
    if failure == errno.ENOENT:
        return
    if failure != errno.ECONNREFUSED:
        raise _in_use(endpoint)
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot replace the stale socket {endpoint}: {error.strerror}") from None


def _check_port(endpoint: Endpoint) -> None:
    """Bind for a moment, as gRPC will, to learn the reason if it cannot be done."""
    try:
        found = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ConfigError(f"cannot listen on {endpoint}: {error.strerror}") from None
    reasons: list[str] = []
    for family, kind, protocol, _, sockaddr in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(sockaddr)
        except OSError as error:
            # gRPC is content with one address of a name; half a bind would hide the other server.
            if error.errno == errno.EADDRINUSE:
                raise _in_use(endpoint) from None
            reasons.append(error.strerror or str(error))
    if len(reasons) == len(found):
        raise ConfigError(f"cannot listen on {endpoint}: {reasons[0]}")


def _in_use(endpoint: Endpoint) -> AddressInUseError:
    return AddressInUseError(
        f"address {endpoint} is in use by another program: stop it or choose another address"
    )
