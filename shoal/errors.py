"""The tree of errors that shoal raises on purpose.

An error's text says what happened, the value received, the limit and what to do. A `UserError` ends
a program with one line and exit code 2; any other error that reaches the top is a bug and
ends it with a traceback and exit code 1. `shoal.rpc.status` maps these to gRPC status codes and back.
"""

from __future__ import annotations

# What whoever uses a stream that is over is told, by clients and servers.
STREAM_ENDED = "the stream has ended: open a new one"


class ShoalError(Exception):
    """Base of every error raised on purpose."""


class UserError(ShoalError):
    """The user's to mend: configuration, environment, files, credentials. Never retried."""


class ConfigError(UserError):
    """A configuration that cannot be used."""


class AddressInUseError(UserError):
    """Another program listens on the address."""


class CheckpointError(UserError):
    """A checkpoint that is corrupt or belongs to another run."""


class InvalidArgumentError(UserError):
    """A malformed message: the peer sent what the protocol does not allow."""


class LimitError(InvalidArgumentError):
    """A message or tensor larger than the receiver's limits."""


class SpecMismatchError(UserError):
    """Two parts of a run describe the environment differently."""


class ProtocolVersionError(UserError):
    """The two ends speak different versions of the protocol."""


class NotFoundError(UserError):
    """A named thing, such as a table, does not exist."""


class FailedPreconditionError(UserError):
    """The operation makes no sense for the thing it was asked of."""


class ResourceExhaustedError(UserError):
    """More was asked than the configuration allows."""


class UnauthenticatedError(UserError):
    """The token or certificate is missing or wrong."""


class UnavailableError(ShoalError):
    """The peer is away or draining. Retry, there or at a replica."""


class StreamEndedError(UnavailableError):
    """A write found that the peer had ended the stream; why is not known."""


class NonFiniteError(UserError):
    """NaN or infinity in losses, gradients or weights: training cannot go on."""


def fresh(error: BaseException) -> BaseException:
    """Of one that is raised to every caller: it would keep the frames of all calls, and what they hold."""
    return error.with_traceback(None)
