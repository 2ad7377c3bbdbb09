"""`kill -9` of a shard under load, at random moments, and its return on the same directory."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from shoal.clients.replay_grpc import GrpcReplayClient
from tests.chaos.faults import ROUNDS, VictimShard, files_of, seeded, table_states
from tests.chaos.model import AckedLog, AppendId
from tests.chaos.run import holds, run
from tests.chaos.traffic import Samplers, Writers, client_of
from tests.chaos.validate import Verdict, compare, dump, num_out_of_order, stats_of
from tests.service.replay_server import shard_processes, until

SNAPSHOT_EVERY_S = 0.3
QUEUE_BATCH = 8

DURABILITIES: dict[str, dict[str, object]] = {
    "memory with snapshots": {"durability": "memory", "snapshot_every_s": SNAPSHOT_EVERY_S},
    "wal": {"durability": "wal", "segment_bytes": 1 << 18},
    "fsync": {"durability": "fsync", "segment_bytes": 1 << 18},
}


async def more_acks(log: AckedLog, number: int) -> None:
    acked = len(log.acked)
    await until(lambda: holds(len(log.acked) >= acked + number))


class Kills:
    """Rounds of: load, kill, restart, wait for acks, compare. The writers and their lives stay the same."""

    def __init__(self, shard: VictimShard, writers: Writers, *, takes_snapshots: bool = False) -> None:
        self.takes_snapshots = takes_snapshots
        self.shard = shard
        self.writers = writers
        self.log = writers.log
        self.killed_at = self.silent_at = 0.0
        # When the snapshot before the newest one was complete: the newest began after that.
        self.saved_at = 0.0
        self.back_s: list[float] = []

    async def one(self, moment_s: float) -> Verdict:
        began_at = time.monotonic()
        await more_acks(self.log, 100)
        await until(lambda: holds(self._has_files(since=began_at)))
        await asyncio.sleep(moment_s)
        self.killed_at = time.monotonic()
        self.shard.kill()
        self.saved_at = states_of(self.shard)[0] if self.takes_snapshots else self.killed_at
        await until(lambda: holds(self.log.num_open == 0))
        self.silent_at, acked = time.monotonic(), len(self.log.acked)
        await self.shard.listen()
        listens_at = time.monotonic()
        await until(lambda: holds(len(self.log.acked) > acked))
        self.back_s.append(time.monotonic() - listens_at)
        await self.writers.pause()
        async with client_of(self.shard.address) as client:
            verdict = compare(self.log, await dump(client))
        self.writers.resume()
        return verdict

    def _has_files(self, since: float) -> bool:
        """With snapshots two new ones, so that one that is no longer taken is seen."""
        if self.takes_snapshots:
            states = states_of(self.shard)
            return len(states) == 2 and states[0] > since
        return bool(files_of(self.shard.data))


def states_of(shard: VictimShard) -> list[float]:
    """When the newest two snapshots, which are kept, were complete: as `time.monotonic` counts."""
    offset_s = time.time() - time.monotonic()
    return sorted(end - offset_s for end, _ in table_states(shard.data))[-2:]


@pytest.mark.parametrize("mode", DURABILITIES)
def test_kill_9_under_load(tmp_path: Path, mode: str) -> None:
    """wal, fsync: nothing acked is lost. memory: at most what was acked since the last snapshot."""

    async def test() -> None:
        random = seeded()
        shard, log = VictimShard(tmp_path, table=DURABILITIES[mode]), AckedLog()
        worst_lost = num_lost = 0
        lost_before: set[AppendId] = set()
        async with shard_processes(shard), Writers(shard.address, log) as writers, Samplers(shard.address):
            kills = Kills(shard, writers, takes_snapshots=mode == "memory with snapshots")
            for _ in range(ROUNDS):
                verdict = await kills.one(random.uniform(0.0, 0.8))
                lost, num_lost = verdict.num_lost - num_lost, verdict.num_lost
                worst_lost = max(worst_lost, lost)
                assert verdict.clean, f"{verdict}\n{shard.log}"
                if not kills.takes_snapshots:
                    assert lost == 0, f"{verdict}\n{shard.log}"
                    continue
                bound = log.acked_since(kills.saved_at, kills.silent_at)
                in_interval = log.acked_since(kills.killed_at - SNAPSHOT_EVERY_S, kills.silent_at)
                print(
                    f"{mode}: lost {lost}, acked in the {SNAPSHOT_EVERY_S} s before the kill: {in_interval}, "
                    f"since the last snapshot but one: {bound}"
                )
                assert lost <= bound
                assert num_out_of_order(log, verdict, kills.silent_at, lost_before) == 0
                lost_before = set(verdict.lost)
        print(
            f"{mode}: {ROUNDS} kills: {verdict}; worst loss of a round {worst_lost}; "
            f"acked again after at most {max(kills.back_s):.2f} s with the port back"
        )
        assert verdict.num_acked > 100 * ROUNDS
        assert "Traceback" not in shard.log

    run(test)


def test_kill_9_of_a_queue_under_load(tmp_path: Path) -> None:
    """What was on its way to the sampler is gone, as always; what it had just got may come again."""

    async def test() -> None:
        random = seeded()
        table: dict[str, object] = {"kind": "queue", "max_items": 200, "durability": "wal"}
        shard, log = VictimShard(tmp_path, table=table), AckedLog()
        async with (
            shard_processes(shard),
            Writers(shard.address, log) as writers,
            Samplers(shard.address, batch=QUEUE_BATCH, prefetch=1, keep=True) as sampler,
        ):
            for _ in range(ROUNDS):
                await more_acks(log, 100)
                await asyncio.sleep(random.uniform(0.0, 0.3))
                shard.kill()
                await shard.start()
            await writers.pause()
            async with client_of(shard.address) as client:
                await until(lambda: is_empty(client))
            # The last answer may be on its way.
            await sampler.run_dry()
        verdict = compare(log, sampler.taken)
        bound = ROUNDS * QUEUE_BATCH
        print(
            f"queue, wal: {ROUNDS} kills: acked {verdict.num_acked}, handed out {verdict.num_stored}, "
            f"lost {verdict.num_lost} (on their way: up to {bound}), twice {verdict.num_duplicated}"
        )
        assert verdict.num_corrupt == 0
        assert verdict.num_lost <= bound

    run(test)


async def is_empty(client: GrpcReplayClient) -> bool:
    return (await stats_of(client)).num_items == 0


def test_control_without_files_everything_is_lost_and_the_checker_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        shard, log = VictimShard(tmp_path, table={"durability": "memory"}), AckedLog()
        async with shard_processes(shard):
            async with Writers(shard.address, log) as writers:
                await until(lambda: holds(len(log.acked) > 200))
                await writers.pause()
            shard.kill()
            await shard.start()
            async with client_of(shard.address) as client:
                verdict = compare(log, await dump(client))
        print(f"control, no files: {verdict}")
        assert verdict.num_lost == verdict.num_acked > 200
        assert verdict.num_stored == 0

    run(test)
