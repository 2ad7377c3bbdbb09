"""Logs of several containers in the order of time, and on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.cli.docker.containers import Container
from shoal.cli.docker.log_stream import backlog, follow_on, merge, parse
from shoal.cli.docker.logs import Printer, choose
from shoal.errors import UserError
from tests.unit.cli.docker.fleet import container


def stamped(second: int, text: str) -> bytes:
    return f"2026-11-17T09:00:{second:02d}.000000000Z {text}".encode()


def test_lines_are_merged_by_time() -> None:
    logs = [
        ("a", iter([stamped(1, "one"), stamped(4, "four")])),
        ("b", iter([stamped(2, "two"), stamped(3, "three"), stamped(5, "")])),
    ]
    assert [(line.container_id, line.text) for line in merge(logs)] == [
        ("a", "one"), ("b", "two"), ("b", "three"), ("a", "four"), ("b", ""),
    ]  # fmt: skip


def test_odd_bytes_are_shown_somehow() -> None:
    assert parse("a", b"2026-11-17T09:00:01.000000000Z \xff ok\r").text == "\N{REPLACEMENT CHARACTER} ok"


class Engine:
    """Two lines are there; a third comes while it is followed, then the container is over."""

    def __init__(self) -> None:
        self.listings = [[container("learner")], [container("learner", Status="exited")]]
        self.asked: list[float | None] = []

    def containers(self) -> list[Container]:
        return self.listings.pop(0) if len(self.listings) > 1 else self.listings[0]

    def log_lines(
        self, container_id: str, *, follow: bool = False, tail: int | None = None, since: float | None = None
    ) -> Iterator[bytes]:
        yield from [stamped(1, "one"), stamped(2, "two")][-(tail or 2) :]
        if follow:
            self.asked.append(since)
            yield stamped(3, "three")


def test_following_begins_where_the_backlog_ended() -> None:
    engine = Engine()
    learner = container("learner")
    old = list(backlog(engine, [learner], 1))
    assert [line.text for line in old] == ["two"]
    new = list(follow_on(engine, {"learner"}, {learner.id: old[-1].time}))
    assert [line.text for line in new] == ["three"], "each line once"
    assert engine.asked == [1794906002.0]


def test_services_that_are_not_there() -> None:
    there = [container("actor", 1), container("actor", 2), container("learner")]
    assert choose(there, [], "shoal") == there
    assert choose(there, ["actor"], "shoal") == there[:2]
    with pytest.raises(UserError, match="project shoal has no service 'acter': it has actor, learner"):
        choose(there, ["acter"], "shoal")
    with pytest.raises(UserError, match="project shoal is not there"):
        choose([], [], "shoal")


def test_lines_have_the_name_in_front(capsys: pytest.CaptureFixture[str]) -> None:
    there = [container("actor", 1), container("actor", 2), container("learner")]
    printer = Printer(there)
    printer.print(there[1].id, "hello")
    printer.learn([container("inference")])
    printer.print(there[2].id, "x | y")
    assert capsys.readouterr().out == "actor-2 | hello\nlearner   | x | y\n"
