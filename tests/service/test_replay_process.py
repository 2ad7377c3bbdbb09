"""The replay as a program: what it announces, what it measures, how it stops, how it refuses to start."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from services.replay.memory_limit import memory_limit_bytes
from shoal.clients.replay_shard import Outcome
from shoal.records import Life
from tests.service.replay_server import ROOT, ShardProcess, append_of, shard_processes, until
from tests.unit.replay.payloads import payload

LIFE = Life("actor", "run")


def scrape(address: str) -> dict[tuple[str, str], float]:
    """Samples by name and reason; the table is always the same."""
    with urllib.request.urlopen(f"http://{address}/metrics") as response:
        text = response.read().decode()
    return {
        (sample.name, sample.labels.get("reason", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.name.startswith("shoal_replay")
    }


def test_of_several_policies_each_has_a_table_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        policies = "env.policies={red: [red_*], blue: ['*']}"
        shard = ShardProcess(tmp_path, "a", policies, "replay.tables={train: {durability: wal}, other: {}}")
        async with asyncio.timeout(60), shard_processes(shard):
            client = shard.client()
            tables = {stats.table: stats.durability for stats in await client.stats()}
            assert tables == {"other": "memory", "train-red": "wal", "train-blue": "wal"}
            append = await client.open_append(LIFE, "train-red")
            await append.send(append_of(0, payload(0)))
            assert (await append.receive()).outcome is Outcome.STORED
            assert [s.num_items for s in await client.stats()] == [0, 1, 0]
            await append.close()
            await client.close()
        assert sorted(path.name for path in shard.files.iterdir()) == ["lock", "train-blue", "train-red"]
        clashing = ShardProcess(tmp_path, "b", policies, "replay.tables={train: {}, train-red: {}}")
        assert "'replay.tables.train-red': policy 'red'" in await clashing.refuses_to_start()

    asyncio.run(main())


def test_metrics_tell_the_ledger(tmp_path: Path) -> None:
    async def main() -> None:
        shard = ShardProcess(tmp_path, "a", "replay.tables={train: {max_items: 2}}")
        async with asyncio.timeout(60), shard_processes(shard):
            client = shard.client()
            append = await client.open_append(LIFE, "train")
            sample = await client.open_sample("train")
            items = [payload(number) for number in range(4)]
            for sequence, item in ((0, items[0]), (0, items[0]), (1, items[1]), (2, b"\xff"), (3, items[3])):
                await append.send(append_of(sequence, item, timeout_s=0.2))
            outcomes = [(await append.receive()).outcome for _ in range(5)]
            assert outcomes == [
                Outcome.STORED,
                Outcome.DUPLICATE,
                Outcome.STORED,
                Outcome.REJECTED,
                Outcome.TIMED_OUT,
            ]
            for timeout_s in (0.2, 0.2, 0.2):
                await sample.request(1, timeout_s)
                await sample.receive()
            found = await asyncio.to_thread(scrape, shard.announced("metrics"))
            received = len(items[0]) * 2 + len(items[1]) + 1 + len(items[3])
            expected: dict[tuple[str, str], float] = {
                ("shoal_replay_items", ""): 0,
                ("shoal_replay_bytes", ""): 0,
                ("shoal_replay_ram_bytes", ""): 0,
                ("shoal_replay_disk_bytes", ""): 0,
                ("shoal_replay_max_items", ""): 2,
                ("shoal_replay_max_bytes", ""): 1 << 30,
                ("shoal_replay_priority_mass", ""): 0,
                ("shoal_replay_degraded", ""): 0,
                ("shoal_replay_journal_pending_bytes", ""): 0,
                ("shoal_replay_recovery_seconds", ""): 0,
                ("shoal_replay_recovered_items", ""): 0,
                ("shoal_replay_recovery_corrupt_frames", ""): 0,
                ("shoal_replay_samples_per_insert", ""): 0,
                ("shoal_replay_ratio_tolerance", ""): 0,
                ("shoal_replay_ratio_surplus", ""): 0,
                ("shoal_replay_memory_limit_bytes", ""): memory_limit_bytes(),
                ("shoal_replay_inserted_total", ""): 3,
                ("shoal_replay_sampled_out_total", ""): 2,
                ("shoal_replay_evicted_total", ""): 0,
                ("shoal_replay_corrupt_total", ""): 0,
                ("shoal_replay_duplicates_total", ""): 1,
                ("shoal_replay_rejected_total", "invalid"): 1,
                **{
                    ("shoal_replay_rejected_total", reason): 0
                    for reason in ("limit", "signature", "not_finite", "range")
                },
                ("shoal_replay_insert_timeouts_total", ""): 1,
                ("shoal_replay_sample_timeouts_total", ""): 1,
                ("shoal_replay_samples_total", ""): 2,
                ("shoal_replay_priorities_updated_total", ""): 0,
                ("shoal_replay_priorities_gone_total", ""): 0,
                ("shoal_replay_insert_waits_total", ""): 1,
                ("shoal_replay_sample_waits_total", ""): 1,
                ("shoal_replay_received_bytes_total", ""): received,
                ("shoal_replay_sampled_bytes_total", ""): len(items[0]) + len(items[1]),
                ("shoal_replay_append_streams", ""): 1,
                ("shoal_replay_sample_streams", ""): 1,
            }
            waits = {
                ("shoal_replay_insert_wait_seconds_total", ""),
                ("shoal_replay_sample_wait_seconds_total", ""),
            }
            assert set(found) == set(expected) | waits
            assert {name: found[name] for name in expected} == expected
            assert all(found[name] > 0.1 for name in waits)
            await client.close()

            async def streams_closed() -> bool:
                now = await asyncio.to_thread(scrape, shard.announced("metrics"))
                return (
                    now[("shoal_replay_append_streams", "")] == now[("shoal_replay_sample_streams", "")] == 0
                )

            await until(streams_closed)
            assert await shard.terminate() == 0, shard.log
            assert "Traceback" not in shard.log
            assert not shard.files.exists(), "a table without files touches no disk"

    asyncio.run(main())


def test_items_that_were_taken_last_reach_a_slow_sampler_after_sigterm(tmp_path: Path) -> None:
    """The queue is empty at once, but not the way to the sampler: the drain has time for that, too."""

    async def main() -> None:
        shard = ShardProcess(tmp_path, "a", "rpc.drain_s=30")
        async with asyncio.timeout(60), shard_processes(shard):
            client = shard.client()
            append, sample = await client.open_append(LIFE, "train"), await client.open_sample("train")
            # Far more than a connection holds under way while nobody reads.
            items = [payload(number, rows=2, envs=1000, width=2000) for number in range(2)]
            for sequence, item in enumerate(items):
                await append.send(append_of(sequence, item))
                assert (await append.receive()).outcome is Outcome.STORED
            for _ in items:
                await sample.request(1)

            async def first_taken() -> bool:
                return (await client.stats())[0].num_items <= 1

            await until(first_taken)
            stopped = asyncio.ensure_future(shard.terminate())
            assert (await sample.receive()).items[0].payloads == (items[0],)
            await until(lambda: _logged(shard, "draining"))
            # Longer than what is kept for closing, and not yet what is allowed in all.
            await asyncio.sleep(2.0)
            assert (await sample.receive()).items[0].payloads == (items[1],)
            assert await stopped == 0
            assert "lost" not in shard.log
            assert "Traceback" not in shard.log
            await client.close()

    asyncio.run(main())


def test_a_sampler_that_never_reads_is_cut_without_a_traceback(tmp_path: Path) -> None:
    """The handler is in the middle of a write, where gRPC takes no status."""

    async def main() -> None:
        shard = ShardProcess(tmp_path, "a", "rpc.drain_s=1")
        async with asyncio.timeout(60), shard_processes(shard):
            client = shard.client()
            append, sample = await client.open_append(LIFE, "train"), await client.open_sample("train")
            await append.send(append_of(0, payload(rows=2, envs=1000, width=2000)))
            assert (await append.receive()).outcome is Outcome.STORED
            await sample.request(1)

            async def taken() -> bool:
                return (await client.stats())[0].num_items == 0

            await until(taken)
            assert await shard.terminate() == 0, shard.log
            assert "cut 1 calls" in shard.log
            assert " ERROR " not in shard.log
            await client.close()

    asyncio.run(main())


async def _logged(shard: ShardProcess, text: str) -> bool:
    return text in shard.log


def test_an_address_that_is_taken_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    async def main() -> None:
        shard = ShardProcess(tmp_path, "a", "replay.listen.grpc=127.0.0.1:0")
        async with asyncio.timeout(60), shard_processes(shard):
            taken = shard.announced("grpc")
            second = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-m", "services.replay", "--set", f"replay.listen.grpc={taken}"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert second.returncode == 2
            errors = [line for line in second.stderr.splitlines() if line.startswith("error: ")]
            assert len(errors) == 1
            assert taken in errors[0]
            assert "Traceback" not in second.stderr

    asyncio.run(main())
