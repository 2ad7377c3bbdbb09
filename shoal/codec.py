"""Arrays to compressed bytes and back: LZ4 per array, delta coding for frames, CRC32C, size limits.

Pure functions, safe from any thread (LZ4 and CRC32C release the GIL on large inputs). The decoder
trusts nothing: it computes the size from dtype and shape, checks it against the caller's limit before
anything is allocated, and refuses output of any other length.
"""

from __future__ import annotations

import itertools
import math
from enum import Enum
from typing import NamedTuple

import lz4.block
import numpy as np
from crc32c import crc32c

from shoal.errors import InvalidArgumentError, LimitError

DTYPES = (
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
)
MAX_RANK = 16
# Below this many bytes LZ4 saves less than it costs.
MIN_COMPRESS_BYTES = 64
# uint8 arrays of this rank are frames over time: [T+1, E, height, width, ...]. If they have one row, time is
# the third axis, if they have so many: [1, E, frames, height, width, ...], the frames before an unroll.
FRAMES_RANK = 4
STACK_AXIS = 2
# From this many bytes per row on, adding rows one by one is faster than NumPy's accumulate over columns.
MIN_WIDE_ROW_BYTES = 256

# NumPy's own way from dtype to name and back costs more than unpacking a small array.
_DTYPE_OF = {name: np.dtype(name) for name in DTYPES}
_NAME_OF = {dtype: name for name, dtype in _DTYPE_OF.items()}
_UINT8 = _DTYPE_OF["uint8"]


class Codec(Enum):
    """How the bytes of an array were packed."""

    RAW = "raw"
    LZ4 = "lz4"
    DELTA_LZ4 = "delta_lz4"


# Python 3.11 looks members up slowly, and every array asks for some.
_RAW, _LZ4, _DELTA_LZ4 = Codec.RAW, Codec.LZ4, Codec.DELTA_LZ4


class Packed(NamedTuple):
    """Bytes as they travel, with a checksum of just those."""

    codec: Codec
    crc32c: int
    data: bytes


class Encoded(NamedTuple):
    """A packed array with all that is needed to check and unpack it."""

    dtype: str
    shape: tuple[int, ...]
    codec: Codec
    raw_bytes: int
    crc32c: int
    data: bytes


def encode(array: np.ndarray, *, compress: bool = True) -> Encoded:
    """Pack an array; whatever does not shrink goes as it is."""
    array = encodable(array)
    packed = pack_array(array, compress=compress)
    return Encoded(_NAME_OF[array.dtype], array.shape, packed.codec, array.nbytes, *packed[1:])


def decode(encoded: Encoded, max_bytes: int) -> np.ndarray:
    """Unpack an array of at most `max_bytes`; the result may be read-only.

    Raises LimitError or InvalidArgumentError, with bounded memory, whatever `encoded` holds.
    """
    dtype, shape, codec, raw_bytes, crc, data = encoded
    num_bytes = raw_nbytes(dtype, shape, max_bytes)
    if raw_bytes != num_bytes:
        raise InvalidArgumentError(
            f"tensor claims {raw_bytes} bytes, but {dtype}{list(shape)} has {num_bytes}"
        )
    raw = unpack_bytes(codec, crc, data, num_bytes)
    if dtype == "bool":
        check_bools(raw)
    array: np.ndarray = np.ndarray(shape, _DTYPE_OF[dtype], raw)
    return add_differences(array) if codec is _DELTA_LZ4 else array


def encodable(array: np.ndarray) -> np.ndarray:
    """The array, in the byte order of the wire. Raises InvalidArgumentError for a dtype that has none."""
    if array.dtype in _NAME_OF:
        return array
    dtype = array.dtype.name
    if dtype not in _DTYPE_OF:
        raise InvalidArgumentError(f"cannot encode dtype {dtype}: supported are {', '.join(DTYPES)}")
    return array.astype(dtype)


def pack_array(array: np.ndarray, *, compress: bool = True) -> Packed:
    """Its bytes, those of frames over time as differences; compressed, unless that makes them no fewer."""
    num_bytes = array.nbytes
    if compress and num_bytes >= MIN_COMPRESS_BYTES:
        source = np.ascontiguousarray(array)
        is_frames = array.ndim >= FRAMES_RANK and array.dtype == _UINT8
        is_delta = is_frames and array.shape[_time_axis(array.shape)] > 1
        data = _lz4(_time_differences(source) if is_delta else source)
        if len(data) < num_bytes:
            return Packed(_DELTA_LZ4 if is_delta else _LZ4, crc32c(data), data)
    data = array.tobytes()
    return Packed(_RAW, crc32c(data), data)


def pack_bytes(raw: bytes) -> Packed:
    return pack_array(np.frombuffer(raw, np.uint8))


def unpack_bytes(codec: Codec, crc: int, data: bytes, num_bytes: int) -> bytes | bytearray:
    """As many bytes as the caller computed, and allows; writable ones if they are differences."""
    if crc32c(data) != crc:
        raise InvalidArgumentError("tensor is corrupt: its CRC32C does not match its data")
    raw = data if codec is _RAW else _unlz4(data, num_bytes, writable=codec is _DELTA_LZ4)
    if len(raw) != num_bytes:
        raise InvalidArgumentError(f"tensor holds {len(raw)} bytes instead of {num_bytes}")
    return raw


def check_bools(raw: bytes | bytearray) -> None:
    # Whatever is left when all zeros and ones are taken out.
    if raw.translate(None, b"\0\1"):
        raise InvalidArgumentError("bool tensor holds bytes other than 0 and 1")


def add_differences(array: np.ndarray) -> np.ndarray:
    """Frames from their differences, in place."""
    if array.dtype != _UINT8 or not array.ndim:
        raise InvalidArgumentError(f"delta coding is for uint8 frames, not {array.dtype}{list(array.shape)}")
    _add_up(_time_first(array))
    return array


def dtype_of(name: str) -> np.dtype:
    """Raises InvalidArgumentError for one that has no place on the wire."""
    try:
        return _DTYPE_OF[name]
    except KeyError:
        raise InvalidArgumentError(f"unknown dtype {name!r}: supported are {', '.join(DTYPES)}") from None


def raw_nbytes(dtype: str, shape: tuple[int, ...], max_bytes: int) -> int:
    """Size of an array, checked against a limit before anything of that size exists."""
    itemsize = dtype_of(dtype).itemsize
    if len(shape) > MAX_RANK:
        raise LimitError(f"tensor of rank {len(shape)} is above the limit of {MAX_RANK}")
    num_bytes = extent = math.prod(shape) * itemsize
    if shape and min(shape) <= 0:
        if min(shape) < 0:
            raise InvalidArgumentError(f"tensor shape {list(shape)} has a negative dimension")
        # NumPy refuses an array without elements if its other dimensions are beyond all bounds.
        extent = math.prod(max(dim, 1) for dim in shape) * itemsize
    if extent > max_bytes:
        raise LimitError(
            f"tensor {dtype}{list(shape)} of {num_bytes} bytes is above the limit of {max_bytes} bytes"
        )
    return num_bytes


def _time_axis(shape: tuple[int, ...]) -> int:
    """A part of the protocol: along which axis differences are."""
    return STACK_AXIS if len(shape) > FRAMES_RANK and shape[0] == 1 else 0


def _time_first(frames: np.ndarray) -> np.ndarray:
    """A view."""
    return frames.swapaxes(0, _time_axis(frames.shape))


def _time_differences(frames: np.ndarray) -> np.ndarray:
    """Each frame minus the one before it, modulo 256; the first stays whole."""
    differences = np.empty_like(frames)
    now, out = _time_first(frames), _time_first(differences)
    out[:1] = now[:1]
    np.subtract(now[1:], now[:-1], out=out[1:])
    return differences


def _add_up(differences: np.ndarray) -> None:
    """The inverse, in place."""
    if math.prod(differences.shape[1:]) < MIN_WIDE_ROW_BYTES:
        np.add.accumulate(differences, axis=0, dtype=np.uint8, out=differences)
        return
    for before, row in itertools.pairwise(differences):
        row += before


def _lz4(array: np.ndarray) -> bytes:
    return bytes(lz4.block.compress(array, store_size=False))


def _unlz4(data: bytes, num_bytes: int, *, writable: bool) -> bytes | bytearray:
    try:
        raw: bytes | bytearray = lz4.block.decompress(
            data, uncompressed_size=num_bytes, return_bytearray=writable
        )
    except lz4.block.LZ4BlockError as error:
        raise InvalidArgumentError(f"tensor is no LZ4 block of {num_bytes} bytes: {error}") from None
    return raw
