"""`make bench-replay`: prints P5, P6 and P9 of the replay with the machine, and what its settings cost.

Speed varies: no figure fails it. Shards are real processes on unix sockets, clients are the ones that actors
and learners use. `--quick` runs everything on a small scale, in about a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import (
    replay_amplification,
    replay_data,
    replay_durability,
    replay_index,
    replay_memory,
    replay_scale,
    replay_versus,
)
from benchmarks.console import Progress
from benchmarks.machine import describe_machine
from benchmarks.replay_pong import Recording, load_or_record

PONG_UNROLL = 20
PARTS = (
    "versus",
    "sizes",
    "durability",
    "recovery",
    "amplification",
    "memory",
    "index",
    "beyond-memory",
)
# Distinct items of each kind that P5 inserts in turn.
NUM_DISTINCT = 512


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    seconds: float
    num_rounds: int
    num_shards: tuple[int, ...]
    recovery_bytes: int
    beyond_bytes: int
    num_transitions: int
    index_repeats: int


FULL = Scale(5.0, 3, (1, 2, 4), 1_000_000_000, 1_000_000_000, 1_000_000, 2000)
QUICK = Scale(0.5, 1, (1, 2), 50_000_000, 50_000_000, 50_000, 100)


class Bench:
    """The parts, by name. Each prints its own table."""

    def __init__(
        self, scale: Scale, cache: Path, directory: Path, num_recorded: int, progress: Progress
    ) -> None:
        self._scale = scale
        self._cache = cache
        self._directory = directory
        self._num_recorded = num_recorded
        self._progress = progress
        self._recording: Recording | None = None

    def part(self, name: str) -> Callable[[], Awaitable[None]]:
        measure: Callable[[], Awaitable[None]] = getattr(self, f"_{name.replace('-', '_')}")
        return measure

    def _pong(self) -> Recording:
        if self._recording is None:
            self._recording = load_or_record(self._cache, self._num_recorded, self._progress)
            self._progress.clear()
        return self._recording

    async def _versus(self) -> None:
        pong = self._pong()
        items = {
            "small": replay_data.cartpole(NUM_DISTINCT),
            "pong": list(itertools.islice(pong.trajectories(PONG_UNROLL), NUM_DISTINCT)),
        }
        scale = self._scale
        await replay_versus.measure(
            self._cache, self._directory, items, scale.seconds, scale.num_rounds, self._progress
        )
        print(f"    Frames: {pong.describe()}.")

    async def _sizes(self) -> None:
        await replay_scale.measure(
            self._directory, self._scale.seconds, self._scale.num_shards, self._progress
        )

    async def _durability(self) -> None:
        await replay_durability.measure_modes(self._directory, self._scale.seconds, self._progress)

    async def _recovery(self) -> None:
        await replay_durability.measure_recovery(self._directory, self._scale.recovery_bytes, self._progress)

    async def _amplification(self) -> None:
        length = replay_data.SMALL_UNROLL
        unrolls = [
            part
            for env in replay_data.cartpole(16, 16 * length)
            for part in replay_data.consecutive(env, length)
        ]
        await replay_amplification.measure(self._directory, unrolls)

    async def _memory(self) -> None:
        await replay_memory.measure(
            self._directory, self._pong(), self._scale.num_transitions, self._progress
        )

    async def _index(self) -> None:
        print()
        replay_index.measure(repeats=self._scale.index_repeats)

    async def _beyond_memory(self) -> None:
        await replay_durability.measure_beyond_memory(
            self._directory, self._scale.beyond_bytes, self._scale.seconds, self._progress
        )


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="everything on a small scale")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--pong-transitions", type=int, default=100_000, help="distinct ones to record from ALE, once"
    )
    parser.add_argument("--cache", type=Path, default=Path(".bench"), help="recordings and Reverb; kept")
    parser.add_argument(
        "--dir", type=Path, help="for the shards' files and sockets; a temporary one if not given"
    )
    return parser.parse_args(given)


async def run(options: argparse.Namespace) -> None:
    progress = Progress()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-", dir=options.dir) as directory:
        scale = QUICK if options.quick else FULL
        bench = Bench(scale, options.cache, Path(directory), options.pong_transitions, progress)
        for name in options.only or PARTS:
            await bench.part(name)()


def main() -> None:
    options = arguments()
    print(describe_machine())
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
