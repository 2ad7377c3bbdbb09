"""One side is far faster than the other: memory stays bounded, and the ratio of samples to inserts holds."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_shard import TableStats
from tests.chaos.faults import VictimShard
from tests.chaos.model import AckedLog
from tests.chaos.run import holds, run
from tests.chaos.traffic import Samplers, Writers, client_of, payload
from tests.chaos.validate import percentile, stats_of
from tests.service.replay_server import shard_processes, until

# Floats per row that make a payload of about 64 kB.
LARGE = 5500
LARGE_BYTES = len(payload(0, 0, LARGE))
SAMPLES_PER_INSERT = 2.0
TOLERANCE = 64.0
BATCH = 8
NUM_INSERTS = 300
NUM_INSERTS_IN_ALL = 1500
MAX_BYTES = 16 << 20
WINDOW = 16
NUM_WRITERS = 3
# Items per second: the sampler's pace follows, and a moment in which nothing ran must not make it crawl.
MIN_SPEED = 100.0
# Of the program besides what the table holds: what is on its way in and out, and the allocator.
FIXED_OVERHEAD_BYTES = 40 << 20
MIB = 1 << 20

LIMITED: dict[str, object] = {
    "samples_per_insert": SAMPLES_PER_INSERT,
    "ratio_tolerance": TOLERANCE,
    "min_items": 32,
    "max_bytes": MAX_BYTES,
}
QUEUE: dict[str, object] = {"kind": "queue", "max_items": 100_000, "max_bytes": MAX_BYTES}


@pytest.mark.parametrize("kind", ["queue", "sequence"])
def test_writers_ten_times_faster_than_the_sampler(tmp_path: Path, kind: str) -> None:
    """The shard holds what it may and no more, the writers keep a window, and the ratio is what was set."""

    async def test() -> None:
        table = QUEUE if kind == "queue" else LIMITED
        shard, log = VictimShard(tmp_path, table=table), AckedLog()
        wanted = 1.0 if kind == "queue" else SAMPLES_PER_INSERT
        async with shard_processes(shard), client_of(shard.address) as client:
            most = Most(empty_rss=shard.rss_bytes)
            async with Writers(shard.address, log, number=NUM_WRITERS, window=WINDOW, width=LARGE) as writers:
                speed = await speed_until_blocked(client)
                before = after = await stats_of(client)
                pause_s = BATCH / (speed / 10 * wanted)
                async with Samplers(shard.address, batch=BATCH, prefetch=1, pause_s=pause_s):
                    while after.num_inserted < before.num_inserted + NUM_INSERTS:
                        after = await most.look(client, shard, writers)
                # Faster from here on: far more is to come in than may be held.
                async with Samplers(shard.address, batch=BATCH):
                    at_end = after
                    while at_end.num_inserted < NUM_INSERTS_IN_ALL:
                        at_end = await most.look(client, shard, writers)
        ratio = (after.num_samples - before.num_samples) / (after.num_inserted - before.num_inserted)
        error = abs(ratio / wanted - 1)
        print(
            f"{kind}: writers without a limit {speed:.0f} items/s, sampler a tenth of it; "
            f"{at_end.num_inserted * LARGE_BYTES / MIB:.0f} MiB came in, cap {MAX_BYTES / MIB:.0f} MiB, "
            f"held {most.num_bytes / MIB:.1f} MiB at most, "
            f"resident memory grew by {most.rss / MIB:.1f} MiB at most; "
            f"unacked appends at most {most.num_unacked} of {NUM_WRITERS * WINDOW}; "
            f"inserts waited {after.num_insert_waits} times, {after.insert_wait_s:.1f} s in all; "
            f"samples per insert {ratio:.3f}, wanted {wanted:g}: error {error:.1%}"
        )
        assert most.num_bytes <= MAX_BYTES
        assert most.rss <= MAX_BYTES + FIXED_OVERHEAD_BYTES
        assert most.num_unacked <= NUM_WRITERS * WINDOW
        assert after.num_insert_waits > before.num_insert_waits
        assert error <= 0.05

    run(test)


@dataclass
class Most:
    """The highest of everything that was seen."""

    empty_rss: int
    rss: int = 0
    num_bytes: int = 0
    num_unacked: int = 0

    async def look(self, client: GrpcReplayClient, shard: VictimShard, writers: Writers) -> TableStats:
        await asyncio.sleep(0.01)
        stats = await stats_of(client)
        self.rss = max(self.rss, shard.rss_bytes - self.empty_rss)
        self.num_bytes = max(self.num_bytes, stats.num_bytes)
        self.num_unacked = max(self.num_unacked, writers.num_unacked)
        return stats


async def speed_until_blocked(client: GrpcReplayClient) -> float:
    """Items per second that the writers insert before they have to wait for samples, `MIN_SPEED` at least."""
    started = time.monotonic()
    while not (stats := await stats_of(client)).num_insert_waits:
        await asyncio.sleep(0.01)
    return max(MIN_SPEED, stats.num_inserted / (time.monotonic() - started))


@pytest.mark.parametrize("limited", [True, False], ids=["limited", "control without a limit"])
def test_a_starved_sampler_waits_instead_of_sampling_the_same_again(tmp_path: Path, limited: bool) -> None:
    async def test() -> None:
        table = LIMITED if limited else {"min_items": LIMITED["min_items"]}
        shard, log = VictimShard(tmp_path, table=table), AckedLog()
        async with shard_processes(shard), client_of(shard.address) as client:
            async with (
                Writers(shard.address, log, number=1, pause_s=0.01) as writers,
                Samplers(shard.address, batch=32, prefetch=4) as samplers,
            ):
                await until(lambda: holds(len(log.acked) >= 200))
                await writers.pause()
                # What is paid for is taken, and then no more.
                if limited:
                    await samplers.run_dry()
                taken = samplers.num_items
                started = time.monotonic()
                empty = samplers.num_empty
                await until(lambda: holds(samplers.num_empty > empty or samplers.num_items > taken + 10_000))
                waited_s = time.monotonic() - started
            stats = await stats_of(client)
        reuse = [samplers.times_sampled[key] for key in range(1, stats.num_inserted + 1)]
        paid = SAMPLES_PER_INSERT * (stats.num_inserted - 32) + TOLERANCE
        print(
            f"{'limited' if limited else 'no limit'}: inserted {stats.num_inserted}, "
            f"sampled {stats.num_samples} (paid for: {paid:.0f}), "
            f"reuse per item p50 {percentile(reuse, 0.5)}, p95 {percentile(reuse, 0.95)}, max {max(reuse)}; "
            f"inserts between an item and its sample p95 {percentile(samplers.keys_behind, 0.95)}; "
            f"the sampler waited {stats.num_sample_waits} times, {stats.sample_wait_s:.1f} s in all; "
            f"last look took {waited_s:.2f} s"
        )
        if limited:
            assert stats.num_samples <= paid
            assert samplers.num_items == taken
            assert stats.num_sample_waits > 0
        else:
            assert stats.num_samples > 2 * paid

    run(test)
