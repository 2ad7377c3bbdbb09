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
    message = tensor_pb2.Tensor()
    _write_tensor(array, message, compress=compress)
    return message


def tensor_from_proto(message: tensor_pb2.Tensor, max_bytes: int) -> np.ndarray:
    return codec.decode(_encoded_of(message), max_bytes)


def columns_to_proto(columns: Columns, *, compress: bool) -> list[tensor_pb2.NamedTensor]:
    message = trajectory_pb2.Trajectory()
    _write_columns(columns, message, compress=compress)
    return list(message.columns)


def columns_from_proto(
    messages: Iterable[tensor_pb2.NamedTensor], max_bytes: int, max_total_bytes: int | None = None
) -> Columns:
    """`max_bytes` bounds each column; nothing is unpacked before all sizes are found to be allowed."""
    packed: dict[str, tuple[codec.Encoded, int]] = {}
    total = 0
    for message in messages:
        name = message.name
        if name in packed:
            raise InvalidArgumentError(f"column {name!r} appears twice")
        encoded = _encoded_of(message.tensor)
        num_bytes = codec.raw_nbytes(encoded.dtype, encoded.shape, max_bytes)
        packed[name] = encoded, num_bytes
        total += num_bytes
    if max_total_bytes is not None and total > max_total_bytes:
        raise LimitError(
            f"trajectory of {total} bytes is above the limit of {max_total_bytes} bytes "
            "(limits.max_trajectory_bytes)"
        )
    return {name: codec.unpack(encoded, num_bytes) for name, (encoded, num_bytes) in packed.items()}


def encode_trajectory(trajectory: Trajectory) -> bytes:
    """The bytes that travel to the replay, are stored there and reach the learner unchanged."""
    message = trajectory_pb2.Trajectory(stream=trajectory.stream, first_step=trajectory.first_step)
    _write_columns(trajectory.columns, message, compress=True)
    for episode in trajectory.episodes:
        message.episodes.add(episode_return=episode.episode_return, num_steps=episode.num_steps)
    return message.SerializeToString()


def decode_trajectory(payload: bytes, limits: LimitsSection) -> Trajectory:
    """Parse and check a trajectory completely: sizes first, then CRCs, contents and shapes."""
    message = _parse(payload)
    columns = columns_from_proto(message.columns, limits.max_tensor_bytes, limits.max_trajectory_bytes)
    num_rows, num_envs = _check_leading_axes(columns)
    most = (num_rows - 1) * num_envs
    if len(message.episodes) > most:
        raise LimitError(f"trajectory of {most} steps says that {len(message.episodes)} episodes ended in it")
    episodes = tuple([_episode_from_proto(episode) for episode in message.episodes])
    return Trajectory(columns, episodes, message.stream, message.first_step)


def decode_sequence(payloads: Sequence[bytes], limits: LimitsSection) -> Trajectory:
    """Consecutive unrolls of one stream as one trajectory: the rows of each but its last, then the last row.

    The episodes of all in order; `stream` and `first_step` of the first. One payload is decoded as it is.
    Together they are bounded by `limits.max_trajectory_bytes`.
    """
    if not payloads:
        raise InvalidArgumentError("sequence of no trajectories: at least one is needed")
    unrolls = [decode_trajectory(payloads[0], limits)]
    num_bytes = _nbytes(unrolls[0])
    for payload in payloads[1:]:
        unrolls.append(decode_trajectory(payload, limits))
        num_bytes += _nbytes(unrolls[-1])
        if num_bytes > limits.max_trajectory_bytes:
            raise LimitError(
                f"sequence of {len(payloads)} trajectories has more than {limits.max_trajectory_bytes} bytes "
                "(limits.max_trajectory_bytes)"
            )
        _check_continues(unrolls[-2], unrolls[-1])
    if len(unrolls) == 1:
        return unrolls[0]
    columns = {
        name: np.concatenate([*(unroll.columns[name][:-1] for unroll in unrolls[:-1]), last])
        for name, last in unrolls[-1].columns.items()
    }
    episodes = tuple(episode for unroll in unrolls for episode in unroll.episodes)
    return Trajectory(columns, episodes, unrolls[0].stream, unrolls[0].first_step)


def encode_columns(columns: Columns, *, compress: bool = True) -> bytes:
    """Rows (the same number in every column) as bytes that `decode_columns` takes."""
    message = trajectory_pb2.Trajectory()
    _write_columns(columns, message, compress=compress)
    return message.SerializeToString()


def decode_columns(payload: bytes, limits: LimitsSection) -> Columns:
    """Parse and check rows: `limits.max_trajectory_bytes` bounds all of them together."""
    message = _parse(payload)
    columns = columns_from_proto(message.columns, limits.max_tensor_bytes, limits.max_trajectory_bytes)
    shapes = {name: list(array.shape) for name, array in columns.items()}
    if not all(shapes.values()) or len({shape[0] for shape in shapes.values()}) > 1:
        raise InvalidArgumentError(f"columns must have the same number of rows, not shapes {shapes}")
    return columns


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


def _write_columns(columns: Columns, message: trajectory_pb2.Trajectory, *, compress: bool) -> None:
    """Written in place: messages made one by one would be copied into each other."""
    for name, array in columns.items():
        column = message.columns.add()
        column.name = name
        _write_tensor(array, column.tensor, compress=compress)


def _write_tensor(array: np.ndarray, message: tensor_pb2.Tensor, *, compress: bool) -> None:
    encoded = codec.encode(array, compress=compress)
    message.dtype = _DTYPE_TO_PROTO[encoded.dtype]  # type: ignore[assignment]
    message.shape.extend(encoded.shape)
    message.codec = _CODEC_TO_PROTO[encoded.codec]  # type: ignore[assignment]
    message.raw_bytes = encoded.raw_bytes
    message.crc32c = encoded.crc32c
    message.data = encoded.data


def _encoded_of(message: tensor_pb2.Tensor) -> codec.Encoded:
    dtype = _DTYPE_FROM_PROTO.get(message.dtype)
    if dtype is None:
        raise InvalidArgumentError(f"unknown tensor dtype {message.dtype}")
    how = _CODEC_FROM_PROTO.get(message.codec)
    if how is None:
        raise InvalidArgumentError(f"unknown tensor codec {message.codec}")
    shape = message.shape
    # Before there is a tuple of it: a message may name millions of dimensions.
    if len(shape) > codec.MAX_RANK:
        raise LimitError(f"tensor of rank {len(shape)} is above the limit of {codec.MAX_RANK}")
    return codec.Encoded(dtype, tuple(shape[:]), how, message.raw_bytes, message.crc32c, message.data)


def _parse(payload: bytes) -> trajectory_pb2.Trajectory:
    """The message, its number of fields within bounds and none of its tensors unpacked yet."""
    try:
        _check_num_fields(payload)
        message = trajectory_pb2.Trajectory.FromString(payload)
    except (DecodeError, IndexError):
        raise InvalidArgumentError("payload is no Trajectory message") from None
    if len(message.columns) > MAX_COLUMNS:
        raise LimitError(f"trajectory has {len(message.columns)} columns: at most {MAX_COLUMNS} are allowed")
    return message


def _nbytes(trajectory: Trajectory) -> int:
    return sum(array.nbytes for array in trajectory.columns.values())


def _check_continues(before: Trajectory, unroll: Trajectory) -> None:
    end = before.first_step + before.unroll_length
    if (unroll.stream, unroll.first_step) != (before.stream, end):
        raise InvalidArgumentError(
            f"trajectories are not consecutive: step {end} of stream {before.stream} is followed by "
            f"step {unroll.first_step} of stream {unroll.stream}"
        )
    signatures = [
        {name: (array.dtype.name, array.shape[1:]) for name, array in t.columns.items()}
        for t in (before, unroll)
    ]
    if signatures[0] != signatures[1]:
        raise InvalidArgumentError(
            f"consecutive trajectories differ in their columns: {signatures[0]} and {signatures[1]}"
        )


def _check_num_fields(payload: bytes) -> None:
    """Count the columns and episodes of a serialised trajectory before anything is made of them.

    What is malformed is left to the parser, or raises IndexError.
    """
    at = count = 0
    end = len(payload)
    while at < end:
        count += 1
        if count > MAX_COLUMNS + MAX_EPISODES:
            raise LimitError(
                f"trajectory has more than {MAX_COLUMNS} columns and {MAX_EPISODES} episodes: "
                "send shorter unrolls or smaller groups"
            )
        tag, at = _varint(payload, at)
        kind = tag & 7
        if kind == 2:
            length, at = _varint(payload, at)
            at += length
        elif kind == 0:
            _, at = _varint(payload, at)
        elif kind in _FIXED_BYTES:
            at += _FIXED_BYTES[kind]
        else:
            raise IndexError


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    """A number of up to 64 bits, seven to a byte, and where it ends."""
    value = payload[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for shift in range(7, 70, 7):
        at += 1
        byte = payload[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise IndexError


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
