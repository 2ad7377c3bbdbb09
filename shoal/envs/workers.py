"""Slow environments in worker processes, stepped in parallel.

`make_worker_env` is called by `shoal.envs.make`. Each worker steps its share of the environments one after
another; observations, actions and flags lie in memory that all have mapped. A worker that hangs or dies is
started again. One caller at a time, from any thread; only `close` may come while another call is under
way, which then raises.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate

import numpy as np

from shoal.config.tree import EnvSection
from shoal.cpus import num_cpus
from shoal.envs.batch import BatchEnv, EnvStep, Slots
from shoal.envs.restarts import Restarts, seed_after
from shoal.envs.shared_columns import Rows, SlotArrays, create_block, map_block
from shoal.envs.worker_handle import Worker, await_replies, end_workers
from shoal.envs.worker_process import MakePart, Report
from shoal.errors import ShoalError, SpecMismatchError, UserError

log = logging.getLogger(__name__)

# Importing, making, first resetting and first stepping environments may load or compile things.
_START_TIMEOUT_S = 120.0
_CLOSE_TIMEOUT_S = 2.0


def make_worker_env(
    section: EnvSection,
    num_envs: int,
    make_part: Callable[[int], BatchEnv],
    restarts: Restarts | None = None,
) -> BatchEnv:
    """`num_envs` environments in `section.workers` processes, each made by `make_part(its share)` there.

    `make_part` can be pickled. Environment i of the whole gets seed + i, if parts seed theirs that way.
    `restarts`: the count that these environments share with others of the same actor. Raises UserError.
    """
    env = WorkerEnv(section, num_envs, make_part, restarts or Restarts(section.max_restarts))
    try:
        env.start()
    except BaseException:
        env.close()
        raise
    return env


class WorkerEnv:
    """The parts of all workers as one `BatchEnv`: per policy, the slots of worker 0, then of worker 1, ..."""

    waits = True

    def __init__(self, section: EnvSection, num_envs: int, make_part: MakePart, restarts: Restarts) -> None:
        self._section = section
        self._make_part = make_part
        self._restarts = restarts
        self.num_restarts = 0
        self._start_timeout_s = max(_START_TIMEOUT_S, section.step_timeout_s)
        self._shares = _shares(num_envs, section.workers or num_cpus())
        self._workers: list[Worker] = []
        self._seed = 0
        self._rows: list[dict[str, Rows]] = []
        self._block = -1
        self._arrays: dict[str, SlotArrays] = {}
        self._steps: dict[str, EnvStep] = {}
        self.slots: dict[str, Slots] = {}
        self._calling = threading.Lock()
        self._usable = True
        self._closed = False

    def start(self) -> None:
        """Starts the workers and lays out the block; to be called once."""
        # Without a close the interpreter would wait for the workers, and they for it.
        atexit.register(self.close)
        for index in range(len(self._shares)):
            self._workers.append(self._start_worker(index))
        replies = await_replies(self._workers, self._start_timeout_s)
        parts: list[dict[str, Slots]] = []
        for worker in self._workers:
            part = self._meet(worker, replies[worker.index])
            if isinstance(part, str):
                raise UserError(f"{self._describe(worker)} {part} while it made them")
            parts.append(part)
            self._check_specs(worker, part, parts[0])
        self._lay_out(parts)
        for worker in self._workers:
            worker.attach(self._block, self.slots, self._rows[worker.index])

    def reset(self, seed: int) -> dict[str, EnvStep]:
        with self._call():
            self._seed = seed
            for worker in self._workers:
                worker.reset(seed + worker.first_env)
            self._finish(self._start_timeout_s)
        return self._steps

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, EnvStep]:
        with self._call():
            for policy, arrays in self._arrays.items():
                np.copyto(arrays.action, actions[policy], casting="same_kind")
            for worker in self._workers:
                worker.step()
            is_first = any(worker.num_steps == 1 for worker in self._workers)
            self._finish(self._start_timeout_s if is_first else self._section.step_timeout_s)
        return self._steps

    def close(self) -> None:
        self._closed = True
        atexit.unregister(self.close)
        if not self._calling.acquire(blocking=False):
            # Ends the call that is under way.
            end_workers(self._workers, 0.0)
            self._calling.acquire()
        try:
            end_workers(self._workers, _CLOSE_TIMEOUT_S)
            for worker in self._workers:
                worker.close()
            self._workers = []
            # Whoever still reads a step keeps the memory.
            self._arrays, self._steps = {}, {}
            if self._block >= 0:
                os.close(self._block)
                self._block = -1
        finally:
            self._calling.release()

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Once a call raised, replies may be on their way that would answer the next one."""
        with self._calling:
            if self._closed or not self._usable:
                raise ShoalError("these environments are closed, or an earlier call raised: make new ones")
            self._usable = False
            yield
            self._usable = True

    def _finish(self, timeout_s: float) -> None:
        """Waits for all replies; workers that give none are started again."""
        replies = await_replies(self._workers, timeout_s)
        for worker in tuple(self._workers):
            reply = replies[worker.index]
            if isinstance(reply, str):
                self._restart(worker, reply)
            elif reply:
                self._hear(worker, reply)

    def _hear(self, worker: Worker, reply: bytes) -> None:
        """Raises what the worker raised."""
        report = Report.decode(reply)
        for level, name, message in report.log:
            logging.getLogger(name).log(level, "worker %d: %s", worker.index, message)
        if report.error and report.is_user_error:
            raise UserError(report.error)
        if report.error:
            raise ShoalError(f"{self._describe(worker)} raised at step {worker.num_steps}:\n{report.error}")
        while worker.num_restarts < report.num_restarts:
            worker.num_restarts += 1
            fault = report.log[-1][-1].partition("\n")[0] if report.log else "started an environment again"
            self._count(f"worker {worker.index}: {fault}")

    def _restart(self, worker: Worker, fault: str) -> None:
        """Puts a worker with another seed in the place of one that hangs or is dead."""
        fault = f"{fault} at step {worker.num_steps}"
        while fault:
            worker.kill()
            self._check_open()
            fault = f"{self._describe(worker)} {fault}"
            log.warning("%s; it is started again", fault)
            self._count(fault)
            worker = self._workers[worker.index] = self._start_worker(worker.index)
            # A close that came before did not know this worker; one that comes now does.
            self._check_open()
            fault = self._bring_up(worker)

    def _bring_up(self, worker: Worker) -> str:
        """To its first observations. Returns its fault, if it hangs or dies again."""
        part = self._meet(worker, await_replies([worker], self._start_timeout_s)[worker.index])
        if isinstance(part, str):
            return f"{part} while it was started again"
        self._check_specs(worker, part, self.slots)
        worker.attach(self._block, self.slots, self._rows[worker.index])
        worker.reset(seed_after(self._seed, worker.first_env, self._restarts.num_restarts))
        reply = await_replies([worker], self._start_timeout_s)[worker.index]
        if isinstance(reply, str):
            return f"{reply} at its first reset"
        if reply:
            self._hear(worker, reply)
        return ""

    def _meet(self, worker: Worker, reply: bytes | str) -> dict[str, Slots] | str:
        """The slots of a worker by its first reply, or why there are none."""
        if isinstance(reply, str):
            return reply
        self._hear(worker, reply)
        return worker.receive_slots()

    def _count(self, fault: str) -> None:
        self._restarts.count(fault)
        self.num_restarts += 1

    def _start_worker(self, index: int) -> Worker:
        first_env, num_envs = self._shares[index]
        return Worker(index, first_env, num_envs, self._make_part)

    def _lay_out(self, parts: Sequence[Mapping[str, Slots]]) -> None:
        self._rows = [{} for _ in parts]
        for policy, slots in parts[0].items():
            nums = [part[policy].num for part in parts]
            *starts, total = accumulate(nums, initial=0)
            for rows, start, num in zip(self._rows, starts, nums, strict=True):
                rows[policy] = Rows(start, num)
            self.slots[policy] = Slots(slots.spec, total)
        self._block = create_block(self.slots)
        self._arrays = map_block(self._block, self.slots)
        self._steps = {policy: arrays.step for policy, arrays in self._arrays.items()}

    def _check_specs(self, worker: Worker, part: Mapping[str, Slots], others: Mapping[str, Slots]) -> None:
        mine = {policy: slots.spec for policy, slots in part.items()}
        theirs = {policy: slots.spec for policy, slots in others.items()}
        if mine != theirs:
            said, before = (
                "; ".join(f"{policy}: {spec.describe()}" for policy, spec in specs.items())
                for specs in (mine, theirs)
            )
            raise SpecMismatchError(
                f"{self._describe(worker)} shows other spaces than the others, all must be alike: "
                f"{said} instead of {before}"
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ShoalError("these environments were closed while they were stepped")

    def _describe(self, worker: Worker) -> str:
        return f"environment {self._section.id!r}: {worker.describe()}"


def _shares(num_envs: int, max_workers: int) -> list[tuple[int, int]]:
    """First environment and number of them, per worker; as equal as can be."""
    num_workers = min(num_envs, max_workers)
    ends = [num_envs * (index + 1) // num_workers for index in range(num_workers)]
    return [(start, end - start) for start, end in zip([0, *ends], ends, strict=False)]
