"""The file with the returns of random play."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from shoal.untrained import NAME, encode_untrained, read_untrained


def test_what_was_written_is_read_by_policy(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(encode_untrained({"a": [1.0, -2.5, 3.0, 0.0], "b": [1.0, 2.0, 3.0]}))
    assert read_untrained(tmp_path, "a") == (1.0, -2.5, 3.0, 0.0)
    assert read_untrained(tmp_path, "b") == (), "three say too little"
    assert read_untrained(tmp_path, "c") == ()
    assert read_untrained(tmp_path / "elsewhere", "a") == ()


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"returns": []}', b'{"returns": {"a": 3}}', b'{"returns": {"a": ["x", 1, 2, 3]}}'],
)
def test_a_foreign_file_is_ignored_and_said(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert read_untrained(tmp_path, "a") == ()
    assert "does not hold returns of random play" in caplog.text


def test_returns_that_are_no_numbers_say_nothing(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b'{"returns": {"a": [NaN, 1, 2, 3]}}')
    assert read_untrained(tmp_path, "a") == ()
