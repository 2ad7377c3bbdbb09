"""What durability costs, how long recovery takes, and a table that is larger than its memory.

The files are in the benchmark's temporary directory: what `fsync` costs is what that file system makes of it.
Payloads that are read from disk come mostly from the page cache here, as they do in production while the
operating system has memory to spare.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from benchmarks import replay_traffic as traffic
from benchmarks.console import Progress, print_table, rate
from benchmarks.replay_data import sized
from benchmarks.replay_rig import Shard, shards
from shoal.wire import encode_trajectory

MODES: dict[str, dict[str, object]] = {
    "memory": {"durability": "memory"},
    "memory, snapshot every second": {"durability": "memory", "snapshot_every_s": 1.0},
    "wal": {"durability": "wal"},
    "fsync": {"durability": "fsync"},
}
SEQUENCE: dict[str, object] = {"kind": "sequence", "max_bytes": 8 << 30}
ITEM_BYTES = 10_000


async def measure_modes(directory: Path, seconds: float, progress: Progress) -> None:
    items = sized(traffic.BATCH, ITEM_BYTES)
    payloads = [encode_trajectory(item) for item in items]
    rows = []
    for mode, settings in MODES.items():
        progress.show("durability", len(rows), len(MODES))
        async with shards(directory / f"mode-{len(rows)}", SEQUENCE | settings) as servers:
            inserted = await traffic.insert(servers, items, seconds)
            taken = await traffic.ack_latencies(servers[0], payloads, seconds)
        cuts = statistics.quantiles(taken, n=100)
        rows.append([mode, rate(inserted.items_per_s), rate(inserted.mb_per_s), _ms(cuts[49]), _ms(cuts[98])])
    progress.clear()
    header = ["durability", "insert items/s", "MB/s", "ack p50", "ack p99"]
    note = f"Items of 10 kB, {traffic.PER_APPEND} an append; latency with one append on its way."
    print_table("Cost of durability", header, rows, [note])


async def measure_recovery(directory: Path, num_bytes: int, progress: Progress) -> None:
    """Reading the files, as the shard itself times it; the whole start beside it."""
    rows = []
    for item_bytes in (10_000, 100_000):
        payloads = [encode_trajectory(item) for item in sized(64, item_bytes)]
        num_items = num_bytes // item_bytes
        shard = Shard(directory / f"recovery-{item_bytes}", "shard", SEQUENCE | {"durability": "wal"})
        try:
            empty_s = await shard.start()
            progress.show("recovery", item_bytes, 200_000)
            await traffic.fill([shard], payloads, num_items)
            shard.kill()
            full_s = await shard.start()
            stats = await shard.stats()
            reading_s = await shard.metric("shoal_replay_recovery_seconds")
        finally:
            shard.kill()
        gigabytes = stats.disk_bytes / 1e9
        rows.append(
            [
                f"{item_bytes // 1000} kB",
                f"{stats.num_items:,} of {num_items:,}",
                f"{gigabytes:.2f}",
                f"{empty_s:.2f} s",
                f"{full_s:.2f} s",
                f"{reading_s:.2f} s",
                f"{reading_s / gigabytes:.2f} s",
            ]
        )
    progress.clear()
    header = [
        "item",
        "items recovered",
        "GB on disk",
        "start when empty",
        "after kill -9",
        "reading",
        "per GB",
    ]
    print_table("Recovery (wal)", header, rows)


async def measure_beyond_memory(directory: Path, num_bytes: int, seconds: float, progress: Progress) -> None:
    """The same table with all payloads in memory, and with a tenth of them."""
    item_bytes = 100_000
    payloads = [encode_trajectory(item) for item in sized(64, item_bytes)]
    rows = []
    for title, budget in (("all in memory", None), ("a tenth in memory", num_bytes // 10)):
        progress.show("a table larger than its memory", len(rows), 2)
        table = SEQUENCE | {"durability": "wal", "max_ram_bytes": budget}
        async with shards(directory / f"beyond-{len(rows)}", table) as servers:
            before = servers[0].rss_bytes
            await traffic.fill(servers, payloads, num_bytes // item_bytes)
            sampled = await traffic.sample(servers, seconds)
            stats = await servers[0].stats()
            grown = servers[0].rss_bytes - before
        held = [_mb(stats.num_bytes), _mb(stats.ram_bytes), _mb(grown)]
        rows.append([title, *held, rate(sampled.items_per_s), rate(sampled.mb_per_s)])
    progress.clear()
    header = ["items of 100 kB", "held MB", "payloads in RAM MB", "RSS grew MB", "sample items/s", "MB/s"]
    print_table("A table larger than its memory (wal)", header, rows)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f}"
