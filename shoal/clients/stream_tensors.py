"""Tensors of a long stream: message after message has the same names, dtypes and shapes.

Writing and checking headers costs more than moving a few kilobytes, so both are done once and again only
when a header changes; the data is checked every time. Used by both ends of Act streams. One writer
or reader belongs to one stream and to the event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from crc32c import crc32c
from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

from shoal.errors import InvalidArgumentError
from shoal.records import ArraySpec, Columns
from shoal.v1 import tensor_pb2
from shoal.wire import tensor_from_proto, tensor_to_proto

# Bytes move through Python gRPC at less than 1 GB/s, through LZ4 at several: frames are worth packing.
MIN_PACKED_BYTES = 1 << 14

_RAW = tensor_pb2.CODEC_RAW
# Comparing dtypes with these is far cheaper than with np.uint8 and np.bool_.
_UINT8 = np.dtype(np.uint8)
_BOOL = np.dtype(np.bool_)


class TensorWriter:
    """Fills one Tensor message again and again."""

    def __init__(self, message: tensor_pb2.Tensor) -> None:
        self._message = message
        # Of the header in the message. A shape of None fits no array; a dtype of None would equal float64.
        self._dtype = _UINT8
        self._shape: tuple[int, ...] | None = None

    def write(self, array: np.ndarray) -> None:
        if array.shape == self._shape and array.dtype == self._dtype:
            data = array.tobytes()
            self._message.data = data
            self._message.crc32c = crc32c(data)
        elif array.dtype == _UINT8 and array.nbytes >= MIN_PACKED_BYTES:
            # Packed flat: the first axis is environments, and differences between those do not shrink.
            self._message.CopyFrom(tensor_to_proto(array.reshape(-1), compress=True))
            self._message.shape[:] = array.shape
            self._shape = None
        else:
            self._message.CopyFrom(tensor_to_proto(array, compress=False))
            # Never big-endian: what is sent is not what such an array holds.
            self._dtype, self._shape = np.dtype(array.dtype.name), array.shape


class TensorReader:
    """Reads Tensor messages, most of which have the header of the one before."""

    def __init__(self, max_bytes: int, wanted: ArraySpec | None = None) -> None:
        """With `wanted`, an array of another dtype or shape is refused."""
        self._max_bytes = max_bytes
        self._wanted = wanted
        # Of the last raw tensor.
        self._header: tuple[int, int, list[int]] = (-1, -1, [])
        self._dtype = _UINT8
        self._shape: tuple[int, ...] = ()

    def read(self, message: tensor_pb2.Tensor) -> np.ndarray:
        """A read-only array. Raises InvalidArgumentError or LimitError."""
        number, num_bytes, dims = self._header
        raw = message.codec == _RAW
        if raw and message.dtype == number and message.raw_bytes == num_bytes and message.shape == dims:
            data = message.data
            if len(data) == num_bytes and crc32c(data) == message.crc32c and _fits(data, self._dtype):
                return np.frombuffer(data, self._dtype).reshape(self._shape)
        array = tensor_from_proto(message, self._max_bytes)
        wanted = self._wanted
        if wanted is not None and (array.dtype != wanted.dtype or array.shape != wanted.shape):
            raise InvalidArgumentError(
                f"a tensor of {array.dtype}{list(array.shape)} instead of {wanted.describe()}"
            )
        if raw:
            self._header = (message.dtype, message.raw_bytes, list(message.shape))
            self._dtype, self._shape = array.dtype, array.shape
        return array


class ColumnsWriter:
    """Fills a repeated NamedTensor field."""

    def __init__(self, field: RepeatedCompositeFieldContainer[tensor_pb2.NamedTensor]) -> None:
        self._field = field
        self._writers: dict[str, TensorWriter] = {}

    def write(self, columns: Columns) -> None:
        if columns.keys() != self._writers.keys():
            del self._field[:]
            self._writers = {name: TensorWriter(self._field.add(name=name).tensor) for name in columns}
        for name, array in columns.items():
            self._writers[name].write(array)


class ColumnsReader:
    """Reads a repeated NamedTensor field that holds one array [E, ...] for each of `specs`."""

    def __init__(self, max_bytes: int, specs: Sequence[ArraySpec], num_envs: int) -> None:
        self._readers = {
            spec.name: TensorReader(max_bytes, replace(spec, shape=(num_envs, *spec.shape))) for spec in specs
        }

    def read(self, messages: Iterable[tensor_pb2.NamedTensor]) -> Columns:
        """Arrays by name, in the order sent. Raises InvalidArgumentError or LimitError."""
        columns: Columns = {}
        for message in messages:
            name = message.name
            reader = self._readers.get(name)
            if reader is None or name in columns:
                what = "unknown" if reader is None else "there twice"
                raise InvalidArgumentError(f"column {name!r} is {what}: this stream has {self._names()}")
            columns[name] = reader.read(message.tensor)
        if len(columns) != len(self._readers):
            raise InvalidArgumentError(f"columns {', '.join(columns)} only: this stream has {self._names()}")
        return columns

    def _names(self) -> str:
        return ", ".join(self._readers)


def _fits(data: bytes, dtype: np.dtype) -> bool:
    """Any bytes are numbers, but only 0 and 1 are bools."""
    return dtype != _BOOL or data.count(b"\0") + data.count(b"\1") == len(data)
