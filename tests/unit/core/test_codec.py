"""The codec against obvious expectations and against hostile input."""

from __future__ import annotations

import math
import tracemalloc

import lz4.block
import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.codec import DTYPES, Codec, Encoded, decode, encode
from shoal.errors import InvalidArgumentError, LimitError

MAX_BYTES = 1 << 20

arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(
        np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6)
    )
)


def forged(data: bytes, *, dtype: str = "uint8", shape: tuple[int, ...], codec: Codec = Codec.LZ4) -> Encoded:
    raw_bytes = int(np.prod([*shape, np.dtype(dtype).itemsize], dtype=object))
    return Encoded(dtype, shape, codec, raw_bytes, crc32c(data), data)


@given(arrays, st.booleans())
def test_round_trip_gives_back_every_bit(array: np.ndarray, compress: bool) -> None:
    back = decode(encode(array, compress=compress), MAX_BYTES)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


def obvious_decode(encoded: Encoded) -> list[int]:
    """The bytes that honest `encoded` stands for, by the book and one at a time."""
    raw = encoded.data
    if encoded.codec is not Codec.RAW:
        raw = lz4.block.decompress(raw, uncompressed_size=encoded.raw_bytes)
    values = list(raw)
    if encoded.codec is Codec.DELTA_LZ4:
        shape = encoded.shape
        axis = 2 if len(shape) >= 5 and shape[0] == 1 else 0
        frame_bytes = math.prod(shape[axis + 1 :])
        for i in range(len(values)):
            if i // frame_bytes % shape[axis]:
                values[i] = (values[i] + values[i - frame_bytes]) % 256
    return values


def sparse_frames(num_rows: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Few enough values that LZ4 finds something to save."""
    bright = np.random.default_rng(seed).random((num_rows, 1, *shape)) < 0.02
    return np.cumsum(bright * np.uint8(77), axis=0, dtype=np.uint8)


# Rows on both sides of where the way of adding them up changes, and no rows at all.
frames = st.builds(
    sparse_frames,
    st.sampled_from([0, 1, 2, 3, 9]),
    st.sampled_from([(2, 2), (15, 17), (16, 16), (16, 17), (4, 8, 9)]),
    st.integers(0, 1 << 30),
)


def frames_before(num_envs: int, num_frames: int, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """[1, E, frames, ...]: what environments showed before the first row of an unroll."""
    by_time = np.concatenate(
        [sparse_frames(num_frames, shape, seed + env) for env in range(num_envs)], axis=1
    )
    return np.ascontiguousarray(by_time.swapaxes(0, 1))[np.newaxis]


stacks = st.builds(
    frames_before,
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([(2, 2), (16, 16), (16, 17), (4, 8, 9)]),
    st.integers(0, 1 << 30),
)


def check_against_the_obvious(array: np.ndarray, encoded: Encoded) -> None:
    assert encoded.raw_bytes == array.nbytes
    assert len(encoded.data) <= array.nbytes
    assert obvious_decode(encoded) == list(array.tobytes())
    assert list(decode(encoded, MAX_BYTES).tobytes()) == obvious_decode(encoded)


@given(arrays, st.booleans())
def test_decoding_agrees_with_an_obvious_decoder(array: np.ndarray, compress: bool) -> None:
    check_against_the_obvious(array, encode(array, compress=compress))


@given(st.one_of(frames, stacks))
def test_decoding_frames_agrees_with_an_obvious_decoder(array: np.ndarray) -> None:
    check_against_the_obvious(array, encode(array))


@given(st.one_of(arrays, frames, stacks).filter(lambda array: array.nbytes > 0), st.data())
def test_every_corruption_of_the_data_is_refused(array: np.ndarray, data: st.DataObject) -> None:
    encoded = encode(array)
    position = data.draw(st.integers(0, len(encoded.data) - 1))
    flipped = bytearray(encoded.data)
    flipped[position] ^= data.draw(st.integers(1, 255))
    cut = encoded.data[:position]
    longer = encoded.data + data.draw(st.binary(min_size=1, max_size=9))
    for damaged in (bytes(flipped), cut, longer):
        with pytest.raises(InvalidArgumentError):
            decode(encoded._replace(data=damaged), MAX_BYTES)
        # The same with a checksum to match, as a liar would send it: no other length gets through.
        if len(damaged) != len(encoded.data) and encoded.codec is Codec.RAW:
            with pytest.raises(InvalidArgumentError, match="instead of"):
                decode(encoded._replace(data=damaged, crc32c=crc32c(damaged)), MAX_BYTES)


@given(arrays, st.data())
def test_every_other_size_is_refused(array: np.ndarray, data: st.DataObject) -> None:
    encoded = encode(array)
    with pytest.raises(InvalidArgumentError, match="claims"):
        decode(
            encoded._replace(raw_bytes=data.draw(st.integers(0).filter(lambda n: n != array.nbytes))),
            MAX_BYTES,
        )
    if array.nbytes > 1:
        with pytest.raises(LimitError):
            decode(encoded, array.nbytes - 1)


def test_non_contiguous_arrays_round_trip() -> None:
    array = np.arange(4000, dtype=np.int32).reshape(40, 100)[::2, ::3]
    np.testing.assert_array_equal(decode(encode(array), MAX_BYTES), array)


def test_big_endian_arrays_arrive_with_their_values() -> None:
    array = np.arange(100, dtype=">f4")
    np.testing.assert_array_equal(decode(encode(array), MAX_BYTES), array)


@pytest.mark.parametrize("width", [2, 17], ids=["narrow", "wide"])
def test_the_sparse_frames_of_the_properties_are_delta_coded(width: int) -> None:
    assert encode(sparse_frames(40 // width + 5, (16, width), 1)).codec is Codec.DELTA_LZ4


def test_frames_before_an_unroll_are_differences_of_each_other() -> None:
    """They are [1, E, frames, ...]: along the first axis there is nothing to take a difference of."""
    frame = np.random.default_rng(0).integers(0, 256, (2, 1, 84, 84), dtype=np.uint8)
    stack = np.repeat(frame, 3, axis=1)[np.newaxis]
    encoded = encode(stack)
    assert encoded.codec is Codec.DELTA_LZ4
    assert len(encoded.data) < 1.1 * frame.nbytes
    np.testing.assert_array_equal(decode(encoded, MAX_BYTES), stack)


@pytest.mark.parametrize("shape", [(1, 3, 84, 84), (1, 2, 1, 84, 84)])
def test_what_has_no_frame_before_it_is_not_delta_coded(shape: tuple[int, ...]) -> None:
    assert encode(np.full(shape, 7, np.uint8)).codec is Codec.LZ4


def test_frames_are_delta_coded_and_small() -> None:
    rng = np.random.default_rng(0)
    frame = rng.integers(0, 256, (4, 84, 84), dtype=np.uint8)
    frames = np.stack([frame] * 21)
    frames[10:, 0, 3, 5] += 7
    encoded = encode(frames)
    assert encoded.codec is Codec.DELTA_LZ4
    assert len(encoded.data) < frames.nbytes / 15
    np.testing.assert_array_equal(decode(encoded, 1 << 24), frames)


def test_what_does_not_shrink_is_sent_raw() -> None:
    noise = np.random.default_rng(0).integers(0, 256, 10_000, dtype=np.uint8)
    assert encode(noise).codec is Codec.RAW
    assert len(encode(noise).data) == noise.nbytes


def test_unsupported_dtype_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="complex128"):
        encode(np.zeros(3, dtype=np.complex128))


def test_a_flipped_bit_anywhere_is_refused() -> None:
    encoded = encode(np.arange(256, dtype=np.int64))
    for position in range(0, len(encoded.data), 7):
        data = bytearray(encoded.data)
        data[position] ^= 1
        with pytest.raises(InvalidArgumentError, match="CRC32C"):
            decode(encoded._replace(data=bytes(data)), MAX_BYTES)


@pytest.mark.parametrize(
    "shape", [(1 << 31,), (1 << 63,), (1 << 20, 1 << 20, 1 << 20), (MAX_BYTES + 1,)], ids=str
)
def test_a_claim_above_the_limit_is_refused_before_allocation(shape: tuple[int, ...]) -> None:
    bomb = lz4.block.compress(bytes(1 << 16), store_size=False)
    tracemalloc.start()
    with pytest.raises(LimitError, match="limit"):
        decode(forged(bomb, shape=shape), MAX_BYTES)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_true_bomb_within_the_claim_is_cut_off() -> None:
    bomb = lz4.block.compress(bytes(100 << 20), store_size=False)
    assert len(bomb) < 1 << 20
    with pytest.raises(InvalidArgumentError, match="no LZ4 block of 1000 bytes"):
        decode(forged(bomb, shape=(1000,)), MAX_BYTES)


def test_short_output_truncation_and_trailing_bytes_are_refused() -> None:
    packed = lz4.block.compress(bytes(1000), store_size=False)
    for data, size in ((packed, 1001), (packed[:-3], 1000), (packed + b"xx", 1000), (b"", 10)):
        with pytest.raises(InvalidArgumentError):
            decode(forged(data, shape=(size,)), MAX_BYTES)


def test_raw_of_the_wrong_length_is_refused() -> None:
    for data in (b"", bytes(9), bytes(11)):
        with pytest.raises(InvalidArgumentError, match="instead of 10"):
            decode(forged(data, shape=(10,), codec=Codec.RAW), MAX_BYTES)


@pytest.mark.parametrize(
    ("encoded", "reason"),
    [
        (forged(bytes(4), shape=(-4,), codec=Codec.RAW), "negative"),
        (forged(bytes(1), shape=(1,) * 40, codec=Codec.RAW), "rank 40"),
        (forged(bytes(4), shape=(4,), codec=Codec.RAW)._replace(dtype="object"), "unknown dtype"),
        (forged(bytes(4), shape=(4,), codec=Codec.RAW)._replace(raw_bytes=8), "claims 8 bytes"),
        (forged(b"\x00\x02", dtype="bool", shape=(2,), codec=Codec.RAW), "other than 0 and 1"),
    ],
)
def test_lying_headers_are_refused(encoded: Encoded, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        decode(encoded, MAX_BYTES)


@pytest.mark.parametrize("shape", [(0, 20, 20), (0,), (3, 0, 500)], ids=str)
def test_delta_of_nothing_is_nothing(shape: tuple[int, ...]) -> None:
    nothing = lz4.block.compress(b"", store_size=False)
    assert decode(forged(nothing, shape=shape, codec=Codec.DELTA_LZ4), MAX_BYTES).shape == shape


def test_delta_of_anything_but_frames_is_refused() -> None:
    data = lz4.block.compress(bytes(80), store_size=False)
    with pytest.raises(InvalidArgumentError, match="delta coding"):
        decode(forged(data, dtype="float64", shape=(10,), codec=Codec.DELTA_LZ4), MAX_BYTES)


@settings(max_examples=300)
@given(
    data=st.binary(max_size=200),
    dtype=st.sampled_from([*DTYPES, "object", ""]),
    shape=st.lists(st.integers(-2, 1 << 40), max_size=4).map(tuple),
    codec=st.sampled_from(Codec),
    raw_bytes=st.integers(0, 1 << 64),
)
def test_garbage_is_refused_or_decoded_but_never_crashes(
    data: bytes, dtype: str, shape: tuple[int, ...], codec: Codec, raw_bytes: int
) -> None:
    try:
        array = decode(Encoded(dtype, shape, codec, raw_bytes, crc32c(data), data), MAX_BYTES)
    except InvalidArgumentError:
        return
    assert array.nbytes == raw_bytes
    assert array.shape == shape
