"""P6: what a million Pong transitions take in a shard's memory.

Every env's frames are stored once, in unrolls of one env each. A recording that is shorter than a million is
inserted again and again: a shard keeps every copy that it is sent, so its memory knows no difference.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from benchmarks import replay_traffic as traffic
from benchmarks.console import Progress, print_table
from benchmarks.replay_pong import Recording
from benchmarks.replay_rig import shards
from shoal.wire import encode_trajectory

TARGET_GB = 0.3
MILLION = 1_000_000
UNROLLS = (20, 80)
# What a million stacks of four frames take as they are.
RAW_STACKS_GB = 84 * 84 * 4 * MILLION / 1e9


async def measure(directory: Path, recording: Recording, num_transitions: int, progress: Progress) -> None:
    rows = []
    for unroll_length in UNROLLS:
        progress.show("memory of Pong transitions", len(rows), len(UNROLLS))
        trajectories = list(recording.trajectories(unroll_length))
        payloads = [encode_trajectory(trajectory) for trajectory in trajectories]
        sizes = [trajectory.num_transitions for trajectory in trajectories]
        totals = itertools.accumulate(itertools.cycle(sizes))
        num_items = next(i for i, total in enumerate(totals, 1) if total >= num_transitions)
        table: dict[str, object] = {"kind": "sequence", "max_bytes": 8 << 30}
        async with shards(directory / f"p6-{unroll_length}", table) as servers:
            before = servers[0].rss_bytes
            await traffic.fill(servers, payloads, num_items)
            after = servers[0].rss_bytes
            stats = await servers[0].stats()
        if stats.num_items != num_items:
            raise RuntimeError(f"the shard holds {stats.num_items} of {num_items} items")
        grown = after - before
        rows.append(
            [
                f"T = {unroll_length}",
                f"{num_transitions:,}",
                f"{num_items:,}",
                f"{stats.num_bytes / num_transitions:.0f}",
                f"{grown / num_transitions:.0f}",
                f"{before / 1e6:.0f} MB",
                f"{after / 1e6:.0f} MB",
                f"{grown / num_transitions * MILLION / 1e9:.3f} GB",
            ]
        )
    progress.clear()
    header = [
        "unroll",
        "transitions",
        "items",
        "payload bytes each",
        "RSS bytes each",
        "RSS before",
        "RSS after",
        "per million",
    ]
    notes = [
        f"Target: at most {TARGET_GB} GB per million; raw stacks of four frames: {RAW_STACKS_GB:.0f} GB.",
        f"Distinct: {recording.describe()}.",
    ]
    if num_transitions < MILLION:
        notes.append("Fewer than a million: what does not grow with their number weighs too much.")
    print_table("P6  memory of a shard per million Pong transitions", header, rows, notes)
