"""What of an append request is counted before it is parsed."""

from __future__ import annotations

import pytest

from services.replay.servicer import MAX_APPEND_FIELDS, MAX_HELLO_BYTES, _parse_append
from shoal.errors import LimitError
from shoal.v1 import replay_service_pb2 as pb

LARGE = b"x" * (2 * MAX_APPEND_FIELDS)


@pytest.mark.parametrize(
    "more",
    [b"", b"\x78\x96\x01", b"\x79" + bytes(8), b"\x7a\x05\xff\xff\xff\xff\xff", b"\x7d" + bytes(4)],
    ids=["none", "number", "64 bits", "bytes", "32 bits"],
)
def test_fields_of_a_newer_release_are_left_to_the_parser(more: bytes) -> None:
    request = pb.AppendRequest(items=pb.AppendItems(sequence=7, trajectories=[LARGE, b"second"]))
    parsed = _parse_append(request.SerializeToString() + more)
    assert (parsed.items.sequence, len(parsed.items.trajectories)) == (7, 2)


def test_fields_are_counted_over_all_pieces() -> None:
    piece = pb.AppendRequest(items=pb.AppendItems(trajectories=[b"x"] * 100)).SerializeToString()
    many = MAX_APPEND_FIELDS // 100
    assert len(_parse_append(piece * (many - 10)).items.trajectories) == 100 * (many - 10)
    with pytest.raises(LimitError, match="send fewer"):
        _parse_append(piece * (many + 10))


def test_a_hello_is_bounded_over_all_pieces() -> None:
    piece = pb.AppendRequest(hello=pb.AppendHello(table="x" * (MAX_HELLO_BYTES // 2))).SerializeToString()
    assert _parse_append(piece).hello.table
    with pytest.raises(LimitError, match="hello"):
        _parse_append(piece * 2)
