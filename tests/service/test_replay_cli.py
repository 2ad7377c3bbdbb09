"""`shoal replay` against real shards and the files that they write, running and killed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from shoal.cli.live_run import reachable
from shoal.cli.run_dir import RunDir
from shoal.clients.replay_shard import Append, Outcome
from shoal.records import Life
from tests.service.replay_server import ROOT, ShardProcess, shard_processes
from tests.unit.replay.payloads import payload

LIFE = Life("actor-0", "f00d")
NUM_ITEMS = 5
TOKEN = "correct-horse"


def shoal(*arguments: str, token: str = "") -> subprocess.CompletedProcess[str]:
    """The command as a user runs it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL__")}
    environment["PYTHONPATH"] = str(ROOT)
    if token:
        environment["SHOAL__SECURITY__TOKEN"] = token
    command = [sys.executable, "-m", "shoal.cli", "replay", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def journalled(directory: Path, name: str) -> ShardProcess:
    tables = {"train": {"kind": "sequence", "durability": "wal", "alpha": 1.0, "max_items": 4}}
    return ShardProcess(directory, name, f"replay.tables={json.dumps(tables)}")


async def fill(shard: ShardProcess, first_sequence: int = 0) -> None:
    """NUM_ITEMS items, of which the table keeps four, and one that it rejects."""
    client = shard.client()
    stream = await client.open_append(LIFE, "train")
    payloads = [payload(number, envs=1) for number in range(NUM_ITEMS)]
    for number, data in enumerate([*payloads, b"\xff"]):
        await stream.send(Append(first_sequence + number, (data,)))
        expected = Outcome.STORED if number < NUM_ITEMS else Outcome.REJECTED
        assert (await stream.receive()).outcome is expected
    await stream.close()
    await client.close()


def with_shards(*shards: ShardProcess, then: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(100), shard_processes(*shards):
            for shard in shards:
                await fill(shard)
            await then()

    asyncio.run(main())


def test_stats_of_two_shards_add_up(tmp_path: Path) -> None:
    shards = [journalled(tmp_path, name) for name in ("a", "b")]
    addresses = [word for shard in shards for word in ("--address", shard.address.target)]

    async def ask() -> None:
        shown = await asyncio.to_thread(shoal, "stats", *addresses)
        assert shown.returncode == 0, shown.stderr
        # Six came: four are there, the oldest was evicted, the malformed one rejected.
        assert shown.stdout.count("6 = 4 + 0 + 1 + 1  adds up") == 2
        assert "12 = 8 + 0 + 2 + 2  adds up" in shown.stdout
        assert "ledger: every item is accounted for" in shown.stdout
        told = json.loads((await asyncio.to_thread(shoal, "stats", "--json", *addresses)).stdout)
        assert set(told["shards"]) == {shard.address.target for shard in shards}
        assert [(table["num_inserted"], table["adds_up"]) for table in told["total"]] == [(12, True)]
        print(shown.stdout)
        shards[1].kill()
        partly = await asyncio.to_thread(shoal, "stats", *addresses)
        assert partly.returncode == 1
        assert f"no answer from {shards[1].address.target}" in partly.stdout
        assert "6 = 4 + 0 + 1 + 1  adds up" in partly.stdout

    with_shards(*shards, then=ask)


def test_files_are_read_while_the_shard_runs_and_after_it_was_killed(tmp_path: Path) -> None:
    shard = journalled(tmp_path, "a")

    def check() -> None:
        verified = shoal("verify", str(shard.files))
        assert (verified.returncode, verified.stderr) == (0, "")
        assert f"{NUM_ITEMS} items" in verified.stdout.splitlines()[-1]
        dumped = shoal("dump", "--json", str(shard.files / "train"))
        found = [json.loads(line) for line in dumped.stdout.splitlines()]
        assert [(item["key"], item["sequence"]) for item in found] == [
            (key, key - 1) for key in range(1, NUM_ITEMS + 1)
        ]
        assert {(item["actor"], item["run"], item["priority"]) for item in found} == {
            ("actor-0", "f00d", 1.0)
        }

    async def then() -> None:
        await asyncio.to_thread(check)
        shard.kill()
        await asyncio.to_thread(check)

    with_shards(shard, then=then)
    # One bit of the last payload.
    (path, *_) = sorted((shard.files / "train").glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    damaged = shoal("verify", str(shard.files))
    assert damaged.returncode == 1
    assert "DAMAGED" in damaged.stdout


def test_a_run_is_found_by_its_directory_with_its_token(tmp_path: Path) -> None:
    run_dir, sockets = RunDir(tmp_path / "run"), tmp_path
    run_dir.root.mkdir()
    run_dir.config.write_text("{}\n")
    shard = ShardProcess(tmp_path, "replay-0", f"security.token={TOKEN}")

    async def main() -> None:
        async with asyncio.timeout(100):
            # Without files it serves as soon as it listens; the others' check has no token.
            await shard.listen()
            with reachable(run_dir, sockets, TOKEN):
                found = await asyncio.to_thread(shoal, "stats", str(run_dir.root))
                assert found.returncode == 0, found.stderr
                assert "table train: queue" in found.stdout
            address = ("stats", "--address", shard.address.target)
            assert (await asyncio.to_thread(shoal, *address, token=TOKEN)).returncode == 0
            wrong = await asyncio.to_thread(shoal, *address, token="wrong")
            assert wrong.returncode == 2
            assert wrong.stderr.startswith("error: ")
            assert (wrong.stderr.count("\n"), wrong.stdout) == (1, "")

    try:
        asyncio.run(main())
    finally:
        shard.kill()


@pytest.mark.parametrize("address", ["unix:/nowhere/at-all.sock", "127.0.0.1:1"])
def test_no_shard_at_all_is_one_line_and_exit_code_1(address: str) -> None:
    done = shoal("stats", "--address", address)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no replay shard is there: ")
    assert done.stderr.count("\n") == 1
