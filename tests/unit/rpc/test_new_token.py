"""The token of a compose project: made once, whole, and for its owner only."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.config.connections import SecuritySection
from shoal.rpc.auth import TokenSource
from shoal.rpc.new_token import main, make_token


def test_a_token_is_made_once_and_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert make_token(path)
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o400
    assert not make_token(path)
    assert path.read_text() == text
    assert [file.name for file in tmp_path.iterdir()] == ["token"]
    assert TokenSource(SecuritySection(token_file=path)).accepts(f"Bearer {text.strip()}")


def test_no_two_are_the_same(tmp_path: Path) -> None:
    texts = set()
    for number in range(20):
        assert make_token(tmp_path / str(number))
        texts.add((tmp_path / str(number)).read_text())
    assert len(texts) == 20


def test_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "token"
    assert main([str(path)]) == 0
    assert main([str(path)]) == 0
    assert capsys.readouterr().out == f"made the token in {path}\nkept the token in {path}\n"


def test_a_place_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "none" / "token")]) == 2
    assert capsys.readouterr().err.startswith("error: cannot write the token to ")
    assert main([]) == 2
