"""Specs of environments and arrays, and the version of the protocol."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shoal import codec
from shoal.errors import InvalidArgumentError, ProtocolVersionError
from shoal.records import (
    PROTOCOL_VERSION,
    ActionSpec,
    ArraySpec,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    MultiDiscreteAction,
)
from shoal.v1 import spec_pb2
from shoal.wire.tensors import DTYPE_TO_PROTO, dtype_from_proto, shape_from_proto


def check_protocol_version(version: int) -> None:
    if version != PROTOCOL_VERSION:
        raise ProtocolVersionError(
            f"peer speaks protocol version {version}, this service speaks {PROTOCOL_VERSION}: "
            "run the same release"
        )


def spec_to_proto(spec: EnvSpec) -> spec_pb2.EnvSpec:
    action = spec_pb2.ActionSpec()
    if isinstance(spec.action, DiscreteAction):
        action.discrete.n = spec.action.n
    elif isinstance(spec.action, MultiDiscreteAction):
        action.multi_discrete.nvec.extend(spec.action.nvec)
    else:
        action.box.shape.extend(spec.action.shape)
        action.box.low.extend(spec.action.low)
        action.box.high.extend(spec.action.high)
    observation = [array_spec_to_proto(array) for array in spec.observation]
    return spec_pb2.EnvSpec(env_id=spec.env_id, observation=observation, action=action)


def spec_from_proto(message: spec_pb2.EnvSpec) -> EnvSpec:
    if not message.observation:
        raise InvalidArgumentError("env spec has no observation")
    names = [array.name for array in message.observation]
    if len(set(names)) != len(names):
        raise InvalidArgumentError(f"env spec names an observation twice: {names}")
    return EnvSpec(
        env_id=message.env_id,
        observation=tuple(array_spec_from_proto(array) for array in message.observation),
        action=_action_from_proto(message.action),
    )


def array_spec_to_proto(spec: ArraySpec) -> spec_pb2.ArraySpec:
    message = spec_pb2.ArraySpec(
        name=spec.name,
        dtype=DTYPE_TO_PROTO[codec.dtype_of(spec.dtype).name],  # type: ignore[arg-type]
        shape=spec.shape,
        num_categories=spec.num_categories,
    )
    if math.isfinite(spec.low):
        message.low = spec.low
    if math.isfinite(spec.high):
        message.high = spec.high
    return message


def array_spec_from_proto(message: spec_pb2.ArraySpec) -> ArraySpec:
    if message.num_categories < 0:
        raise InvalidArgumentError(f"{message.name} has {message.num_categories} categories")
    shape = _checked_shape(message.shape)
    low = message.low if message.HasField("low") else -math.inf
    high = message.high if message.HasField("high") else math.inf
    try:
        return ArraySpec(
            message.name, dtype_from_proto(message.dtype), shape, message.num_categories, low, high
        )
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None


def _action_from_proto(message: spec_pb2.ActionSpec) -> ActionSpec:
    kind = message.WhichOneof("kind")
    if kind == "discrete":
        if message.discrete.n < 1:
            raise InvalidArgumentError(f"discrete action with n={message.discrete.n}: at least 1 is needed")
        return DiscreteAction(message.discrete.n)
    if kind == "multi_discrete":
        nvec = tuple(message.multi_discrete.nvec)
        if not nvec or min(nvec) < 1:
            raise InvalidArgumentError(f"multi-discrete action {list(nvec)}: every n is at least 1")
        return MultiDiscreteAction(nvec)
    if kind == "box":
        shape = _checked_shape(message.box.shape)
        low, high = tuple(message.box.low), tuple(message.box.high)
        if not len(low) == len(high) == math.prod(shape):
            raise InvalidArgumentError(
                f"box action {list(shape)} has {len(low)} low and {len(high)} high bounds"
            )
        return BoxAction(shape, low, high)
    raise InvalidArgumentError("env spec has no action")


def _checked_shape(dims: Sequence[int]) -> tuple[int, ...]:
    shape = shape_from_proto(dims)
    if any(not 0 <= dim < 1 << 31 for dim in shape):
        raise InvalidArgumentError(f"shape {list(shape)} is out of bounds")
    return shape
