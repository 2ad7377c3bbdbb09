"""Events and states of a replay table to the meta and blobs of a frame, and back. See `journal.proto`.

Pure functions, used by `services.replay.storage` to write and by `shoal.journal.reader` to read. A frame's
CRC is checked before anything gets here, so what cannot be read was written by another program or a bug: it
raises InvalidArgumentError, in bounded memory, and the reader counts it as damaged.
"""

from __future__ import annotations

from collections.abc import Sequence

import lz4.block
import numpy as np
from crc32c import crc32c
from google.protobuf.message import DecodeError

from shoal.errors import InvalidArgumentError
from shoal.journal.events import (
    Event,
    Inserted,
    Location,
    PrioritiesSet,
    Removed,
    SampledOnce,
    SeenLife,
    StoredPayload,
    TableState,
)
from shoal.journal.framing import Frame
from shoal.records import Life
from shoal.v1 import journal_pb2
from shoal.wire import array_spec_from_proto, array_spec_to_proto

Record = Event | TableState

_KEYS = np.dtype("<u8")
_PRIORITIES = np.dtype("<f8")
_TIMES_SAMPLED = np.dtype("<u4")

# No LZ4 block is longer than this many times its compressed form.
_LZ4_MAX_RATIO = 255
# Sequences of one life that a table remembers, in bytes: far above any window.
_MAX_SEEN_BYTES = 1 << 20


def encode_record(record: Record) -> tuple[bytes, tuple[bytes, ...]]:
    """Meta and blobs. Every payload must still have its data."""
    if isinstance(record, TableState):
        return _encode_state(record)
    message = journal_pb2.JournalRecord()
    blobs: tuple[bytes, ...] = ()
    if isinstance(record, Inserted):
        inserted = message.inserted
        inserted.first_key = record.first_key
        inserted.num_keys = record.num_keys
        inserted.actor_id = record.life.actor_id
        inserted.run_id = record.life.run_id
        inserted.sequence = record.sequence
        inserted.priorities.extend(record.priorities.tolist())
        inserted.streams.extend(record.streams)
        inserted.first_steps.extend(record.first_steps)
        inserted.unroll_length = record.unroll_length
        inserted.signature.extend(map(array_spec_to_proto, record.signature))
        blobs = tuple(_data_of(payload) for payload in record.payloads)
    elif isinstance(record, Removed):
        message.removed.keys.extend(record.keys.tolist())
    elif isinstance(record, SampledOnce):
        message.sampled.num_samples = record.num_samples
        message.sampled.keys.extend(record.keys.tolist())
    else:
        message.priorities.keys.extend(record.keys.tolist())
        message.priorities.priorities.extend(record.priorities.tolist())
    # An event that is all zeros must still say what it is.
    getattr(message, _KIND_OF[type(record)]).SetInParent()
    return message.SerializeToString(), blobs


def decode_record(frame: Frame, segment: int) -> Record:
    """What a frame of a segment file says. Payloads have both their data and their location."""
    message = journal_pb2.JournalRecord()
    try:
        message.ParseFromString(bytes(frame.meta))
    except DecodeError as error:
        raise InvalidArgumentError(f"a frame holds no journal record: {error}") from None
    kind = message.WhichOneof("kind")
    if kind == "inserted":
        return _decode_inserted(message.inserted, frame, segment)
    if kind == "state":
        return _decode_state(message.state, frame.blobs)
    if frame.blobs:
        raise InvalidArgumentError(f"a {kind} record has {len(frame.blobs)} blobs instead of none")
    if kind == "removed":
        return Removed(_array(message.removed.keys, np.uint64))
    if kind == "sampled":
        return SampledOnce(message.sampled.num_samples, _array(message.sampled.keys, np.uint64))
    if kind == "priorities":
        keys = _array(message.priorities.keys, np.uint64)
        priorities = _array(message.priorities.priorities, np.float64)
        _check_length("priorities", len(priorities), len(keys))
        return PrioritiesSet(keys, priorities)
    raise InvalidArgumentError("a journal record is of no kind that this release knows")


def record_bytes(record: Record) -> int:
    """About how many bytes of a file it takes; never much less than that."""
    if isinstance(record, Inserted):
        per_key = 8 * record.priorities.size + 12 * len(record.streams) + 16 * len(record.payloads)
        return 512 + per_key + sum(payload.size for payload in record.payloads)
    if isinstance(record, TableState):
        lives = sum(64 + seen.bits.bit_length() // 8 for seen in record.lives)
        return 1024 + record.keys.nbytes + record.priorities.nbytes + record.times_sampled.nbytes + lives
    return 64 + (18 if isinstance(record, PrioritiesSet) else 10) * int(record.keys.size)


_KIND_OF = {Inserted: "inserted", Removed: "removed", SampledOnce: "sampled", PrioritiesSet: "priorities"}


def _data_of(payload: StoredPayload) -> bytes:
    if payload.data is None:
        raise ValueError("a payload that is not in memory cannot be written")
    return payload.data


def _decode_inserted(message: journal_pb2.InsertedRecord, frame: Frame, segment: int) -> Inserted:
    num_keys, num_blobs = message.num_keys, len(frame.blobs)
    if num_keys < 1 or num_blobs not in (1, num_keys):
        raise InvalidArgumentError(f"an insert of {num_keys} items has {num_blobs} payloads")
    for name in ("priorities", "streams", "first_steps"):
        if number := len(getattr(message, name)):
            _check_length(name, number, num_keys)
    payloads = tuple(
        StoredPayload(len(blob), crc32c(blob), bytes(blob), Location(segment, offset))
        for blob, offset in zip(frame.blobs, frame.blob_offsets, strict=True)
    )
    return Inserted(
        first_key=message.first_key,
        num_keys=num_keys,
        life=Life(message.actor_id, message.run_id),
        sequence=message.sequence,
        payloads=payloads,
        priorities=_array(message.priorities, np.float64),
        streams=tuple(message.streams),
        first_steps=tuple(message.first_steps),
        unroll_length=message.unroll_length,
        signature=tuple(map(array_spec_from_proto, message.signature)),
    )


def _encode_state(state: TableState) -> tuple[bytes, tuple[bytes, ...]]:
    message = journal_pb2.JournalRecord()
    record = message.state
    record.kind = state.kind
    record.signature.extend(map(array_spec_to_proto, state.signature))
    record.next_key = state.next_key
    record.num_keys = state.keys.size
    record.has_priorities = state.priorities.size > 0
    record.has_times_sampled = state.times_sampled.size > 0
    for name, value in state.counters.items():
        record.counters[name] = value
    for seen in state.lives:
        bits = seen.bits.to_bytes((seen.bits.bit_length() + 7) // 8, "little")
        record.lives.add(
            actor_id=seen.life.actor_id,
            run_id=seen.life.run_id,
            highest=seen.highest,
            seen=lz4.block.compress(bits, store_size=True),
        )
    blobs = [_pack(state.keys, _KEYS)]
    if record.has_priorities:
        blobs.append(_pack(state.priorities, _PRIORITIES))
    if record.has_times_sampled:
        blobs.append(_pack(state.times_sampled, _TIMES_SAMPLED))
    return message.SerializeToString(), tuple(blobs)


def _decode_state(message: journal_pb2.StateRecord, blobs: Sequence[memoryview]) -> TableState:
    dtypes: list[np.dtype] = [_KEYS]
    if message.has_priorities:
        dtypes.append(_PRIORITIES)
    if message.has_times_sampled:
        dtypes.append(_TIMES_SAMPLED)
    _check_length("arrays of a state", len(blobs), len(dtypes))
    arrays = iter([_unpack(blob, message.num_keys, dtype) for blob, dtype in zip(blobs, dtypes, strict=True)])
    return TableState(
        kind=message.kind,
        signature=tuple(map(array_spec_from_proto, message.signature)),
        next_key=message.next_key,
        keys=next(arrays).astype(np.uint64),
        priorities=(next(arrays) if message.has_priorities else np.empty(0)).astype(np.float64),
        times_sampled=(next(arrays) if message.has_times_sampled else np.empty(0)).astype(np.uint32),
        counters=dict(message.counters),
        lives=tuple(map(_decode_life, message.lives)),
    )


def _decode_life(message: journal_pb2.SeenLife) -> SeenLife:
    size = int.from_bytes(message.seen[:4], "little")
    if len(message.seen) < 4 or size > _MAX_SEEN_BYTES:
        raise InvalidArgumentError(f"a life claims {size} bytes of sequences: at most {_MAX_SEEN_BYTES}")
    bits = _decompress(message.seen[4:], size)
    life = Life(message.actor_id, message.run_id)
    return SeenLife(life, message.highest, int.from_bytes(bits, "little"))


def _pack(array: np.ndarray, dtype: np.dtype) -> bytes:
    little_endian = np.ascontiguousarray(array, dtype)
    return bytes(lz4.block.compress(little_endian.tobytes(), store_size=False))


def _unpack(blob: memoryview, num_keys: int, dtype: np.dtype) -> np.ndarray:
    return np.frombuffer(_decompress(blob, num_keys * dtype.itemsize), dtype)


def _decompress(data: bytes | memoryview, size: int) -> bytes:
    # A claim is never an allocation.
    if size > _LZ4_MAX_RATIO * len(data):
        raise InvalidArgumentError(f"{len(data)} bytes of LZ4 cannot hold {size} bytes")
    try:
        raw = bytes(lz4.block.decompress(data, uncompressed_size=size))
    except lz4.block.LZ4BlockError as error:
        raise InvalidArgumentError(f"no LZ4 block of {size} bytes: {error}") from None
    _check_length("bytes", len(raw), size)
    return raw


def _array(values: Sequence[float], dtype: type) -> np.ndarray:
    return np.fromiter(values, dtype, len(values))


def _check_length(what: str, number: int, expected: int) -> None:
    if number != expected:
        raise InvalidArgumentError(f"{number} {what} where {expected} are needed")
