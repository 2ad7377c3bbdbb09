"""SIGTERM under load, with 15 s to live: the shard leaves in time, and what it acked is there afterwards."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.chaos.faults import VictimShard
from tests.chaos.model import AckedLog
from tests.chaos.run import holds, run
from tests.chaos.traffic import Samplers, Writers, client_of
from tests.chaos.validate import compare, dump
from tests.service.replay_server import shard_processes, until

# What a spot instance is given; see rpc.drain_s.
GIVEN_S = 15.0
DRAINED_S = 12.0

MODES: dict[str, dict[str, object]] = {
    "wal": {"durability": "wal"},
    "memory with snapshots": {"durability": "memory", "snapshot_every_s": 3600},
    "control without files": {"durability": "memory"},
}


@pytest.mark.parametrize("mode", MODES)
def test_sigterm_under_load(tmp_path: Path, mode: str) -> None:
    """The interval of the snapshots is an hour: what is there afterwards was written on leaving."""

    async def test() -> None:
        shard, log = VictimShard(tmp_path, table=MODES[mode]), AckedLog()
        async with shard_processes(shard):
            async with Writers(shard.address, log, width=400) as writers, Samplers(shard.address):
                await until(lambda: holds(len(log.acked) > 1000))
                started = time.monotonic()
                async with asyncio.timeout(GIVEN_S):
                    code = await shard.terminate()
                took_s = time.monotonic() - started
                acked_before = len(log.acked)
                await shard.start()
                await until(lambda: holds(len(log.acked) > acked_before))
                await writers.pause()
            async with client_of(shard.address) as client:
                verdict = compare(log, await dump(client))
        print(f"{mode}: exit code {code} after {took_s:.2f} s, {verdict}")
        assert code == 0, shard.log
        assert took_s < DRAINED_S
        assert verdict.clean, verdict
        assert "Traceback" not in shard.log
        if "control" in mode:
            assert verdict.num_lost > 1000
        else:
            assert verdict.num_lost == 0, shard.log

    run(test)
