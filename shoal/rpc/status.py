"""Errors as gRPC status and back: the one place where exceptions meet status codes.

Servers: `StatusInterceptor` wraps each method once, when it is first called; messages on a stream cost
nothing extra. The name of the error's class travels in the trailing metadata `shoal-error`. Clients:
`from_rpc_error`. Everything runs on the event loop.
Handlers are coroutines (`await context.read()`, `await context.write()`), never generators.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from shoal import errors
from shoal.errors import (
    STREAM_ENDED,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ProtocolVersionError,
    ResourceExhaustedError,
    ShoalError,
    StreamEndedError,
    UnauthenticatedError,
    UnavailableError,
    UserError,
)

ERROR_KEY = "shoal-error"

# Trailers have a size limit (8 KiB by default): a longer text would break the reply itself. Characters beyond
# ASCII, at up to four bytes, and control characters travel as three characters per byte.
MAX_ASCII_DETAILS = 2000
MAX_OTHER_DETAILS = 500

# What gRPC puts over the server's own status, for good, when a write finds that the stream has just ended.
_WRITE_FAILED = "Internal error from Core"

# Writes that cross a refusal are rare: one of three openings shows the reason.
_OPENINGS = 3

log = logging.getLogger(__name__)

StreamT = TypeVar("StreamT")
Behavior = Callable[[Any, Any], Awaitable[Any]]

# A class not listed has the code of its nearest listed base.
_CODES: dict[type[ShoalError], grpc.StatusCode] = {
    ShoalError: grpc.StatusCode.INTERNAL,
    UserError: grpc.StatusCode.FAILED_PRECONDITION,
    InvalidArgumentError: grpc.StatusCode.INVALID_ARGUMENT,
    NotFoundError: grpc.StatusCode.NOT_FOUND,
    ResourceExhaustedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    UnavailableError: grpc.StatusCode.UNAVAILABLE,
}

# What a status without a class name means: it was made by gRPC itself or by another program.
# Codes not listed mean that the call may succeed later or elsewhere.
_CLASSES: dict[grpc.StatusCode, type[ShoalError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidArgumentError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    grpc.StatusCode.ALREADY_EXISTS: FailedPreconditionError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: UnauthenticatedError,
    grpc.StatusCode.UNIMPLEMENTED: ProtocolVersionError,
}

_BY_NAME: dict[str, type[ShoalError]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, ShoalError)
}


def to_status(error: ShoalError) -> grpc.StatusCode:
    """The status code of an error."""
    return _code_of(type(error))


def from_rpc_error(error: grpc.RpcError) -> ShoalError:
    """The error that a failed call stands for: the server's own class if it named one."""
    call: Any = error
    code: grpc.StatusCode = call.code()
    details = call.details() or "no details"
    if code is grpc.StatusCode.INTERNAL and details == _WRITE_FAILED:
        return StreamEndedError(STREAM_ENDED)
    named = _BY_NAME.get(_error_name(call.trailing_metadata()))
    # The name comes off the network: it counts only if it fits the code.
    if named is not None and _code_of(named) is code:
        return named(details)
    found = _CLASSES.get(code, UnavailableError)
    return found(f"{details} ({code.name})")


async def opened(open_stream: Callable[[], Awaitable[StreamT]]) -> StreamT:
    """A stream whose hello is written: tried again at once while gRPC hides why the server refuses it."""
    for _ in range(_OPENINGS - 1):
        with contextlib.suppress(StreamEndedError):
            return await open_stream()
    return await open_stream()


def wrap_handler(
    handler: grpc.RpcMethodHandler[Any, Any], around: Callable[[Behavior], Behavior]
) -> grpc.RpcMethodHandler[Any, Any]:
    """The same method with `around` applied to its coroutine."""
    method: Any = handler
    kind = ("stream" if method.request_streaming else "unary") + (
        "_stream" if method.response_streaming else "_unary"
    )
    behavior = getattr(method, kind)
    if not inspect.iscoroutinefunction(behavior):
        raise TypeError(f"{behavior} must be a coroutine function, not a generator or a plain function")
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    made: grpc.RpcMethodHandler[Any, Any] = make(
        around(behavior), method.request_deserializer, method.response_serializer
    )
    return made


class HandlerInterceptor(grpc.aio.ServerInterceptor):
    """Base of interceptors that wrap each method once, when it is first called."""

    def __init__(self) -> None:
        self._wrapped: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        method = handler_call_details.method
        known = self._wrapped.get(method)
        if known is not None:
            return known
        handler = await continuation(handler_call_details)
        # None is an unknown method: never remembered, or callers could fill the memory with names.
        if handler is None:
            return None
        return self._wrapped.setdefault(method, self.wrap(handler, method))

    @abstractmethod
    def wrap(self, handler: Any, method: str) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler to use instead."""


class StatusInterceptor(HandlerInterceptor):
    """Ends calls that raise with the status of the error."""

    def wrap(self, handler: Any, method: str) -> grpc.RpcMethodHandler[Any, Any]:
        decode: Callable[[bytes], Any] | None = None
        if not handler.request_streaming:
            # gRPC would decode before the handler runs, where a malformed message is a traceback.
            decode = handler.request_deserializer
            handler = handler._replace(request_deserializer=None)

        def around(behavior: Behavior) -> Behavior:
            async def run(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
                try:
                    return await behavior(decode(request) if decode is not None else request, context)
                except ShoalError as error:
                    await abort(context, error)
                except DecodeError:
                    text = f"{method}: the message is no valid protocol buffer"
                    await abort(context, InvalidArgumentError(text))
                except grpc.aio.AbortError:
                    raise
                except Exception as error:
                    if isinstance(error, grpc.aio.BaseError) and not isinstance(error, grpc.aio.UsageError):
                        # A read or write on a call whose client is gone, or on a stopped server.
                        raise asyncio.CancelledError from None
                    # The peer learns nothing of our insides; the log has it all.
                    log.exception("%s failed unexpectedly", method)
                    await _end(context, grpc.StatusCode.INTERNAL, "internal error, see the server's log")

            return run

        return wrap_handler(handler, around)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: ShoalError) -> None:
    """End the call with the error's status. Raises, as `context.abort` does."""
    text = str(error)
    limit = MAX_ASCII_DETAILS if text.isascii() else MAX_OTHER_DETAILS
    shown = text if len(text) <= limit else text[: limit - 3] + "..."
    await _end(context, to_status(error), shown, (ERROR_KEY, type(error).__name__))


async def _end(context: Any, code: grpc.StatusCode, details: str, *metadata: tuple[str, str]) -> None:
    try:
        await context.abort(code, details, metadata)
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError:
        # Cut in the middle of a write, after which gRPC takes no status, or the client is gone.
        raise asyncio.CancelledError from None


def _code_of(cls: type[ShoalError]) -> grpc.StatusCode:
    return next(_CODES[base] for base in cls.__mro__ if base in _CODES)


def _error_name(metadata: Any) -> str:
    for key, value in metadata or ():
        if key == ERROR_KEY and isinstance(value, str):
            return value
    return ""
