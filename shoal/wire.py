"""Records to protocol buffers and back. The only place that knows both.

Used by servicers and gRPC clients. Everything that comes off a socket passes through here and is checked:
what cannot be trusted raises InvalidArgumentError or LimitError.
"""

from __future__ import annotations

import math
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
# Bytes of a field of 64 or 32 bits, by its wire type.
_FIXED_BYTES = {1: 8, 5: 4}

# An observation has a column per key; what an environment shows beyond that is no sensible dictionary.
MAX_COLUMNS = 256
# Two bytes can be an episode: without a bound a small message would take seconds and gigabytes. As many
# as 8192 environments can end in an unroll of 16 steps, the shortest episode taking two.
MAX_EPISODES = 1 << 16


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
            shape=_tensor_shape(message),
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
        _check_num_fields(payload)
        message.ParseFromString(payload)
    except (DecodeError, IndexError):
        raise InvalidArgumentError("payload is no Trajectory message") from None
    if len(message.columns) > MAX_COLUMNS:
        raise LimitError(f"trajectory has {len(message.columns)} columns: at most {MAX_COLUMNS} are allowed")
    _check_total_size(message.columns, limits)
    columns = columns_from_proto(message.columns, limits.max_tensor_bytes)
    num_rows, num_envs = _check_leading_axes(columns)
    most = (num_rows - 1) * num_envs
    if len(message.episodes) > most:
        raise LimitError(f"trajectory of {most} steps says that {len(message.episodes)} episodes ended in it")
    return Trajectory(columns, tuple(_episode_from_proto(episode) for episode in message.episodes))


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


def _episode_from_proto(message: trajectory_pb2.Episode) -> Episode:
    if not math.isfinite(message.episode_return) or message.num_steps < 1:
        raise InvalidArgumentError(
            f"episode of {message.num_steps} steps with a return of {message.episode_return}: "
            "a finite return and at least one step are needed"
        )
    return Episode(message.episode_return, message.num_steps)


def _action_from_proto(message: spec_pb2.ActionSpec) -> ActionSpec:
    kind = message.WhichOneof("kind")
    if kind == "discrete":
        if message.discrete.n < 1:
            raise InvalidArgumentError(f"discrete action with n={message.discrete.n}: at least 1 is needed")
        return DiscreteAction(message.discrete.n)
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
    shape = tuple(dims)
    if len(shape) > codec.MAX_RANK or any(not 0 <= dim < 1 << 31 for dim in shape):
        raise InvalidArgumentError(f"shape {list(shape)[: codec.MAX_RANK]} is out of bounds")
    return shape


def _tensor_shape(message: tensor_pb2.Tensor) -> tuple[int, ...]:
    # Before there is a tuple of it: a message may name millions of dimensions.
    if len(message.shape) > codec.MAX_RANK:
        raise LimitError(f"tensor of rank {len(message.shape)} is above the limit of {codec.MAX_RANK}")
    return tuple(message.shape)


def _check_num_fields(payload: bytes) -> None:
    """Count the columns and episodes of a serialised trajectory before anything is made of them.

    What is malformed is left to the parser, or raises IndexError.
    """
    at = count = 0
    while at < len(payload):
        count += 1
        if count > MAX_COLUMNS + MAX_EPISODES:
            raise LimitError(
                f"trajectory has more than {MAX_COLUMNS} columns and {MAX_EPISODES} episodes: "
                "send shorter unrolls or smaller groups"
            )
        tag, at = _varint(payload, at)
        kind = tag & 7
        if kind == 0:
            _, at = _varint(payload, at)
        elif kind == 2:
            length, at = _varint(payload, at)
            at += length
        elif kind in _FIXED_BYTES:
            at += _FIXED_BYTES[kind]
        else:
            raise IndexError


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """A number of up to 64 bits, seven to a byte, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise IndexError


def _check_total_size(columns: Iterable[tensor_pb2.NamedTensor], limits: LimitsSection) -> None:
    total = sum(
        codec.raw_nbytes(_dtype_name(c.tensor.dtype), _tensor_shape(c.tensor), limits.max_tensor_bytes)
        for c in columns
    )
    if total > limits.max_trajectory_bytes:
        raise LimitError(
            f"trajectory of {total} bytes is above the limit of {limits.max_trajectory_bytes} bytes "
            "(limits.max_trajectory_bytes)"
        )


def _check_leading_axes(columns: Columns) -> tuple[int, int]:
    """T+1 and E."""
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
    return leading[0], leading[1]


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
