"""How many env steps a second the cores could act on and train on if there were nothing but arithmetic.

P2 is a share of this. It is measured in processes that do nothing else, in two ways:
- one thread on every core at the same time; core-seconds are the threads' CPU time, so that other programs do
  not make the limit look lower than it is;
- all cores on one batch after another, by the clock.
Both take the faster memory layout for each of acting and training, and keep freed memory instead of giving it
back to the operating system, which would cost a third of the training time in page faults.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

# glibc: one arena without mmap, never trimmed.
KEEP_MEMORY = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}
MIN_REPEATS = 3


@dataclass(frozen=True)
class Limit:
    """Core-seconds of one env step, at best, and the way of computing that is."""

    forward_s: float
    training_s: float
    num_cores: int
    way: str

    @property
    def steps_per_s(self) -> float:
        return self.num_cores / (self.forward_s + self.training_s)

    def describe(self) -> str:
        forward, training = 1 / self.forward_s, 1 / self.training_s
        return (
            f"{self.steps_per_s:,.0f} steps/s ({self.way}: {forward:,.0f} forward, "
            f"{training:,.0f} trained per second and core)"
        )


def better(limits: list[Limit]) -> Limit:
    return max(limits, key=lambda limit: limit.steps_per_s)


def mean(limits: list[Limit], way: str) -> Limit:
    """Of processes that ran at the same time, or of rounds."""
    return Limit(
        statistics.mean(limit.forward_s for limit in limits),
        statistics.mean(limit.training_s for limit in limits),
        limits[0].num_cores,
        way,
    )


def measure_limit(forward_batch: int, unroll_length: int, batch_envs: int, seconds: float) -> Limit:
    """The better way of computing, for these batch sizes."""
    cores = len(os.sched_getaffinity(0))
    alone = [_start(1, forward_batch, unroll_length, batch_envs, seconds) for _ in range(cores)]
    separate = mean([_result(process, cores) for process in alone], "one thread on each core")
    together = _result(_start(cores, forward_batch, unroll_length, batch_envs, seconds), cores)
    return better([separate, together])


def _start(
    threads: int, forward_batch: int, unroll_length: int, batch_envs: int, seconds: float
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.compute_limit"]
    command += map(str, (threads, forward_batch, unroll_length, batch_envs, seconds))
    environment = {**os.environ, **KEEP_MEMORY, "OMP_NUM_THREADS": str(threads)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def _result(process: subprocess.Popen[str], num_cores: int) -> Limit:
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"measuring the compute limit failed with code {process.returncode}")
    answer = json.loads(output)
    return Limit(answer["forward_s"], answer["training_s"], num_cores, f"{num_cores} threads on one batch")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compute_limit", description=__doc__)
    for name in ("threads", "forward_batch", "unroll_length", "batch_envs"):
        parser.add_argument(name, type=int)
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    times = _measure(given.threads, given.forward_batch, given.unroll_length, given.batch_envs, given.seconds)
    print(json.dumps(dict(zip(("forward_s", "training_s"), times, strict=True))))


def _measure(
    threads: int, forward_batch: int, unroll_length: int, batch_envs: int, seconds: float
) -> tuple[float, float]:
    """Core-seconds per env step of acting and of training."""
    import torch

    from benchmarks import bare_torch

    torch.set_num_threads(threads)
    num_actions = 6
    stacks = torch.randint(0, 256, (forward_batch, bare_torch.NUM_FRAMES, *bare_torch.FRAME_SHAPE))
    stacks = stacks.to(torch.uint8)
    unrolls = bare_torch.made_up_unrolls(unroll_length, batch_envs, num_actions)
    forward_s, training_s = [], []
    for layout in (torch.contiguous_format, torch.channels_last):
        policy = bare_torch.nature_cnn(num_actions, layout)
        took = _median_s(lambda policy=policy: bare_torch.act(policy, stacks), threads, seconds)
        forward_s.append(took / forward_batch)
        learner = bare_torch.Learner(policy)
        took = _median_s(lambda learner=learner: learner.step(unrolls), threads, seconds)
        training_s.append(took / (unroll_length * batch_envs))
    return min(forward_s), min(training_s)


def _median_s(call: Callable[[], object], threads: int, seconds: float) -> float:
    """Core-seconds of one call: of one thread its CPU time, of several the time that they had the cores."""
    clock = time.thread_time if threads == 1 else time.perf_counter
    call()
    took: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(took) < MIN_REPEATS:
        began = clock()
        call()
        took.append(clock() - began)
    return threads * statistics.median(took)


if __name__ == "__main__":
    main()
