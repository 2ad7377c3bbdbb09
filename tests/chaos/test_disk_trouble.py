"""A disk that is full, read-only or slow under load: nothing acked is lost, it shows, it passes."""

from __future__ import annotations

import asyncio
import dataclasses
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.replay.storage.files import why
from shoal.clients.replay_shard import Outcome
from tests.chaos.disks import DISKS, Disk, FailingLayer, LimitedFiles, can_mount
from tests.chaos.faults import VictimShard, frozen_copy
from tests.chaos.model import AckedLog
from tests.chaos.run import holds, run
from tests.chaos.traffic import Samplers, Writers, client_of
from tests.chaos.validate import Verdict, compare, recovered, stats_of
from tests.service.replay_server import shard_processes, until

# A payload of about 64 kB: larger than what a limited file takes, so that not even a new file helps.
LARGE = 5500
SLOW_S = 0.2
DEGRADED_METRIC = "shoal_replay_degraded"


def scraped(shard: VictimShard, name: str) -> float:
    """A metric of the shard's one table."""
    with urllib.request.urlopen(f"http://{shard.announced('metrics')}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples if s.name == name]
    assert len(samples) == 1, f"{name} is not in the metrics"
    return float(samples[0].value)


async def found_in(copy: Path, log: AckedLog) -> Verdict:
    """What a new shard would make of a directory."""
    items, _ = await recovered(copy)
    return compare(log, items)


class Story:
    """Load, trouble, its end; the directory as a kill would leave it, in the worst moment and at the end."""

    def __init__(self, tmp_path: Path, disk: Disk) -> None:
        self.disk = disk
        self.log = AckedLog()
        self.reasons: set[str] = set()
        self.num_sampled_meanwhile = 0
        self._tmp_path = tmp_path
        self._then = AckedLog()

    async def live_through(self) -> None:
        shard, log = self.disk.shard, self.log
        async with (
            shard_processes(shard),
            Writers(shard.address, log, width=LARGE, window=8, failover_after_s=4.0) as writers,
            Samplers(shard.address, batch=4, prefetch=1, pause_s=0.01) as samplers,
        ):
            await until(lambda: holds(len(log.acked) > 50))
            self.disk.begin()
            await until(lambda: self._shows_trouble(True))
            sampled = samplers.num_items
            if self.disk.withholds_acks:
                late = (Outcome.TIMED_OUT, Outcome.PENDING)
                await until(lambda: holds(any(log.outcomes[outcome] for outcome in late)))
            else:
                acked = len(log.acked)
                await until(lambda: holds(len(log.acked) > acked + 50))
            await until(lambda: holds(samplers.num_items > sampled + 100))
            self.num_sampled_meanwhile = samplers.num_items - sampled
            self._then = dataclasses.replace(log, acked=dict(log.acked))
            frozen_copy(shard, self.disk.data, self._tmp_path / "then")
            self.disk.end()
            await until(lambda: self._shows_trouble(False))
            acked = len(log.acked)
            await until(lambda: holds(len(log.acked) > acked + 50))
            await writers.pause()
            frozen_copy(shard, self.disk.data, self._tmp_path / "finally")

    async def _shows_trouble(self, expected: bool) -> bool:
        """In statistics and metrics alike."""
        async with client_of(self.disk.shard.address) as client:
            reason = (await stats_of(client)).degraded
        self.reasons |= {reason} - {""}
        metric = await asyncio.to_thread(scraped, self.disk.shard, DEGRADED_METRIC)
        return bool(reason) is expected and metric == expected

    async def verdicts(self) -> tuple[Verdict, Verdict]:
        then = await found_in(self._tmp_path / "then", self._then)
        return then, await found_in(self._tmp_path / "finally", self.log)


@pytest.mark.parametrize(
    ("kind", "durability"),
    [
        ("files of limited size", "fsync"),
        ("full file system", "wal"),
        ("read-only", "wal"),
        ("read-only", "fsync"),
    ],
)
def test_a_disk_that_refuses(tmp_path: Path, kind: str, durability: str) -> None:
    if kind == "full file system" and not can_mount():
        pytest.skip("needs root, to mount a small disk: EFBIG stands for ENOSPC here")

    async def test() -> None:
        story = Story(tmp_path, DISKS[kind](tmp_path, {"durability": durability}))
        await story.live_through()
        then, finally_ = await story.verdicts()
        print(
            f"{kind}, {durability}: {sorted(story.reasons)}; "
            f"sampled meanwhile {story.num_sampled_meanwhile}; "
            f"killed then: {then}; killed at the end: {finally_}"
        )
        for verdict in (then, finally_):
            assert verdict.num_lost == 0
            assert verdict.clean
        reason = why(OSError(story.disk.errno, ""))
        # Beside it perhaps that the disk is slow.
        assert any(reason in shown for shown in story.reasons)
        # Small records may still fit when the first large one does not: then there is trouble twice. Each
        # time a line says that it began, perhaps one that a file is given up, and one that it is over: none
        # is written at every attempt.
        text = story.disk.shard.log
        assert 1 <= text.count("cannot write: ") == text.count("writes again") <= 3
        assert text.count(reason) <= 2 * text.count("cannot write: ")
        assert "Traceback" not in text

    run(test)


def test_control_acks_that_do_not_wait_for_the_disk_are_lost_with_it(tmp_path: Path) -> None:
    """Also `memory` with snapshots says that it is degraded, and recovers."""

    async def test() -> None:
        story = Story(tmp_path, LimitedFiles(tmp_path, {"durability": "memory", "snapshot_every_s": 0.1}))
        await story.live_through()
        then, finally_ = await story.verdicts()
        print(f"control, memory: {sorted(story.reasons)}; killed then: {then}; killed at the end: {finally_}")
        assert then.num_lost > 0

    run(test)


@pytest.mark.parametrize("durability", ["wal", "fsync"])
def test_a_slow_disk_slows_acks_and_loses_none(tmp_path: Path, durability: str) -> None:
    async def test() -> None:
        disk, log = FailingLayer(tmp_path, {"durability": durability}), AckedLog()
        shard = disk.shard
        async with (
            shard_processes(shard),
            Writers(shard.address, log) as writers,
            Samplers(shard.address) as samplers,
        ):
            await until(lambda: holds(len(log.acked) > 200))
            log.reset_gap()
            samplers.reset_gap()
            disk.slow_down(SLOW_S)
            # Acks that were under way come at once.
            await until(lambda: holds(log.longest_gap_s > SLOW_S / 2))
            acked = len(log.acked)
            await until(lambda: holds(len(log.acked) > acked + 20))
            # Samples do not wait for the disk.
            sampled = samplers.num_items
            await until(lambda: holds(samplers.num_items > sampled + 1000))
            then = dataclasses.replace(log, acked=dict(log.acked))
            frozen_copy(shard, disk.data, tmp_path / "then")
            insert_gap_s, sample_gap_s = log.longest_gap_s, samplers.longest_gap_s
            disk.end()
            await writers.pause()
        verdict = await found_in(tmp_path / "then", then)
        print(
            f"writes of {SLOW_S} s, {durability}: longest time without an ack {insert_gap_s:.2f} s, "
            f"without a sample {sample_gap_s:.2f} s; killed then: {verdict}"
        )
        assert verdict.num_lost == 0
        assert verdict.clean

    run(test)
