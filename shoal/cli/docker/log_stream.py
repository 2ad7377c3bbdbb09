"""Lines of several containers' logs as one stream: what is there, in the order of time, then as it comes.

`backlog` and `follow_on` are called one after the other from the main thread; each container that is followed
has a thread of its own, since the SDK blocks while nothing is written.
"""

from __future__ import annotations

import contextlib
import heapq
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from shoal.cli.docker.containers import Container

# How often to look for containers that came, or came back.
LOOK_EVERY_S = 1.0


class Engine(Protocol):
    """What `shoal.cli.docker.engine.Project` gives."""

    def containers(self) -> list[Container]: ...

    def log_lines(
        self, container_id: str, *, follow: bool = False, tail: int | None = None, since: float | None = None
    ) -> Iterator[bytes]: ...


@dataclass(frozen=True, order=True)
class Line:
    """`time` as the engine writes it: UTC, always of the same width, so that texts sort as times do."""

    time: str
    container_id: str
    text: str


def time_text(time: datetime) -> str:
    """In the engine's way."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def parse(container_id: str, raw: bytes) -> Line:
    time, _, text = raw.decode(errors="replace").partition(" ")
    return Line(time, container_id, text.rstrip("\r"))


def backlog(engine: Engine, containers: Sequence[Container], tail: int | None) -> Iterator[Line]:
    """What was written so far, merged by time."""
    return merge((each.id, engine.log_lines(each.id, tail=tail)) for each in containers)


def merge(logs: Iterable[tuple[str, Iterator[bytes]]]) -> Iterator[Line]:
    streams = [_lines(container_id, raw) for container_id, raw in logs]
    return heapq.merge(*streams, key=lambda line: line.time)


def _lines(container_id: str, raw: Iterator[bytes]) -> Iterator[Line]:
    return (parse(container_id, each) for each in raw)


def follow_on(
    engine: Engine,
    services: set[str],
    newest: Mapping[str, str],
    on_listing: Callable[[Sequence[Container]], None] = lambda containers: None,
) -> Iterator[Line]:
    """What is written from now on; `newest` is when the last line that was seen of a container was written.

    Containers that come later, or come back, are followed too. Ends when none of them runs.
    """
    lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
    seen = dict(newest)
    threads: dict[str, threading.Thread] = {}
    while True:
        listed = [each for each in engine.containers() if each.service in services]
        on_listing(listed)
        for each in listed:
            thread = threads.get(each.id)
            if each.is_running and (thread is None or not thread.is_alive()):
                threads[each.id] = _start_following(engine, each.id, seen.get(each.id), lines)
        yield from _waiting(lines, seen)
        if not any(each.is_running for each in listed) and not any(t.is_alive() for t in threads.values()):
            yield from _waiting(lines, seen)
            return


def _start_following(
    engine: Engine, container_id: str, after: str | None, lines: queue.SimpleQueue[Line]
) -> threading.Thread:
    def follow() -> None:
        since = None if after is None else _unix_time(after)
        # When the engine goes away the listing says so; when the command ends nobody wants to know.
        with contextlib.suppress(Exception):
            for raw in engine.log_lines(container_id, follow=True, since=since):
                line = parse(container_id, raw)
                # `since` is not exact: the engine repeats what was written within the same moment.
                if after is None or line.time > after:
                    lines.put(line)

    # A daemon: it may be blocked for ever when the user has seen enough.
    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    return thread


def _waiting(lines: queue.SimpleQueue[Line], seen: dict[str, str]) -> Iterator[Line]:
    """Lines for about as long as until the next look."""
    try:
        line = lines.get(timeout=LOOK_EVERY_S)
        while True:
            seen[line.container_id] = line.time
            yield line
            line = lines.get_nowait()
    except queue.Empty:
        return


def _unix_time(text: str) -> float:
    return datetime.fromisoformat(text[:26] + "+00:00").timestamp()
