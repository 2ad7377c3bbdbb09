"""Fields of serialised messages, counted before anything is made of them.

Two bytes can be a field: parsed, a message of a few megabytes could take gigabytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf.message import DecodeError

# Bytes of a field of 64 or 32 bits, by its wire type.
_FIXED_BYTES = {1: 8, 5: 4}
_DELIMITED = 2


class Field(NamedTuple):
    """Number of a field, and where its value is."""

    number: int
    begin: int
    end: int


def num_fields_exceed(data: bytes, most: int) -> bool:
    """Whether a message has more than `most` fields.

    What is malformed is left to the parser, or raises DecodeError.
    """
    # A field has two bytes or more.
    return len(data) > 2 * most and count_fields(fields(data), most) > most


def count_fields(found: Iterator[Field], most: int) -> int:
    """Counts no further than one more than `most`."""
    return sum(1 for _ in itertools.islice(found, most + 1))


def fields(data: bytes, within: Field | None = None) -> Iterator[Field]:
    """Of a message, or of the message that one of its fields is. Raises DecodeError beyond the end."""
    _, at, end = within or Field(0, 0, len(data))
    while at < end:
        try:
            tag, begin = _varint(data, at)
            kind = tag & 7
            if kind == _DELIMITED:
                length, begin = _varint(data, begin)
                at = begin + length
            elif kind == 0:
                _, at = _varint(data, begin)
            else:
                at = begin + _FIXED_BYTES[kind]
        except LookupError:
            raise DecodeError("malformed") from None
        yield Field(tag >> 3, begin, at)


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
