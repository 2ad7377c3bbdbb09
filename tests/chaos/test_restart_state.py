"""Priorities, counters and the limiter after `kill -9` are those of a twin that lived on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_shard import Append, TableStats
from shoal.records import Life
from tests.chaos.faults import VictimShard
from tests.chaos.run import run
from tests.chaos.traffic import client_of, payload
from tests.chaos.validate import TABLE, stats_of
from tests.service.replay_server import shard_processes

ALPHA = 0.6
NUM_ITEMS = 300
NUM_SAMPLED = 200
NUM_UPDATED = 100
TABLE_SETTINGS: dict[str, object] = {
    "durability": "wal",
    "segment_bytes": 1 << 14,
    "alpha": ALPHA,
    "samples_per_insert": 2.0,
    "ratio_tolerance": 1000.0,
    "min_items": 10,
}
# The rest must be equal. Of files and of time there may be more.
NOT_COMPARED = {"disk_bytes", "insert_wait_s", "sample_wait_s", "num_insert_waits", "num_sample_waits"}


async def live(client: GrpcReplayClient) -> None:
    """Appends with priorities, samples, updates; the ack of the last append vouches for all before it."""
    append, sample = await client.open_append(Life("actor", "run"), TABLE), await client.open_sample(TABLE)
    for number in range(NUM_ITEMS):
        await append.send(Append(number, (payload(0, number),), np.array([1 + number % 7], np.float32)))
        await append.receive()
    taken = 0
    while taken < NUM_SAMPLED:
        await sample.request(min(32, NUM_SAMPLED - taken), 1.0)
        taken += len((await sample.receive()).items)
    keys = np.arange(1, NUM_UPDATED + 1, dtype=np.uint64)
    await client.update_priorities(TABLE, keys, np.linspace(0.0, 10.0, NUM_UPDATED))
    await append.send(Append(NUM_ITEMS, (payload(0, NUM_ITEMS),), np.array([3.0], np.float32)))
    await append.receive()
    await append.close()
    await sample.close()


async def sample_until_it_waits(client: GrpcReplayClient) -> tuple[int, dict[int, float]]:
    """How many samples the limiter still allows, and the mass of each item met."""
    stream = await client.open_sample(TABLE)
    taken, masses = 0, dict[int, float]()
    while True:
        await stream.request(64, 0.3)
        items = (await stream.receive()).items
        if not items:
            await stream.close()
            return taken, masses
        taken += len(items)
        masses |= {item.key: item.mass for item in items}


def comparable(stats: TableStats) -> dict[str, object]:
    return {name: value for name, value in vars(stats).items() if name not in NOT_COMPARED}


def expected_masses() -> np.ndarray:
    priorities = np.array([1 + number % 7 for number in range(NUM_ITEMS)] + [3.0])
    priorities[:NUM_UPDATED] = np.linspace(0.0, 10.0, NUM_UPDATED)
    return priorities**ALPHA


def test_priorities_counters_and_limiter_survive_kill_9(tmp_path: Path) -> None:
    async def test() -> None:
        killed = VictimShard(tmp_path, "killed", table=TABLE_SETTINGS)
        twin = VictimShard(tmp_path, "twin", table=TABLE_SETTINGS)
        async with (
            shard_processes(killed, twin),
            client_of(killed.address) as one,
            client_of(twin.address) as other,
        ):
            await asyncio.gather(live(one), live(other))
            before = await stats_of(one)
            killed.kill()
            await killed.start()
            async with client_of(killed.address) as again:
                after = await stats_of(again)
                allowed, masses = await sample_until_it_waits(again)
            twin_allowed, _ = await sample_until_it_waits(other)
        expected = expected_masses()
        errors = [abs(mass - expected[key - 1]) for key, mass in masses.items()]
        print(
            f"before the kill: {before.num_items} items, mass {before.priority_mass:.6f}, "
            f"{before.num_samples} samples; after: {after.num_items}, {after.priority_mass:.6f}, "
            f"{after.num_samples}; samples allowed from here on: {allowed}, its twin: {twin_allowed}; "
            f"mass of {len(masses)} items differs by at most {max(errors):.1e}"
        )
        assert comparable(after) == comparable(before)
        assert allowed == twin_allowed > 0
        assert max(errors) < 1e-6

    run(test)
