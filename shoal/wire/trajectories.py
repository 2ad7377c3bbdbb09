"""Trajectories: the bytes that travel to the replay, are stored there and reach the learner unchanged.

Nothing is unpacked before all sizes are found to be allowed. What can be checked without the bytes, which is
the layout of the columns, is checked once for all trajectories that have the same one.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from google.protobuf.message import DecodeError

from shoal import codec
from shoal.config.connections import LimitsSection
from shoal.errors import InvalidArgumentError, LimitError
from shoal.layout import MAX_COLUMNS, ColumnSpec, Layout, plan_layout
from shoal.records import FIRST, INITIAL, Columns, Episode, Trajectory
from shoal.v1 import trajectory_pb2
from shoal.wire.fields import num_fields_exceed
from shoal.wire.tensors import (
    CODEC_TO_PROTO,
    DTYPE_TO_PROTO,
    codec_from_proto,
    dtype_from_proto,
    shape_from_proto,
)

# Hundreds of columns with long names.
MAX_LAYOUT_BYTES = 1 << 16
# More than there are kinds of senders; together they are small whatever a stranger sends.
MAX_KNOWN_LAYOUTS = 64
# Two bytes can be an episode: without a bound a small message would take seconds and gigabytes. As many
# as 8192 environments can end in an unroll of 16 steps, the shortest episode taking two.
MAX_EPISODES = 1 << 16
MAX_FIELDS = MAX_COLUMNS + MAX_EPISODES

_DELTA_LZ4 = codec.Codec.DELTA_LZ4


def encode_trajectory(trajectory: Trajectory) -> bytes:
    """The bytes that travel to the replay, are stored there and reach the learner unchanged."""
    message = trajectory_pb2.Trajectory(stream=trajectory.stream, first_step=trajectory.first_step)
    _write_columns(trajectory.columns, message)
    for episode in trajectory.episodes:
        episode_to_proto(episode, message.episodes.add())
    return message.SerializeToString()


def decode_trajectory(payload: bytes, limits: LimitsSection) -> Trajectory:
    """Parse and check a trajectory completely: sizes first, then CRCs, contents and shapes."""
    message = _parse(payload)
    layout, num_steps = _trajectory_layout(
        message.layout, limits.max_tensor_bytes, limits.max_trajectory_bytes
    )
    if len(message.episodes) > num_steps:
        raise LimitError(
            f"trajectory of {num_steps} steps says that {len(message.episodes)} episodes ended in it"
        )
    columns = _read_columns(message, layout)
    episodes = tuple([episode_from_proto(episode) for episode in message.episodes])
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
        name: _joined(name, [unroll.columns[name] for unroll in unrolls]) for name in unrolls[-1].columns
    }
    episodes = tuple(episode for unroll in unrolls for episode in unroll.episodes)
    return Trajectory(columns, episodes, unrolls[0].stream, unrolls[0].first_step)


def _joined(name: str, parts: Sequence[np.ndarray]) -> np.ndarray:
    if name.startswith(INITIAL):
        return parts[0]
    return np.concatenate([*(part[:-1] for part in parts[:-1]), parts[-1]])


def encode_columns(columns: Columns) -> bytes:
    """Rows (the same number in every column) as bytes that `decode_columns` takes."""
    message = trajectory_pb2.Trajectory()
    _write_columns(columns, message)
    return message.SerializeToString()


def check_columns(columns: Iterable[tuple[str, np.dtype, tuple[int, ...]]], num_rows: int) -> None:
    """Raises LimitError if `encode_columns` would refuse so many rows: name, dtype and shape of one each.

    Or `decode_columns`, but for its limits.
    """
    _layout_of(tuple([(name, dtype, (num_rows, *shape)) for name, dtype, shape in columns]))


def decode_columns(payload: bytes, limits: LimitsSection) -> Columns:
    """Parse and check rows: `limits.max_trajectory_bytes` bounds all of them together."""
    message = _parse(payload)
    layout = _layout_from_proto(message.layout, limits.max_tensor_bytes, limits.max_trajectory_bytes)
    shapes = {slot.name: list(slot.shape) for slot in layout.slots}
    if not all(shapes.values()) or len({shape[0] for shape in shapes.values()}) > 1:
        raise InvalidArgumentError(f"columns must have the same number of rows, not shapes {shapes}")
    return _read_columns(message, layout)


def check_payload(payload: bytes, limits: LimitsSection) -> None:
    """Raises InvalidArgumentError if rows or a trajectory, whichever it is, cannot be read whole."""
    message = _parse(payload)
    _read_columns(
        message, _layout_from_proto(message.layout, limits.max_tensor_bytes, limits.max_trajectory_bytes)
    )


def _write_columns(columns: Columns, message: trajectory_pb2.Trajectory) -> None:
    arrays = {name: codec.encodable(array) for name, array in columns.items()}
    message.layout, layout = _layout_of(tuple([(n, a.dtype, a.shape) for n, a in arrays.items()]))
    for slots in layout.blocks:
        _write_block([arrays[slot.name] for slot in slots], message.blocks.add())


def _write_block(arrays: Sequence[np.ndarray], message: trajectory_pb2.Block) -> None:
    """In place: messages made one by one would be copied into each other."""
    if len(arrays) == 1:
        packed = codec.pack_array(arrays[0])
    else:
        packed = codec.pack_bytes(b"".join([array.tobytes() for array in arrays]))
    message.codec = CODEC_TO_PROTO[packed.codec]  # type: ignore[assignment]
    message.crc32c = packed.crc32c
    message.data = packed.data


def _read_columns(message: trajectory_pb2.Trajectory, layout: Layout) -> Columns:
    """Nothing is unpacked before all sizes are found to be allowed, as a layout's are."""
    if len(message.blocks) != len(layout.blocks):
        raise InvalidArgumentError(
            f"trajectory has {len(message.blocks)} blocks, its layout has {len(layout.blocks)}"
        )
    raws = []
    differences = set()
    for number, block in enumerate(message.blocks):
        how = codec_from_proto(block.codec)
        raws.append(codec.unpack_bytes(how, block.crc32c, block.data, layout.block_bytes[number]))
        if how is _DELTA_LZ4:
            if len(layout.blocks[number]) > 1:
                raise InvalidArgumentError("delta coding is for one column of frames, not for several")
            differences.add(layout.blocks[number][0].name)
    for number, begin, end in layout.bools:
        codec.check_bools(raws[number][begin:end])
    columns: Columns = {
        name: np.ndarray(shape, dtype, raws[block], offset)
        for name, dtype, shape, block, offset, _ in layout.slots
    }
    for name in differences:
        codec.add_differences(columns[name])
    return columns


@lru_cache(maxsize=MAX_KNOWN_LAYOUTS)
def _layout_of(arrays: tuple[tuple[str, np.dtype, tuple[int, ...]], ...]) -> tuple[bytes, Layout]:
    """Of arrays that are to be sent: serialised, and as a plan. Limits of their sizes are the receiver's."""
    message = trajectory_pb2.Layout()
    for name, dtype, shape in arrays:
        message.columns.add(name=name, dtype=DTYPE_TO_PROTO[dtype.name], shape=shape)
    specs = [ColumnSpec(name, dtype.name, shape) for name, dtype, shape in arrays]
    data = message.SerializeToString(deterministic=True)
    _check_layout_bytes(data)
    return data, plan_layout(specs, sys.maxsize, sys.maxsize)


def _check_layout_bytes(data: bytes) -> None:
    if len(data) > MAX_LAYOUT_BYTES:
        raise LimitError(
            f"layout of {len(data)} bytes: at most {MAX_LAYOUT_BYTES} are allowed, send fewer columns or "
            "shorten their names"
        )


@lru_cache(maxsize=MAX_KNOWN_LAYOUTS)
def _layout_from_proto(data: bytes, max_column_bytes: int, max_bytes: int) -> Layout:
    """Parsed and checked; what is refused is not remembered."""
    _check_layout_bytes(data)
    try:
        message = trajectory_pb2.Layout.FromString(data)
    except DecodeError:
        raise InvalidArgumentError("trajectory's layout is no Layout message") from None
    specs = []
    for column in message.columns:
        shape = shape_from_proto(column.shape)
        specs.append(ColumnSpec(column.name, dtype_from_proto(column.dtype), shape))
    return plan_layout(specs, max_column_bytes, max_bytes)


@lru_cache(maxsize=MAX_KNOWN_LAYOUTS)
def _trajectory_layout(data: bytes, max_column_bytes: int, max_bytes: int) -> tuple[Layout, int]:
    """A layout of columns [T+1, E, ...], and T x E."""
    layout = _layout_from_proto(data, max_column_bytes, max_bytes)
    num_rows, num_envs = _leading_axes(layout)
    return layout, (num_rows - 1) * num_envs


def _leading_axes(layout: Layout) -> tuple[int, int]:
    """T+1 and E."""
    slots = {slot.name: slot for slot in layout.slots}
    if FIRST not in slots:
        raise InvalidArgumentError(f"trajectory has no column {FIRST!r}, only {sorted(slots)}")
    first = slots[FIRST]
    leading = first.shape
    if len(leading) != 2 or leading[0] < 2 or leading[1] < 1 or first.dtype != np.bool_:
        raise InvalidArgumentError(
            f"column {FIRST!r} is {first.dtype}{list(leading)} instead of bool[T+1, E] with T, E >= 1"
        )
    for slot in layout.slots:
        wanted = (1, leading[1]) if slot.name.startswith(INITIAL) else leading
        if slot.shape[:2] != wanted:
            raise InvalidArgumentError(
                f"column {slot.name!r} has shape {list(slot.shape)} and should start with {list(wanted)}"
            )
    return leading[0], leading[1]


def episode_to_proto(episode: Episode, message: trajectory_pb2.Episode) -> None:
    """Fills the message in place."""
    message.episode_return, message.num_steps = episode.episode_return, episode.num_steps
    if episode.first_version >= 0:
        message.first_version = episode.first_version


def episode_from_proto(message: trajectory_pb2.Episode) -> Episode:
    if not math.isfinite(message.episode_return) or message.num_steps < 1:
        raise InvalidArgumentError(
            f"episode of {message.num_steps} steps with a return of {message.episode_return}: "
            "a finite return and at least one step are needed"
        )
    first_version = message.first_version if message.HasField("first_version") else -1
    return Episode(message.episode_return, message.num_steps, max(first_version, -1))


def _parse(payload: bytes) -> trajectory_pb2.Trajectory:
    """The message, its number of fields within bounds and none of its tensors unpacked yet."""
    try:
        if num_fields_exceed(payload, MAX_FIELDS):
            raise LimitError(
                f"trajectory has more than {MAX_COLUMNS} columns and {MAX_EPISODES} episodes: "
                "send shorter unrolls or smaller groups"
            )
        message = trajectory_pb2.Trajectory.FromString(payload)
    except DecodeError:
        raise InvalidArgumentError("payload is no Trajectory message") from None
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
