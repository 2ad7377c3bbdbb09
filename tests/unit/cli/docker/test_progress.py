"""Lines where no terminal is, one changing line where one is."""

from __future__ import annotations

import io

import pytest

from shoal.cli.docker.progress import CLEAR, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_come_when_something_changed_and_not_too_often() -> None:
    out, times = io.StringIO(), iter([0.0, 3.0, 10.0, 10.0])
    with Progress(out, plain_every_s=10, now=lambda: next(times)) as progress:
        progress.show("one")
        progress.show("one")
        progress.show("two")
        progress.show("two")
        progress.tell("news")
    assert out.getvalue().splitlines() == ["one", "two", "news"]


def test_a_terminal_has_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with Progress(out) as progress:
        progress.show("one")
        progress.show("longer than the line")
    assert out.getvalue() == f"{CLEAR}one{CLEAR}longer th{CLEAR}"


def test_a_terminal_that_is_gone_is_no_error() -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

        def fileno(self) -> int:
            raise OSError

    with Progress(Gone()) as progress:
        progress.show("one")
