"""Forks writers and kills them with SIGKILL at random moments; run as a program by the tests.

    kill_writers.py checkpoints|unprotected|versions DIRECTORY ROUNDS SEED

A process of its own: it must have no threads when it forks. Prints one JSON object with what it found.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np

from services.learner.checkpoint import CheckpointStore, read_checkpoint
from services.learner.progress import Progress
from services.learner.versions import VersionCounter
from shoal.errors import CheckpointError
from shoal.records import ArraySpec, DiscreteAction, EnvSpec

SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (3,)),), DiscreteAction(2))


def tensors_of(step: int) -> dict[str, np.ndarray]:
    """Contents that tell their step, large enough for a kill to land inside a write."""
    return {f"layer/{n}": np.full((64, 1024), step, np.float32) for n in range(8)}


def write_checkpoints(root: Path, first_step: int, tell: Callable[[int], None]) -> NoReturn:
    store = CheckpointStore(root, keep=3)
    store.prepare()
    step = first_step
    while True:
        store.save(tensors_of(step), Progress(learner_steps=step).to_json(), SPEC, "config")
        tell(step)
        step += 1


def write_unprotected(root: Path, first_step: int, tell: Callable[[int], None]) -> NoReturn:
    """The control: the files of a good checkpoint, written straight under their final name."""
    scratch = CheckpointStore(root.with_name(f"{root.name}-scratch"), keep=1)
    scratch.prepare()
    good = scratch.save(tensors_of(first_step), Progress(learner_steps=first_step).to_json(), SPEC, "config")
    step = first_step
    while True:
        shutil.copytree(good, root / f"{step:06d}-step-{step}")
        tell(step)
        step += 1


def use_versions(root: Path, _first: int, tell: Callable[[int], None]) -> NoReturn:
    root.mkdir(parents=True, exist_ok=True)
    counter = VersionCounter(root / "policy_version", block=8)
    while True:
        tell(counter.next())


Writer = Callable[[Path, int, Callable[[int], None]], NoReturn]


def kill_one(writer: Writer, root: Path, first: int, rng: random.Random) -> list[int]:
    """One writer's life. Returns the numbers that it said were safe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            writer(root, first, lambda number: void(os.write(writing, number.to_bytes(8, "little"))))
        finally:
            os._exit(1)
    os.close(writing)
    # The moment is random from the first completed write on; a writer that dies by itself is an error.
    told = os.read(reading, 8)
    select.select([], [], [], rng.uniform(0.0, 0.02))
    os.kill(child, signal.SIGKILL)
    while part := os.read(reading, 1 << 16):
        told += part
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if not told or not os.WIFSIGNALED(status):
        sys.exit("a writer died by itself")
    return [int.from_bytes(told[i : i + 8], "little") for i in range(0, len(told) - len(told) % 8, 8)]


def void(_: object) -> None:
    return None


def count_torn(root: Path) -> int:
    torn = 0
    for path in root.iterdir():
        if path.name.startswith(".tmp-"):
            continue
        try:
            found = read_checkpoint(path)
        except CheckpointError:
            torn += 1
            continue
        step = found.progress.learner_steps
        if any((array != step).any() for array in found.tensors.values()):
            sys.exit("mixed contents were loaded")
    return torn


def newest_step(root: Path, last_safe: int) -> int:
    """What a learner that starts now goes on from."""
    newest = CheckpointStore(root, keep=3).newest()
    if newest is None or newest.progress.learner_steps < last_safe:
        sys.exit("a checkpoint that was said to be safe is gone")
    return newest.progress.learner_steps


def main(kind: str, directory: str, rounds: str, seed: str) -> None:
    root, rng = Path(directory), random.Random(int(seed))
    totals = {"rounds": int(rounds), "torn": 0, "leftovers": 0, "numbers": 0, "gone_back": 0, "loaded": 0}
    last = -1
    for _ in range(int(rounds)):
        if kind == "versions":
            told = kill_one(use_versions, root, 0, rng)
            totals["gone_back"] += sum(b <= a for a, b in zip([last, *told], told, strict=False))
            last = told[-1]
        elif kind == "checkpoints":
            told = kill_one(write_checkpoints, root, last + 1, rng)
            totals["leftovers"] += sum(path.name.startswith(".tmp-") for path in root.iterdir())
            totals["torn"] += count_torn(root)
            last = newest_step(root, told[-1])
            totals["loaded"] += 1
        else:
            told = kill_one(write_unprotected, root, 0, rng)
            totals["torn"] += count_torn(root)
            shutil.rmtree(root)
        totals["numbers"] += len(told)
    print(json.dumps(totals))


if __name__ == "__main__":
    main(*sys.argv[1:])
