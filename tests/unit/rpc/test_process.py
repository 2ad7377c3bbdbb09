"""The parts of a service's frame that need no process: log lines and the time left for draining."""

from __future__ import annotations

import logging
import re
import sys

import pytest

from shoal.config import Config
from shoal.rpc.process import LineFormatter, ServiceContext, with_id


def _format(message: str, service_id: str = "shard-1", **fields: object) -> str:
    record = logging.makeLogRecord(
        {"msg": message, "levelname": "INFO", "created": 0.25, "msecs": 250.0} | fields
    )
    return LineFormatter("replay", service_id).format(record)


def test_a_record_is_one_line_of_time_level_service_id_message() -> None:
    assert _format("hello") == "1970-01-01T00:00:00.250Z INFO replay shard-1 hello"


def test_texts_cannot_forge_a_record() -> None:
    line = _format("peer says %s", args=("a\r\n1970-01-01 INFO replay x forged",), service_id="100%s\nid")
    assert "\n" not in line
    assert "\r" not in line
    assert "100%s\\nid peer says a\\r\\n1970" in line


def test_a_traceback_follows_the_line() -> None:
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        text = _format("oh", exc_info=sys.exc_info())
    assert re.fullmatch(r".* oh\nTraceback .*\nRuntimeError: broken", text, re.DOTALL)


def test_the_time_for_draining_runs_from_the_first_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("shoal.rpc.process.time.monotonic", lambda: now)
    context = ServiceContext("learner", Config())
    assert context.id == "learner"
    assert context.grace_s() == context.config.rpc.drain_s == 10.0
    now = 200.0
    assert context.grace_s() == 10.0
    context.stop()
    assert context.stopping.is_set()
    now = 204.0
    context.stop()
    assert context.grace_s() == pytest.approx(6.0)
    now = 300.0
    assert context.grace_s() == 0.0


@pytest.mark.parametrize("name", ["actor", "inference", "replay"])
def test_a_service_without_a_name_is_called_as_its_host(name: str) -> None:
    assert ServiceContext(name, with_id(name, Config(), "box-7")).id == "box-7"
    given = Config.model_validate({name: {"id": "mine"}})
    assert with_id(name, given, "box-7") is given


def test_the_learner_needs_no_name() -> None:
    assert ServiceContext("learner", with_id("learner", Config(), "box-7")).id == "learner"
