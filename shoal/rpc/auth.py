"""Who may call: the shared token and TLS.

Servers check the token in `TokenInterceptor`, in constant time and before anything is decoded. Clients get it
from `TokenSource.metadata`. TLS files become gRPC credentials here. Runs on the event loop; reads small
local files inline.
"""

from __future__ import annotations

import hmac
import logging
import os
import ssl
from pathlib import Path
from typing import Any

import grpc

from shoal.config.connections import SecuritySection, TlsSection
from shoal.errors import ConfigError, UnauthenticatedError
from shoal.rpc.status import abort

log = logging.getLogger(__name__)

TOKEN_KEY = "authorization"
_SCHEME = "Bearer "


class TokenSource:
    """The run's token, from the configuration or from a file that may change while we run.

    A file may hold several tokens, a line each: the first is sent, every one is accepted. So a token is
    rotated without a refused call: add the new one below, then move it to the top, then drop the old one.
    """

    def __init__(self, security: SecuritySection) -> None:
        """Raises ConfigError for a token or file that cannot be used."""
        self._path = security.token_file
        self._stamp: tuple[int, ...] = ()
        self._tokens: tuple[str, ...] = ()
        self._complaint = ""
        if security.token is not None:
            self._tokens = (_checked(security.token.get_secret_value(), "security.token"),)
        elif self._path is not None:
            self._stamp, self._tokens = _read(self._path)

    @property
    def is_set(self) -> bool:
        return bool(self._tokens)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a client sends with every call."""
        tokens = self._current()
        return ((TOKEN_KEY, _SCHEME + tokens[0]),) if tokens else ()

    def accepts(self, value: str | bytes) -> bool:
        """Whether an `authorization` value is right; takes the same time for every wrong one of a length."""
        given = value if isinstance(value, bytes) else value.encode()
        matches = [hmac.compare_digest(given, (_SCHEME + token).encode()) for token in self._current()]
        return any(matches)

    def _current(self) -> tuple[str, ...]:
        if self._path is not None:
            try:
                if _stamp(self._path) != self._stamp:
                    self._stamp, self._tokens = _read(self._path)
                    log.info("read the token again: %s has changed", self._path)
                self._complaint = ""
            except (OSError, ConfigError) as error:
                # A file caught in the middle of a rotation: the tokens that we have still hold.
                if str(error) != self._complaint:
                    log.warning("cannot read the token again, keeping the last one: %s", error)
                self._complaint = str(error)
        return self._tokens


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without the right token. Goes first, so that nothing else sees them."""

    def __init__(self, tokens: TokenSource) -> None:
        self._tokens = tokens

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        given = [value for key, value in handler_call_details.invocation_metadata or () if key == TOKEN_KEY]
        if len(given) == 1 and self._tokens.accepts(given[0]):
            return await continuation(handler_call_details)
        return _REFUSE_WRONG if given else _REFUSE_MISSING


def _refusal(text: str) -> grpc.RpcMethodHandler[Any, Any]:
    """A method that never reads: the request's bytes stay undecoded, whatever kind of call it is."""

    async def refuse(_requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await abort(context, UnauthenticatedError(text))

    return grpc.stream_stream_rpc_method_handler(refuse)


_REFUSE_MISSING = _refusal("no token in the call: set security.token or security.token_file to the server's")
_REFUSE_WRONG = _refusal("wrong token: set security.token or security.token_file to the server's")


def server_credentials(security: SecuritySection) -> grpc.ServerCredentials | None:
    """TLS of a server, with client certificates required if a CA is set; None is plaintext."""
    tls = security.tls
    if tls.cert is None or tls.key is None:
        if tls.ca is not None:
            raise ConfigError("security.tls.ca is set but a server needs security.tls.cert and key too")
        return None
    _check_files(tls)
    return grpc.ssl_server_credentials(
        [(tls.key.read_bytes(), tls.cert.read_bytes())],
        root_certificates=tls.ca.read_bytes() if tls.ca else None,
        require_client_auth=tls.ca is not None,
    )


def channel_credentials(security: SecuritySection) -> grpc.ChannelCredentials | None:
    """TLS of a client; None is plaintext. Without a CA the system's are used."""
    tls = security.tls
    if tls.ca is None and tls.cert is None:
        return None
    _check_files(tls)
    return grpc.ssl_channel_credentials(
        root_certificates=tls.ca.read_bytes() if tls.ca else None,
        private_key=tls.key.read_bytes() if tls.key else None,
        certificate_chain=tls.cert.read_bytes() if tls.cert else None,
    )


def is_mutual_tls(security: SecuritySection) -> bool:
    return None not in (security.tls.cert, security.tls.key, security.tls.ca)


def _check_files(tls: TlsSection) -> None:
    """gRPC says nothing useful about bad files: let OpenSSL look at them first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name, path in (("cert", tls.cert), ("key", tls.key), ("ca", tls.ca)):
        if path is not None:
            try:
                path.read_bytes()
            except OSError as error:
                raise ConfigError(f"cannot read security.tls.{name} {path}: {error.strerror}") from None
    try:
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except ssl.SSLError as error:
        raise ConfigError(
            f"security.tls.cert {tls.cert} and key {tls.key} cannot be used: {error.reason or error}"
        ) from None
    try:
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
    except ssl.SSLError as error:
        raise ConfigError(f"security.tls.ca {tls.ca} cannot be used: {error.reason or error}") from None


def _read(path: Path) -> tuple[tuple[int, ...], tuple[str, ...]]:
    try:
        stamp = _stamp(path)
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read security.token_file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"security.token_file {path}: a token must be printable ASCII") from None
    tokens = tuple(line.strip() for line in lines if line.strip())
    if not tokens:
        raise ConfigError(f"security.token_file {path} is empty: write the token into it")
    return stamp, tuple(_checked(token, f"security.token_file {path}") for token in tokens)


def _stamp(path: Path) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _checked(token: str, where: str) -> str:
    # Header values carry nothing else; and the text of the error must not show the secret.
    if not token or not all("!" <= char <= "~" for char in token):
        raise ConfigError(f"{where}: a token must be printable ASCII without spaces, and not empty")
    return token
