"""Errors to status and back, without a network."""

from __future__ import annotations

import asyncio
import inspect

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from shoal import errors
from shoal.errors import (
    STREAM_ENDED,
    ShoalError,
    StreamEndedError,
    UnauthenticatedError,
    UnavailableError,
    UserError,
)
from shoal.rpc.status import ERROR_KEY, from_rpc_error, opened, to_status, wrap_handler

CLASSES = [
    value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, ShoalError)
]


def _rpc_error(
    code: grpc.StatusCode, details: str | None = "text", *metadata: tuple[str, str]
) -> AioRpcError:
    return AioRpcError(code, Metadata(), Metadata(*metadata), details)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_round_trips(cls: type[ShoalError]) -> None:
    back = from_rpc_error(_rpc_error(to_status(cls("text")), "text", (ERROR_KEY, cls.__name__)))
    assert type(back) is cls
    assert str(back) == "text"


@pytest.mark.parametrize(
    ("cls", "code"),
    [
        (errors.InvalidArgumentError, grpc.StatusCode.INVALID_ARGUMENT),
        (errors.LimitError, grpc.StatusCode.INVALID_ARGUMENT),
        (errors.SpecMismatchError, grpc.StatusCode.FAILED_PRECONDITION),
        (errors.ProtocolVersionError, grpc.StatusCode.FAILED_PRECONDITION),
        (errors.FailedPreconditionError, grpc.StatusCode.FAILED_PRECONDITION),
        (errors.NotFoundError, grpc.StatusCode.NOT_FOUND),
        (errors.ResourceExhaustedError, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
        (errors.UnavailableError, grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_the_codes_that_the_protocol_promises(cls: type[ShoalError], code: grpc.StatusCode) -> None:
    assert to_status(cls("text")) is code


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_a_status_of_another_program_becomes_a_user_error_or_unavailable(code: grpc.StatusCode) -> None:
    back = from_rpc_error(_rpc_error(code))
    assert isinstance(back, UserError | UnavailableError)
    assert code.name in str(back)


@pytest.mark.parametrize("name", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN", "INTERNAL"])
def test_what_may_pass_is_unavailable(name: str) -> None:
    assert type(from_rpc_error(_rpc_error(grpc.StatusCode[name]))) is UnavailableError


def test_a_write_that_crosses_the_end_of_the_stream_has_a_class_of_its_own() -> None:
    back = from_rpc_error(_rpc_error(grpc.StatusCode.INTERNAL, "Internal error from Core"))
    assert type(back) is StreamEndedError
    assert str(back) == STREAM_ENDED


@pytest.mark.parametrize(
    ("hidden", "outcome"), [(0, UnauthenticatedError), (2, UnauthenticatedError), (3, StreamEndedError)]
)
def test_a_hidden_reason_is_asked_for_again_but_not_for_ever(hidden: int, outcome: type[Exception]) -> None:
    calls = 0

    async def open_stream() -> None:
        nonlocal calls
        calls += 1
        raise StreamEndedError(STREAM_ENDED) if calls <= hidden else UnauthenticatedError("wrong token")

    with pytest.raises(outcome):
        asyncio.run(opened(open_stream))
    assert calls == min(hidden + 1, 3)


@pytest.mark.parametrize("name", ["SpecMismatchError", "SystemExit", "log", "UserError\n"])
def test_a_name_that_does_not_fit_the_code_or_is_none_of_ours_is_ignored(name: str) -> None:
    back = from_rpc_error(_rpc_error(grpc.StatusCode.UNAVAILABLE, "text", (ERROR_KEY, name)))
    assert type(back) is UnavailableError


def test_a_status_without_details() -> None:
    assert "no details" in str(from_rpc_error(_rpc_error(grpc.StatusCode.NOT_FOUND, None)))


def test_generators_cannot_be_wrapped() -> None:
    async def generate(request: object, context: object):  # type: ignore[no-untyped-def]
        yield b""

    with pytest.raises(TypeError, match="coroutine"):
        wrap_handler(grpc.unary_stream_rpc_method_handler(generate), lambda behavior: behavior)
