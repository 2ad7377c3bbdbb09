"""P5: insert and sample, shoal against Reverb, in turns within one run.

Both have a server process and a client process, one writer and one reader, take arrays and hand out decoded
arrays. Reverb is measured in two ways: step by step as its documentation shows, and with a whole unroll as
one step, which is what shoal stores; the ratios to both are printed.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks import replay_traffic as traffic
from benchmarks.console import Progress, print_table, rate
from benchmarks.replay_reverb import ReverbSide, start_reverb
from benchmarks.replay_rig import shards
from shoal.records import Trajectory

TARGETS = {"insert": 3.0, "sample": 1.5}
WAYS = ("steps", "whole")
MAX_ITEMS = 50_000
KINDS = {"small": "CartPole, 32 steps", "pong": "Pong, 20 frames of 84x84"}

# (who, action, kind) -> rates of the rounds
Rates = dict[tuple[str, str, str], list[traffic.Rate]]


async def measure(
    cache: Path,
    directory: Path,
    items: dict[str, Sequence[Trajectory]],
    seconds: float,
    num_rounds: int,
    progress: Progress,
) -> None:
    """`items` by kind, all of one size."""
    columns = {kind: [t.columns for t in trajectories] for kind, trajectories in items.items()}
    rates: Rates = defaultdict(list)
    with start_reverb(cache, directory, columns) as side:
        for kind, trajectories in items.items():
            table: dict[str, object] = {"kind": "sequence", "max_items": MAX_ITEMS, "max_bytes": 8 << 30}
            async with shards(directory / f"p5-{kind}", table) as servers:
                for number in range(num_rounds):
                    progress.show(f"P5, {kind} items", number, num_rounds)
                    inserted = await traffic.insert(servers, trajectories, seconds)
                    rates["shoal", "insert", kind].append(inserted)
                    _reverb(side, rates, "insert", kind, seconds)
                    rates["shoal", "sample", kind].append(await traffic.sample(servers, seconds))
                    _reverb(side, rates, "sample", kind, seconds)
    progress.clear()
    _print(rates, num_rounds, side)


def _reverb(side: ReverbSide | str, rates: Rates, action: str, kind: str, seconds: float) -> None:
    if isinstance(side, str):
        return
    for way in WAYS:
        rates[way, action, kind].append(traffic.Rate(*side.run(action, kind, way, seconds)))


def _print(rates: Rates, num_rounds: int, side: ReverbSide | str) -> None:
    rows = []
    for kind, title in KINDS.items():
        for action, target in TARGETS.items():
            ours = _median(rates["shoal", action, kind])
            row = [f"{action}, {title}", _both(ours)]
            for way in WAYS:
                theirs = rates.get((way, action, kind))
                row.append(_both(_median(theirs)) if theirs else "-")
            for way in WAYS:
                theirs = rates.get((way, action, kind))
                row.append(f"{ours.items_per_s / _median(theirs).items_per_s:.1f}x" if theirs else "-")
            rows.append([*row, f"{target:g}x"])
    header = ["items/s (MB/s)", "shoal", "Reverb by steps", "Reverb whole", "vs steps", "vs whole", "target"]
    notes = [
        f"Medians of {num_rounds} rounds in turns. One writer, one reader; batches of {traffic.BATCH}.",
        "By steps: row by row, as Reverb's documentation shows. Whole: an unroll as one step of Reverb's.",
    ]
    if isinstance(side, str):
        notes.append(f"Reverb did not run: {side}")
    print_table("P5  replay against Reverb 0.14, decoded bytes", header, rows, notes)


def _median(rates: Sequence[traffic.Rate]) -> traffic.Rate:
    return traffic.Rate(
        statistics.median(r.items_per_s for r in rates), statistics.median(r.mb_per_s for r in rates)
    )


def _both(figures: traffic.Rate) -> str:
    return f"{rate(figures.items_per_s)} ({rate(figures.mb_per_s)})"
