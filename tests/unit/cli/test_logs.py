"""Which lines of the services' logs the user gets to see."""

from __future__ import annotations

from pathlib import Path

from shoal.cli.logs import MAX_PER_POLL, LogWatch
from shoal.rpc.process import LineFormatter


def record(level: str, text: str) -> str:
    return f"2026-01-01T00:00:00.000Z {level} actor actor-0 {text}\n"


def test_warnings_and_errors_once_each(tmp_path: Path) -> None:
    log = tmp_path / "actor-0.log"
    log.write_text(record("WARNING", "of an earlier session"))
    watch = LogWatch({"actor-0": log})
    with log.open("a") as file:
        file.write(
            record("INFO", "fine") + record("WARNING", "shard away for 1 s") + record("ERROR", "disk full")
        )
        file.write("Traceback (most recent call last):\n")
        file.write(record("WARNING", "shard away for 2 s"))
    assert watch.new_warnings() == ["actor-0: shard away for 1 s", "actor-0: disk full"]
    assert watch.new_warnings() == []


def test_only_errors(tmp_path: Path) -> None:
    log = tmp_path / "log"
    watch = LogWatch({"actor-0": log})
    log.write_text(record("WARNING", "shard away") + record("ERROR", "disk full"))
    assert watch.new_warnings(only_errors=True) == ["actor-0: disk full"]
    with log.open("a") as file:
        file.write(record("WARNING", "shard away"))
    assert watch.new_warnings() == ["actor-0: shard away"], "what was held back before may be told later"


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    watch = LogWatch({"replay-0": log})
    assert watch.new_warnings() == []
    whole = record("WARNING", "queue is full")
    log.write_text(whole[:40])
    assert watch.new_warnings() == []
    log.write_text(whole)
    assert watch.new_warnings() == ["replay-0: queue is full"]


def test_a_flood_is_cut_short(tmp_path: Path) -> None:
    log = tmp_path / "log"
    watch = LogWatch({"a": log})
    log.write_text("".join(record("WARNING", "x" * n) for n in range(1, 100)))
    warnings = watch.new_warnings()
    assert len(warnings) == MAX_PER_POLL + 1
    assert warnings[-1] == f"{99 - MAX_PER_POLL} more warnings; see the logs"


def test_format_is_that_of_the_services(tmp_path: Path) -> None:
    import logging

    log = tmp_path / "log"
    watch = LogWatch({"learner-0": log})
    entry = logging.LogRecord("x", logging.WARNING, "f", 1, "no data for %d s", (30,), None)
    log.write_text(LineFormatter("learner", "learner").format(entry) + "\n")
    assert watch.new_warnings() == ["learner-0: no data for 30 s"]
