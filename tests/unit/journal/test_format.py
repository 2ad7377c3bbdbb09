"""Records: what is written is what is read, and what cannot be read is refused in bounded memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidArgumentError
from shoal.journal.events import (
    Inserted,
    Location,
    PrioritiesSet,
    Removed,
    SampledOnce,
    SeenLife,
    StoredPayload,
    TableState,
)
from shoal.journal.format import Record, decode_record, encode_record, record_bytes
from shoal.journal.framing import Frame, encode_file_header, encode_frame, scan_frames
from shoal.records import ArraySpec, Life
from shoal.v1 import journal_pb2

U64 = (1 << 64) - 1
keys_lists = st.lists(st.integers(0, U64), max_size=20)
priorities = st.floats(width=64)
names = st.text(max_size=10)
lives = st.builds(Life, names, names)


def array(values: list[Any], dtype: type) -> np.ndarray:
    return np.array(values, dtype)


@st.composite
def inserts(draw: st.DrawFn) -> Inserted:
    num_keys = draw(st.integers(1, 5))
    num_payloads = draw(st.sampled_from([1, num_keys]))
    data = [draw(st.binary(max_size=50)) for _ in range(num_payloads)]

    def per_key(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.one_of(st.just([]), st.lists(values, min_size=num_keys, max_size=num_keys)))

    return Inserted(
        first_key=draw(st.integers(1, U64)),
        num_keys=num_keys,
        life=draw(lives),
        sequence=draw(st.integers(0, U64)),
        payloads=tuple(StoredPayload(len(d), crc32c(d), d) for d in data),
        priorities=array(per_key(priorities), np.float64),
        streams=tuple(per_key(st.integers(0, U64))),
        first_steps=tuple(per_key(st.integers(0, U64))),
        unroll_length=draw(st.integers(0, U64)),
    )


@st.composite
def states(draw: st.DrawFn) -> TableState:
    keys = sorted(draw(st.sets(st.integers(1, U64), max_size=30)))
    some = st.lists(priorities, min_size=len(keys), max_size=len(keys))
    times = st.lists(st.integers(0, (1 << 32) - 1), min_size=len(keys), max_size=len(keys))
    seen = st.builds(SeenLife, lives, st.integers(0, U64), st.integers(0, 1 << 300))
    return TableState(
        kind=draw(names),
        signature=(ArraySpec("observation", "uint8", (84, 84)), ArraySpec("action", "int64", (), 6)),
        next_key=draw(st.integers(1, U64)),
        keys=array(keys, np.uint64),
        priorities=array(draw(st.one_of(st.just([]), some)), np.float64),
        times_sampled=array(draw(st.one_of(st.just([]), times)), np.uint32),
        counters=draw(st.dictionaries(names, priorities, max_size=4)),
        lives=tuple(draw(st.lists(seen, max_size=3))),
    )


def with_keys(keys: list[int]) -> st.SearchStrategy[PrioritiesSet]:
    values = st.lists(priorities, min_size=len(keys), max_size=len(keys))
    return values.map(lambda given: PrioritiesSet(array(keys, np.uint64), array(given, np.float64)))


key_arrays = keys_lists.map(lambda keys: array(keys, np.uint64))
records = st.one_of(
    inserts(),
    st.builds(Removed, key_arrays),
    st.builds(SampledOnce, st.integers(0, U64), key_arrays),
    keys_lists.flatmap(with_keys),
    states(),
)


def frame_of(meta: bytes, blobs: tuple[bytes, ...]) -> Frame:
    data = b"".join([encode_file_header(1), *encode_frame(meta, blobs, 1)])
    [frame] = scan_frames(data)
    assert isinstance(frame, Frame)
    return frame


def plain(value: Any) -> Any:
    """Comparable: arrays as dtype and bytes, so that NaN equals itself; payloads without their place."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tobytes()
    if isinstance(value, float):
        return np.float64(value).tobytes()
    if isinstance(value, StoredPayload):
        return value.size, value.crc32c, value.data
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Inserted | Removed | SampledOnce | PrioritiesSet | TableState):
        return type(value), {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


@given(records)
def test_what_is_written_is_what_is_read(record: Record) -> None:
    frame = frame_of(*encode_record(record))
    again = decode_record(frame, segment=7)
    assert plain(again) == plain(record)
    if isinstance(again, Inserted):
        assert [payload.location for payload in again.payloads] == [
            Location(7, offset) for offset in frame.blob_offsets
        ]


@given(records)
def test_the_estimate_of_the_size_is_not_far_too_low(record: Record) -> None:
    frame = frame_of(*encode_record(record))
    assert record_bytes(record) >= 0.5 * frame.length


def test_a_state_of_1e5_keys_takes_few_bytes() -> None:
    keys = np.arange(1000, 101_000, dtype=np.uint64)
    state = TableState(
        "sequence",
        (),
        101_000,
        keys,
        np.ones(len(keys)),
        np.zeros(len(keys), np.uint32),
        {"num_samples": 3.0},
    )
    frame = frame_of(*encode_record(state))
    print(f"state of 1e5 keys: {frame.length} bytes")
    again = decode_record(frame, 1)
    assert plain(again) == plain(state)
    assert frame.length < 1_000_000


def test_a_payload_that_is_not_in_memory_cannot_be_written() -> None:
    payload = StoredPayload(3, 0, None, Location(1, 2))
    event = Inserted(1, 1, Life("a", "b"), 0, (payload,), np.empty(0))
    with pytest.raises(ValueError, match="not in memory"):
        encode_record(event)


def message(**fields: Any) -> bytes:
    return journal_pb2.JournalRecord(**fields).SerializeToString()


@pytest.mark.parametrize(
    ("meta", "blobs", "reason"),
    [
        (b"\xff\xff\xff", (), "no journal record"),
        (b"", (), "of no kind"),
        (message(removed={"keys": [1]}), (b"x",), "1 blobs instead of none"),
        (message(priorities={"keys": [1, 2], "priorities": [1.0]}), (), "1 priorities where 2"),
        (message(inserted={"first_key": 1, "num_keys": 3}), (b"x", b"y"), "3 items has 2 payloads"),
        (message(inserted={"first_key": 1}), (b"x",), "0 items has 1 payloads"),
        (message(inserted={"num_keys": 2, "streams": [1]}), (b"x",), "1 streams where 2"),
        (message(state={"num_keys": 1}), (), "0 arrays of a state where 1"),
        (message(state={"num_keys": 1 << 60}), (b"x" * 100,), "cannot hold"),
        (message(state={"num_keys": 3}), (b"\x50abcde",), "where|no LZ4"),
        (message(state={"lives": [{"seen": b"\xff\xff\xff\xff"}]}), (b"\x00",), "life claims"),
        (message(state={"lives": [{"seen": b""}]}), (b"\x00",), "life claims"),
        (message(state={"signature": [{"name": "x", "dtype": 99}]}), (b"\x00",), "dtype"),
    ],
)
def test_what_no_journal_writes_is_refused(meta: bytes, blobs: tuple[bytes, ...], reason: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError, match=reason):
            decode_record(frame_of(meta, blobs), 1)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200), st.lists(st.binary(max_size=50), max_size=3))
def test_no_bytes_make_it_fail_in_another_way(meta: bytes, blobs: list[bytes]) -> None:
    try:
        decode_record(frame_of(meta, tuple(blobs)), 1)
    except InvalidArgumentError:
        return
