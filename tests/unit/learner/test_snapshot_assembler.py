"""Chunks of weights put together: whole and right, or not at all."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.clients.weights_grpc import SnapshotAssembler
from shoal.errors import LimitError, UnavailableError
from shoal.v1 import weights_service_pb2 as pb

DATA = bytes(range(256)) * 4


def chunks_of(version: int, data: bytes = DATA, size: int = 100) -> list[pb.SubscribeResponse]:
    return [
        pb.SubscribeResponse(
            version=version,
            total_bytes=len(data),
            sha256=hashlib.sha256(data).digest(),
            offset=offset,
            data=data[offset : offset + size],
        )
        for offset in range(0, len(data), size)
    ]


def make(current_version: int = -1, max_bytes: int = 1 << 20) -> SnapshotAssembler:
    return SnapshotAssembler(current_version, max_bytes)


def push(assembler: SnapshotAssembler, chunks: list[pb.SubscribeResponse]) -> None:
    """Chunks of which none may complete a version."""
    for chunk in chunks:
        assert assembler.add(chunk) is None, "a torn version came out"


@given(size=st.integers(1, 2000), versions=st.lists(st.integers(0, 2**62), unique=True, max_size=5))
def test_versions_one_after_another(size: int, versions: list[int]) -> None:
    assembler = make()
    for version in sorted(versions):
        *others, last = chunks_of(version, size=size)
        assert all(assembler.add(chunk) is None for chunk in others)
        snapshot = assembler.add(last)
        assert snapshot is not None
        assert (snapshot.version, snapshot.data) == (version, DATA)


@pytest.mark.parametrize("lost", range(len(chunks_of(1))))
def test_a_lost_chunk(lost: int) -> None:
    assembler = make()
    chunks = chunks_of(1)
    del chunks[lost]
    # The next version follows, as it would on the wire.
    with pytest.raises(UnavailableError, match="torn weights"):
        push(assembler, chunks + chunks_of(2))


@given(position=st.integers(0, len(DATA) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit(position: int, bit: int) -> None:
    chunks = chunks_of(1)
    chunk = chunks[position // 100]
    flipped = bytearray(chunk.data)
    flipped[position % 100] ^= 1 << bit
    chunk.data = bytes(flipped)
    with pytest.raises(UnavailableError, match="does not have its SHA-256"):
        push(make(), chunks)


def test_chunks_in_another_order_repeated_or_empty() -> None:
    first, second, *_ = chunks_of(1)
    for wrong in ([second], [first, first], [first, chunks_of(1)[2]], [pb.SubscribeResponse(version=1)]):
        with pytest.raises(UnavailableError, match="torn weights"):
            push(make(), wrong)


def test_more_bytes_than_were_announced() -> None:
    chunk = chunks_of(1, size=2000)[0]
    chunk.total_bytes -= 1
    with pytest.raises(UnavailableError, match="torn weights"):
        make().add(chunk)


def test_versions_that_mix() -> None:
    assembler = make()
    assembler.add(chunks_of(1)[0])
    with pytest.raises(UnavailableError, match="a chunk of version 2 after 100 of 1024 bytes of version 1"):
        assembler.add(chunks_of(2)[1])


def test_a_version_that_goes_back() -> None:
    assembler = make(current_version=5)
    with pytest.raises(UnavailableError, match="version 5 after 5"):
        assembler.add(chunks_of(5)[0])


def test_a_size_above_the_limit_is_refused_before_anything_is_kept() -> None:
    for claim in (1025, 1 << 31, (1 << 64) - 1):
        chunk = chunks_of(1)[0]
        chunk.total_bytes = claim
        with pytest.raises(
            LimitError, match=rf"weights of {claim} bytes are above limits.max_tensor_bytes \(1024\)"
        ):
            make(max_bytes=1024).add(chunk)
    assert make(max_bytes=1024).add(chunks_of(1, size=2000)[0]) is not None
