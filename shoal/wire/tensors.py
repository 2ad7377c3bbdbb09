"""Single arrays: what steps, actions and batches of transitions are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from shoal import codec
from shoal.errors import InvalidArgumentError, LimitError
from shoal.records import Columns
from shoal.v1 import tensor_pb2

DTYPE_TO_PROTO = {name: tensor_pb2.DType.Value(f"DTYPE_{name.upper()}") for name in codec.DTYPES}
CODEC_TO_PROTO = {c: tensor_pb2.Codec.Value(f"CODEC_{c.name}") for c in codec.Codec}
_DTYPE_FROM_PROTO = {number: name for name, number in DTYPE_TO_PROTO.items()}
_CODEC_FROM_PROTO = {number: c for c, number in CODEC_TO_PROTO.items()}


def tensor_to_proto(array: np.ndarray, *, compress: bool) -> tensor_pb2.Tensor:
    message = tensor_pb2.Tensor()
    _write_tensor(array, message, compress=compress)
    return message


def tensor_from_proto(message: tensor_pb2.Tensor, max_bytes: int) -> np.ndarray:
    return codec.decode(_encoded_of(message), max_bytes)


def write_columns(columns: Columns, field: RepeatedCompositeFieldContainer[tensor_pb2.NamedTensor]) -> None:
    """In place: a message that is given to another one is copied, data and all.

    Not compressed: rows from all over a table hardly shrink.
    """
    for name, array in columns.items():
        _write_tensor(array, field.add(name=name).tensor, compress=False)


def columns_from_proto(messages: Iterable[tensor_pb2.NamedTensor], max_bytes: int) -> Columns:
    """`max_bytes` bounds each column."""
    columns: Columns = {}
    for message in messages:
        if message.name in columns:
            raise InvalidArgumentError(f"column {message.name!r} appears twice")
        columns[message.name] = tensor_from_proto(message.tensor, max_bytes)
    return columns


def shape_from_proto(dims: Sequence[int]) -> tuple[int, ...]:
    """Counted before there is a tuple of it: a message may name millions of dimensions."""
    if len(dims) > codec.MAX_RANK:
        raise LimitError(f"tensor of rank {len(dims)} is above the limit of {codec.MAX_RANK}")
    return tuple(dims)


def dtype_from_proto(number: int) -> str:
    try:
        return _DTYPE_FROM_PROTO[number]
    except KeyError:
        raise InvalidArgumentError(f"unknown tensor dtype {number}") from None


def codec_from_proto(number: int) -> codec.Codec:
    how = _CODEC_FROM_PROTO.get(number)
    if how is None:
        raise InvalidArgumentError(f"unknown tensor codec {number}")
    return how


def _write_tensor(array: np.ndarray, message: tensor_pb2.Tensor, *, compress: bool) -> None:
    encoded = codec.encode(array, compress=compress)
    message.dtype = DTYPE_TO_PROTO[encoded.dtype]  # type: ignore[assignment]
    message.shape.extend(encoded.shape)
    message.codec = CODEC_TO_PROTO[encoded.codec]  # type: ignore[assignment]
    message.raw_bytes = encoded.raw_bytes
    message.crc32c = encoded.crc32c
    message.data = encoded.data


def _encoded_of(message: tensor_pb2.Tensor) -> codec.Encoded:
    return codec.Encoded(
        dtype_from_proto(message.dtype),
        shape_from_proto(message.shape),
        codec_from_proto(message.codec),
        message.raw_bytes,
        message.crc32c,
        message.data,
    )
