"""Insert and sample rates by item size and by number of shards. One writer and one reader feed all shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import replay_traffic as traffic
from benchmarks.console import Progress, print_table, rate
from benchmarks.replay_data import sized
from benchmarks.replay_rig import shards

SIZES = {"1 kB": 1_000, "10 kB": 10_000, "100 kB": 100_000, "1 MB": 1_000_000}
# Of distinct data per size, and of payloads in one append or batch: below the limit of a message.
MAX_BYTES = 32_000_000


async def measure(directory: Path, seconds: float, num_shards: Sequence[int], progress: Progress) -> None:
    """Print one table. The data is noise: what compression saves elsewhere is not saved here."""
    rows = []
    for title, num_bytes in SIZES.items():
        at_once = max(min(traffic.BATCH, MAX_BYTES // num_bytes), 1)
        items = sized(at_once, num_bytes)
        for number in num_shards:
            progress.show("rates by size and shards", len(rows), len(SIZES) * len(num_shards))
            table: dict[str, object] = {"kind": "sequence", "max_bytes": 1 << 30}
            async with shards(directory / f"scale-{num_bytes}-{number}", table, number) as servers:
                inserted = await traffic.insert(servers, items, seconds)
                sampled = await traffic.sample(servers, seconds, at_once)
            figures = [inserted.items_per_s, inserted.mb_per_s, sampled.items_per_s, sampled.mb_per_s]
            rows.append([title, str(number), *map(rate, figures)])
    progress.clear()
    header = ["item", "shards", "insert items/s", "MB/s", "sample items/s", "MB/s"]
    print_table("Rates by item size and number of shards, one client", header, rows)
