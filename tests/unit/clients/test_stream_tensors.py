"""Tensors of a stream: what is cached must change nothing but the time it takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from shoal.clients.stream_tensors import (
    MIN_PACKED_BYTES,
    ColumnsReader,
    ColumnsWriter,
    TensorReader,
    TensorWriter,
)
from shoal.codec import DTYPES
from shoal.errors import InvalidArgumentError, LimitError
from shoal.records import ArraySpec, Columns
from shoal.v1 import inference_service_pb2 as pb
from shoal.v1 import tensor_pb2
from shoal.wire import tensor_from_proto, tensor_to_proto

ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)


@given(st.lists(ARRAYS, min_size=1, max_size=6), st.integers(1, 3))
def test_any_sequence_of_arrays_comes_through(arrays: list[np.ndarray], repeats: int) -> None:
    message = tensor_pb2.Tensor()
    writer, reader = TensorWriter(message), TensorReader(1 << 20)
    for array in [array for array in arrays for _ in range(repeats)]:
        writer.write(array)
        received = tensor_pb2.Tensor.FromString(message.SerializeToString())
        assert received == tensor_to_proto(array, compress=False)
        decoded = reader.read(received)
        assert decoded.dtype == array.dtype
        np.testing.assert_array_equal(decoded, array)


def test_frames_are_packed_and_keep_their_shape() -> None:
    frames = np.zeros((4, 84, 84, 1), np.uint8)
    frames[:, 10:20, 30:40] = 200
    message = tensor_pb2.Tensor()
    writer = TensorWriter(message)
    for _ in range(2):
        writer.write(frames)
        assert message.codec == tensor_pb2.CODEC_LZ4
        assert len(message.data) < MIN_PACKED_BYTES / 10
        np.testing.assert_array_equal(TensorReader(1 << 20).read(message), frames)
        np.testing.assert_array_equal(tensor_from_proto(message, 1 << 20), frames)


def test_frames_that_do_not_shrink_go_raw() -> None:
    noise = np.random.default_rng(1).integers(0, 256, (4, 84, 84), np.uint8)
    message = tensor_pb2.Tensor()
    TensorWriter(message).write(noise)
    assert message.codec == tensor_pb2.CODEC_RAW
    np.testing.assert_array_equal(TensorReader(1 << 20).read(message), noise)


def raw(array: np.ndarray) -> tensor_pb2.Tensor:
    return tensor_to_proto(array, compress=False)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda m: setattr(m, "crc32c", m.crc32c ^ 1), "CRC32C"),
        (lambda m: setattr(m, "data", m.data[:-1]), "CRC32C"),
        (lambda m: setattr(m, "data", b""), "CRC32C"),
        (lambda m: setattr(m, "raw_bytes", 1), "claims 1 bytes"),
        (lambda m: setattr(m, "dtype", 99), "dtype"),
        (lambda m: setattr(m, "codec", 99), "codec"),
        (lambda m: m.shape.append(-2), "negative"),
    ],
)
def test_a_lying_tensor_is_refused_however_many_good_ones_came_before(
    warm: bool, change: object, error: str
) -> None:
    reader = TensorReader(1 << 20)
    if warm:
        reader.read(raw(np.arange(6.0)))
    message = raw(np.arange(6.0))
    assert callable(change)
    change(message)
    with pytest.raises(InvalidArgumentError, match=error):
        reader.read(message)
    np.testing.assert_array_equal(reader.read(raw(np.arange(6.0))), np.arange(6.0))


def test_bools_are_checked_every_time() -> None:
    reader = TensorReader(1 << 20)
    reader.read(raw(np.array([True, False])))
    lying = raw(np.array([2, 0], np.uint8))
    lying.dtype = tensor_pb2.DTYPE_BOOL
    with pytest.raises(InvalidArgumentError, match="other than 0 and 1"):
        reader.read(lying)


def test_the_limit_holds() -> None:
    with pytest.raises(LimitError):
        TensorReader(max_bytes=15).read(raw(np.arange(2.0)))


@pytest.mark.parametrize("dtype", [">f4", ">i8"])
def test_big_endian_arrays_come_through_every_time(dtype: str) -> None:
    message = tensor_pb2.Tensor()
    writer, reader = TensorWriter(message), TensorReader(1 << 20)
    array = np.array([1, 2, 300], dtype)
    for each in (array, array, array.astype(array.dtype.name), array):
        writer.write(each)
        np.testing.assert_array_equal(reader.read(message), each)


FLOATS, CODES = ArraySpec("a", "float32", (4,)), ArraySpec("b", "int64", ())


def columns(num_envs: int = 3) -> Columns:
    return {"b": np.arange(num_envs), "a": np.ones((num_envs, 4), np.float32)}


def columns_reader() -> ColumnsReader:
    return ColumnsReader(1 << 20, (FLOATS, CODES), 3)


def test_columns_keep_names_and_order() -> None:
    step = pb.ActStep()
    writer, reader = ColumnsWriter(step.observation), columns_reader()
    for sent in (columns(), dict(reversed(columns().items())), columns()):
        writer.write(sent)
        decoded = reader.read(step.observation)
        assert decoded.keys() == sent.keys()
        for name, array in sent.items():
            np.testing.assert_array_equal(decoded[name], array)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (columns(4), r"int64\[4\] instead of b int64\[3\]"),
        (columns() | {"a": np.ones((3, 5), np.float32)}, r"float32\[3, 5\] instead of a float32\[3, 4\]"),
        (columns() | {"a": np.ones((3, 4))}, r"float64\[3, 4\] instead of a float32\[3, 4\]"),
        (columns() | {"c": np.ones(3)}, "column 'c' is unknown: this stream has a, b"),
        ({"a": columns()["a"]}, "columns a only: this stream has a, b"),
    ],
)
def test_columns_other_than_the_specs_are_refused(warm: bool, sent: Columns, error: str) -> None:
    step = pb.ActStep()
    writer, reader = ColumnsWriter(step.observation), columns_reader()
    if warm:
        writer.write(columns())
        reader.read(step.observation)
    writer.write(sent)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match=error):
            reader.read(step.observation)


def test_a_column_twice_is_refused() -> None:
    step = pb.ActStep()
    for _ in range(2):
        step.observation.add(name="b", tensor=raw(np.arange(3)))
    with pytest.raises(InvalidArgumentError, match="column 'b' is there twice"):
        columns_reader().read(step.observation)
