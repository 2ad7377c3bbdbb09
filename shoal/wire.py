"""Records to protocol buffers and back. The only place that knows both.

Used by servicers and gRPC clients. Everything that comes off a socket passes through here and is checked:
what cannot be trusted raises InvalidArgumentError or LimitError.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from google.protobuf.message import DecodeError

from shoal import codec
from shoal.config.tree import LimitsSection
from shoal.errors import InvalidArgumentError, LimitError, ProtocolVersionError
from shoal.records import (
    FIRST,
    PROTOCOL_VERSION,
    ActionSpec,
    ArraySpec,
    BoxAction,
    Columns,
    DiscreteAction,
    EnvSpec,
    Episode,
    Trajectory,
)
from shoal.v1 import spec_pb2, tensor_pb2, trajectory_pb2

_DTYPE_TO_PROTO = {name: tensor_pb2.DType.Value(f"DTYPE_{name.upper()}") for name in codec.DTYPES}
_DTYPE_FROM_PROTO = {number: name for name, number in _DTYPE_TO_PROTO.items()}
_CODEC_TO_PROTO = {c: tensor_pb2.Codec.Value(f"CODEC_{c.name}") for c in codec.Codec}
_CODEC_FROM_PROTO = {number: c for c, number in _CODEC_TO_PROTO.items()}


def check_protocol_version(version: int) -> None:
    if version != PROTOCOL_VERSION:
        raise ProtocolVersionError(
            f"peer speaks protocol version {version}, this service speaks {PROTOCOL_VERSION}: "
            "run the same release"
        )


def tensor_to_proto(array: np.ndarray, *, compress: bool) -> tensor_pb2.Tensor:
    encoded = codec.encode(array, compress=compress)
    return tensor_pb2.Tensor(
        dtype=_DTYPE_TO_PROTO[encoded.dtype],  # type: ignore[arg-type]
        shape=encoded.shape,
        codec=_CODEC_TO_PROTO[encoded.codec],  # type: ignore[arg-type]
        raw_bytes=encoded.raw_bytes,
        crc32c=encoded.crc32c,
        data=encoded.data,
    )


def tensor_from_proto(message: tensor_pb2.Tensor, max_bytes: int) -> np.ndarray:
    return codec.decode(
        codec.Encoded(
            dtype=_dtype_name(message.dtype),
            shape=tuple(message.shape),
            codec=_codec_of(message.codec),
            raw_bytes=message.raw_bytes,
            crc32c=message.crc32c,
            data=message.data,
        ),
        max_bytes,
    )


def columns_to_proto(columns: Columns, *, compress: bool) -> list[tensor_pb2.NamedTensor]:
    return [
        tensor_pb2.NamedTensor(name=name, tensor=tensor_to_proto(array, compress=compress))
        for name, array in columns.items()
    ]


def columns_from_proto(messages: Iterable[tensor_pb2.NamedTensor], max_bytes: int) -> Columns:
    columns: Columns = {}
    for message in messages:
        if message.name in columns:
            raise InvalidArgumentError(f"column {message.name!r} appears twice")
        columns[message.name] = tensor_from_proto(message.tensor, max_bytes)
    return columns


def encode_trajectory(trajectory: Trajectory) -> bytes:
    """The bytes that travel to the replay, are stored there and reach the learner unchanged."""
    message = trajectory_pb2.Trajectory(
        columns=columns_to_proto(trajectory.columns, compress=True),
        episodes=[
            trajectory_pb2.Episode(episode_return=e.episode_return, num_steps=e.num_steps)
            for e in trajectory.episodes
        ],
    )
    return message.SerializeToString()


def decode_trajectory(payload: bytes, limits: LimitsSection) -> Trajectory:
    """Parse and check a trajectory completely: sizes first, then CRCs, contents and shapes."""
    message = trajectory_pb2.Trajectory()
    try:
        message.ParseFromString(payload)
    except DecodeError:
        raise InvalidArgumentError("payload is no Trajectory message") from None
    _check_total_size(message.columns, limits)
    columns = columns_from_proto(message.columns, limits.max_tensor_bytes)
    _check_leading_axes(columns)
    episodes = tuple(Episode(e.episode_return, e.num_steps) for e in message.episodes)
    return Trajectory(columns, episodes)


def spec_to_proto(spec: EnvSpec) -> spec_pb2.EnvSpec:
    action = spec_pb2.ActionSpec()
    if isinstance(spec.action, DiscreteAction):
        action.discrete.n = spec.action.n
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
    return spec_pb2.ArraySpec(
        name=spec.name,
        dtype=_DTYPE_TO_PROTO[spec.dtype],  # type: ignore[arg-type]
        shape=spec.shape,
        num_categories=spec.num_categories,
    )


def array_spec_from_proto(message: spec_pb2.ArraySpec) -> ArraySpec:
    if message.num_categories < 0:
        raise InvalidArgumentError(f"{message.name} has {message.num_categories} categories")
    shape = _checked_shape(message.shape)
    return ArraySpec(message.name, _dtype_name(message.dtype), shape, message.num_categories)


def _action_from_proto(message: spec_pb2.ActionSpec) -> ActionSpec:
    kind = message.WhichOneof("kind")
    if kind == "discrete":
        if message.discrete.n < 1:
            raise InvalidArgumentError(f"discrete action with n={message.discrete.n}: at least 1 is needed")
        return DiscreteAction(message.discrete.n)
    if kind == "box":
        shape = _checked_shape(message.box.shape)
        low, high = tuple(message.box.low), tuple(message.box.high)
        if not len(low) == len(high) == int(np.prod(shape, dtype=np.int64)):
            raise InvalidArgumentError(
                f"box action {list(shape)} has {len(low)} low and {len(high)} high bounds"
            )
        return BoxAction(shape, low, high)
    raise InvalidArgumentError("env spec has no action")


def _checked_shape(dims: Sequence[int]) -> tuple[int, ...]:
    shape = tuple(dims)
    if len(shape) > codec.MAX_RANK or any(not 0 <= dim < 1 << 31 for dim in shape):
        raise InvalidArgumentError(f"shape {list(shape)[: codec.MAX_RANK]} is out of bounds")
    return shape


def _check_total_size(columns: Iterable[tensor_pb2.NamedTensor], limits: LimitsSection) -> None:
    total = sum(
        codec.raw_nbytes(_dtype_name(c.tensor.dtype), tuple(c.tensor.shape), limits.max_tensor_bytes)
        for c in columns
    )
    if total > limits.max_trajectory_bytes:
        raise LimitError(
            f"trajectory of {total} bytes is above the limit of {limits.max_trajectory_bytes} bytes "
            "(limits.max_trajectory_bytes)"
        )


def _check_leading_axes(columns: Columns) -> None:
    if FIRST not in columns:
        raise InvalidArgumentError(f"trajectory has no column {FIRST!r}, only {sorted(columns)}")
    leading = columns[FIRST].shape
    if len(leading) != 2 or leading[0] < 2 or leading[1] < 1 or columns[FIRST].dtype != np.bool_:
        raise InvalidArgumentError(
            f"column {FIRST!r} is {columns[FIRST].dtype}{list(leading)} "
            "instead of bool[T+1, E] with T, E >= 1"
        )
    for name, array in columns.items():
        if array.shape[:2] != leading:
            raise InvalidArgumentError(
                f"column {name!r} has shape {list(array.shape)}, others start with {list(leading)}"
            )


def _dtype_name(number: int) -> str:
    try:
        return _DTYPE_FROM_PROTO[number]
    except KeyError:
        raise InvalidArgumentError(f"unknown tensor dtype {number}") from None


def _codec_of(number: int) -> codec.Codec:
    try:
        return _CODEC_FROM_PROTO[number]
    except KeyError:
        raise InvalidArgumentError(f"unknown tensor codec {number}") from None
