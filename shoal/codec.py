"""Arrays to compressed bytes and back: LZ4 per array, delta coding for frames, CRC32C, size limits.

Pure functions, safe from any thread (LZ4 and CRC32C release the GIL on large inputs). The decoder
trusts nothing: it computes the size from dtype and shape, checks it against the caller's limit before
anything is allocated, and refuses output of any other length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

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
# uint8 arrays of this rank are frames over time: [T+1, E, height, width, ...].
FRAMES_RANK = 4


class Codec(Enum):
    """How the bytes of an array were packed."""

    RAW = "raw"
    LZ4 = "lz4"
    DELTA_LZ4 = "delta_lz4"


@dataclass(frozen=True)
class Encoded:
    """A packed array with all that is needed to check and unpack it."""

    dtype: str
    shape: tuple[int, ...]
    codec: Codec
    raw_bytes: int
    crc32c: int
    data: bytes


def encode(array: np.ndarray, *, compress: bool = True) -> Encoded:
    """Pack an array; whatever does not shrink goes as it is."""
    dtype = array.dtype.name
    if dtype not in DTYPES:
        raise InvalidArgumentError(f"cannot encode dtype {dtype}: supported are {', '.join(DTYPES)}")
    if array.dtype.byteorder == ">":
        array = array.astype(dtype)
    codec, data = Codec.RAW, None
    if compress and array.nbytes >= MIN_COMPRESS_BYTES:
        source = np.ascontiguousarray(array)
        if dtype == "uint8" and array.ndim >= FRAMES_RANK:
            codec, data = Codec.DELTA_LZ4, _lz4(_time_differences(source))
        else:
            codec, data = Codec.LZ4, _lz4(source)
    if data is None or len(data) >= array.nbytes:
        codec, data = Codec.RAW, array.tobytes()
    return Encoded(dtype, array.shape, codec, array.nbytes, crc32c(data), data)


def decode(encoded: Encoded, max_bytes: int) -> np.ndarray:
    """Unpack an array of at most `max_bytes`; the result may be read-only.

    Raises LimitError or InvalidArgumentError, with bounded memory, whatever `encoded` holds.
    """
    num_bytes = raw_nbytes(encoded.dtype, encoded.shape, max_bytes)
    if encoded.raw_bytes != num_bytes:
        raise InvalidArgumentError(
            f"tensor claims {encoded.raw_bytes} bytes, "
            f"but {encoded.dtype}{list(encoded.shape)} has {num_bytes}"
        )
    if crc32c(encoded.data) != encoded.crc32c:
        raise InvalidArgumentError("tensor is corrupt: its CRC32C does not match its data")
    raw = encoded.data if encoded.codec is Codec.RAW else _unlz4(encoded.data, num_bytes)
    if len(raw) != num_bytes:
        raise InvalidArgumentError(f"tensor holds {len(raw)} bytes instead of {num_bytes}")
    if encoded.dtype == "bool" and num_bytes and np.frombuffer(raw, np.uint8).max() > 1:
        raise InvalidArgumentError("bool tensor holds bytes other than 0 and 1")
    array = np.frombuffer(raw, dtype=encoded.dtype).reshape(encoded.shape)
    if encoded.codec is Codec.DELTA_LZ4:
        if encoded.dtype != "uint8" or not encoded.shape:
            raise InvalidArgumentError(
                f"delta coding is for uint8 frames, not {encoded.dtype}{list(encoded.shape)}"
            )
        array = np.add.accumulate(array, axis=0, dtype=np.uint8)
    return array


def raw_nbytes(dtype: str, shape: tuple[int, ...], max_bytes: int) -> int:
    """Size of an array, checked against a limit before anything of that size exists."""
    if dtype not in DTYPES:
        raise InvalidArgumentError(f"unknown dtype {dtype!r}: supported are {', '.join(DTYPES)}")
    if len(shape) > MAX_RANK:
        raise LimitError(f"tensor of rank {len(shape)} is above the limit of {MAX_RANK}")
    if any(dim < 0 for dim in shape):
        raise InvalidArgumentError(f"tensor shape {list(shape)} has a negative dimension")
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    # NumPy refuses an array without elements if its other dimensions are beyond all bounds.
    if math.prod(max(dim, 1) for dim in shape) * np.dtype(dtype).itemsize > max_bytes:
        raise LimitError(
            f"tensor {dtype}{list(shape)} of {num_bytes} bytes is above the limit of {max_bytes} bytes"
        )
    return num_bytes


def _time_differences(frames: np.ndarray) -> np.ndarray:
    """Each frame minus the one before it, modulo 256; the first stays whole."""
    differences = frames.copy()
    np.subtract(frames[1:], frames[:-1], out=differences[1:])
    return differences


def _lz4(array: np.ndarray) -> bytes:
    return bytes(lz4.block.compress(array.data.cast("B"), store_size=False))


def _unlz4(data: bytes, num_bytes: int) -> bytes:
    try:
        return bytes(lz4.block.decompress(data, uncompressed_size=num_bytes))
    except lz4.block.LZ4BlockError as error:
        raise InvalidArgumentError(f"tensor is no LZ4 block of {num_bytes} bytes: {error}") from None
