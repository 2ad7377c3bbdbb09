"""The actor's end of one environment worker: its process, its pipe, and how it is put to death.

Used by `shoal.envs.workers` only. One caller at a time, except that `kill` may come from another thread.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from multiprocessing import reduction

from shoal.envs.batch import Slots
from shoal.envs.shared_columns import Rows
from shoal.envs.worker_process import (
    CLOSE,
    RESET,
    STEP,
    MakePart,
    decode_slots,
    encode_rows,
    encode_slots,
    run_worker,
)

# What is killed is gone at once, unless the kernel is busy with it.
_KILL_TIMEOUT_S = 2.0
# How a worker died is reported by the server that forked it, which may have to wait for its turn.
_REPORT_TIMEOUT_S = 10.0
# Waiting is done in pieces of this length.
_PIECE_S = 1.0
# Forked by a server process that has none of our event loop, threads and signal handlers; what that
# imports once they need not import each.
_PRELOAD = ["shoal.envs.worker_process", "shoal.envs.make"]


class Worker:
    """A process that is started at once."""

    def __init__(self, index: int, first_env: int, num_envs: int, make_part: MakePart) -> None:
        self.index = index
        self.first_env = first_env
        self.num_envs = num_envs
        # Of its last reset, and steps since then.
        self.seed: int | None = None
        self.num_steps = 0
        # Restarts of environments by the worker itself, as far as they are counted.
        self.num_restarts = 0
        multiprocessing.set_forkserver_preload(_PRELOAD)
        context = multiprocessing.get_context("forkserver")
        self.conn, theirs = context.Pipe()
        # No daemon: those may not have processes of their own, and environments may.
        self.process = context.Process(
            target=run_worker, args=(theirs, make_part, num_envs), name=f"shoal-env-worker-{index}"
        )
        self.process.start()
        theirs.close()
        # What becomes ready when it replies, and when it dies: the latter even if others hold its pipe.
        self.fds = (self.conn.fileno(), self.process.sentinel)

    def describe(self) -> str:
        last = self.first_env + self.num_envs - 1
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"worker {self.index} (environments {self.first_env} to {last}{seed})"

    def reset(self, seed: int) -> None:
        self.seed, self.num_steps = seed, 0
        self._send(RESET + str(seed).encode())

    def step(self) -> None:
        self.num_steps += 1
        self._send(STEP)

    def receive_slots(self) -> dict[str, Slots] | str:
        """They come with its first reply. If it dies before: how, in words that continue a sentence."""
        try:
            return decode_slots(self.conn.recv_bytes())
        except (EOFError, OSError):
            return self.death()

    def attach(self, fd: int, slots: Mapping[str, Slots], rows: Mapping[str, Rows]) -> None:
        with contextlib.suppress(ConnectionError):
            self.conn.send_bytes(encode_slots(slots))
            self.conn.send_bytes(encode_rows(rows))
            assert self.process.pid is not None
            reduction.send_handle(self.conn, fd, self.process.pid)

    def death(self) -> str:
        """How it died, in words that continue a sentence."""
        self.process.join(_REPORT_TIMEOUT_S)
        code = self.process.exitcode
        if code is None:
            return "died, and nobody knows how"
        if code < 0:
            return f"died of signal {-code} ({signal.strsignal(-code)})"
        return f"died with exit code {code}"

    def ask_to_end(self) -> None:
        self._send(CLOSE)

    def kill(self) -> None:
        pid = self.process.pid
        assert pid is not None
        # First its group, with whatever it started; before it has one of its own there is nothing else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        self.process.kill()
        self.process.join(_KILL_TIMEOUT_S)

    def close(self) -> None:
        """Frees what is held of a process that is over."""
        self.conn.close()
        if not self.process.is_alive():
            self.process.close()

    def _send(self, command: bytes) -> None:
        # One that is dead shows when its reply is awaited.
        with contextlib.suppress(ConnectionError):
            self.conn.send_bytes(command)


def end_workers(workers: Sequence[Worker], timeout_s: float) -> None:
    """Lets them close their environments; those that are not done in time are killed."""
    for worker in workers:
        worker.ask_to_end()
    deadline = time.monotonic() + timeout_s
    for worker in workers:
        worker.process.join(max(deadline - time.monotonic(), 0.0))
    for worker in workers:
        worker.kill()


def await_replies(workers: Sequence[Worker], timeout_s: float) -> dict[int, bytes | str]:
    """By index of the worker: its reply, or why there is none, in words that continue a sentence."""
    replies: dict[int, bytes | str] = {}
    poll = select.poll()
    by_fd = {}
    for worker in workers:
        for fd in worker.fds:
            poll.register(fd, select.POLLIN)
            by_fd[fd] = worker
    left_s = timeout_s
    while len(replies) < len(workers) and left_s > 0:
        # While this process was stopped the workers were perhaps stopped too: a piece counts once.
        piece_s = min(left_s, _PIECE_S)
        events = poll.poll(piece_s * 1e3)
        if not events:
            left_s -= piece_s
        for fd, _ in events:
            worker = by_fd[fd]
            if worker.index not in replies:
                replies[worker.index] = _reply(worker, fd)
                for seen in worker.fds:
                    poll.unregister(seen)
    for worker in workers:
        replies.setdefault(worker.index, f"did not answer within {timeout_s:g} s")
    return replies


def _reply(worker: Worker, fd: int) -> bytes | str:
    try:
        if fd == worker.fds[0] or worker.conn.poll():
            return worker.conn.recv_bytes()
    except (EOFError, OSError):
        pass
    return worker.death()
