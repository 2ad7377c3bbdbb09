"""What runs inside an environment worker: its part of the environments, stepped when the actor says so.

`run_worker` is the main function of the processes that `shoal.envs.workers` starts; it ends when it is told
to or when the actor is gone. Commands and replies are a few bytes on a pipe, JSON where they say more, and
everything else is in memory that both have mapped (`shoal.envs.shared_columns`). Single-threaded.

The order: the worker makes its part and says so, with its slots; the actor answers with the block and the
worker's rows; from then on each `RESET` and `STEP` gets one reply. A reply is empty unless there is
something to tell (`Report`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import multiprocessing
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from multiprocessing import reduction
from multiprocessing.connection import Connection

from shoal.envs.batch import BatchEnv, EnvStep, Slots
from shoal.envs.shared_columns import Rows, map_block
from shoal.errors import UserError
from shoal.spec_json import spec_from_json, spec_to_json

# A step is the empty command, as its reply is the empty reply.
STEP = b""
# Followed by the seed.
RESET = b"r"
CLOSE = b"c"

MakePart = Callable[[int], BatchEnv]

# Messages that are logged within one step, and their length: more is a flood.
_MAX_LOG_LINES = 20
_MAX_LINE = 10_000
_F_SETSIG = 10  # from Linux's fcntl.h; the module does not have it before Python 3.13


@dataclass(frozen=True)
class Report:
    """What a reply tells, if anything."""

    # Of environments that the part started again by itself.
    num_restarts: int
    # Level, logger, message.
    log: list[tuple[int, str, str]] = field(default_factory=list)
    # The last words of a command that raised: of a UserError its text, of others the traceback.
    error: str = ""
    is_user_error: bool = False

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decode(data: bytes) -> Report:
        return Report(**json.loads(data))


def encode_slots(slots: Mapping[str, Slots]) -> bytes:
    return json.dumps(
        {policy: {"spec": spec_to_json(one.spec), "num": one.num} for policy, one in slots.items()}
    ).encode()


def decode_slots(data: bytes) -> dict[str, Slots]:
    return {
        policy: Slots(spec_from_json(one["spec"]), one["num"]) for policy, one in json.loads(data).items()
    }


def encode_rows(rows: Mapping[str, Rows]) -> bytes:
    return json.dumps({policy: asdict(one) for policy, one in rows.items()}).encode()


def decode_rows(data: bytes) -> dict[str, Rows]:
    return {policy: Rows(**one) for policy, one in json.loads(data).items()}


def run_worker(conn: Connection, make_part: MakePart, num_envs: int) -> None:
    """Makes the part and serves it until the end."""
    _leave_the_group()
    log = _LogForwarder()
    logging.getLogger().addHandler(log)
    try:
        part = make_part(num_envs)
    except Exception as error:
        conn.send_bytes(_failure(error, 0, log))
        return
    # However the actor ends, its end of the pipe is closed.
    with contextlib.suppress(EOFError, ConnectionError), contextlib.closing(part):
        conn.send_bytes(Report(part.num_restarts, log.take()).encode())
        conn.send_bytes(encode_slots(part.slots))
        _Server(conn, part, log).run()


class _Server:
    """Answers commands."""

    def __init__(self, conn: Connection, part: BatchEnv, log: _LogForwarder) -> None:
        self._conn = conn
        self._part = part
        self._log = log
        self._num_restarts = part.num_restarts
        slots, rows = decode_slots(conn.recv_bytes()), decode_rows(conn.recv_bytes())
        fd = reduction.recv_handle(conn)
        try:
            whole = map_block(fd, slots)
        finally:
            os.close(fd)
        self._arrays = {policy: arrays.part(rows[policy]) for policy, arrays in whole.items()}

    def run(self) -> None:
        while (command := self._conn.recv_bytes()) != CLOSE:
            try:
                self._show(self._carry_out(command))
            except Exception as error:
                self._conn.send_bytes(_failure(error, self._part.num_restarts, self._log))
            else:
                self._conn.send_bytes(self._news())

    def _carry_out(self, command: bytes) -> Mapping[str, EnvStep]:
        if command == STEP:
            # Copies: the actor writes the next actions here, and an environment may keep what it gets.
            return self._part.step({policy: arrays.action.copy() for policy, arrays in self._arrays.items()})
        return self._part.reset(int(command[len(RESET) :]))

    def _show(self, steps: Mapping[str, EnvStep]) -> None:
        for policy, arrays in self._arrays.items():
            arrays.show(steps[policy])

    def _news(self) -> bytes:
        num_restarts = self._part.num_restarts
        if num_restarts == self._num_restarts and not self._log.lines:
            return b""
        self._num_restarts = num_restarts
        return Report(num_restarts, self._log.take()).encode()


class _LogForwarder(logging.Handler):
    """Keeps what is logged in this process for the actor's log: here nobody has set up logging."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.lines) < _MAX_LOG_LINES:
            # With the traceback, if there is one.
            self.lines.append((record.levelno, record.name, self.format(record)[:_MAX_LINE]))

    def take(self) -> list[tuple[int, str, str]]:
        lines, self.lines = self.lines, []
        return lines


def _failure(error: Exception, num_restarts: int, log: _LogForwarder) -> bytes:
    is_user_error = isinstance(error, UserError)
    text = str(error) if is_user_error else "".join(traceback.format_exception(error))
    return Report(num_restarts, log.take(), text, is_user_error).encode()


def _leave_the_group() -> None:
    """A process group of its own: signals to the actor's do not end the worker before the actor drains, and
    the worker is killed together with simulators that it started."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)
    parent = multiprocessing.parent_process()
    if parent is None or sys.platform != "linux":
        return
    # An actor that is killed cannot close a worker, and one that hangs would not see the end of its pipe:
    # have the kernel kill this group when the pipe ends.
    sentinel = parent.sentinel
    with contextlib.suppress(OSError):
        fcntl.fcntl(sentinel, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(sentinel, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([sentinel], [], [], 0)[0]:
        raise SystemExit(1)
