"""Replies are lost after the insert happened: the resend is known, on a new stream and in a new process."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from shoal.clients.replay_shard import Append, AppendStream, Outcome
from shoal.errors import UnavailableError
from shoal.records import Life
from tests.chaos.faults import VictimShard, seeded
from tests.chaos.model import AckedLog
from tests.chaos.run import holds, run
from tests.chaos.traffic import LoggedClient, Writers, client_of, payload
from tests.chaos.validate import TABLE, compare, dump, stats_of
from tests.service.replay_server import shard_processes, until

NUM_CALLS = 10_000
NUM_LANES = 4
LOST_SHARE = 0.25
NUM_BEFORE_KILL = 500


class Lane:
    """One life that appends one trajectory after the other, and again if the reply was lost."""

    def __init__(self, shard: VictimShard, log: AckedLog, number: int, random: Random) -> None:
        self._client = LoggedClient(shard.address, log, self._lose_reply)
        self._number = number
        self._random = random
        self._resending = False

    async def append_all(self, num_calls: int) -> None:
        stream = await self._open()
        for sequence in range(num_calls):
            append = Append(sequence, (payload(self._number, sequence),))
            try:
                await stream.send(append)
                await stream.receive()
            except UnavailableError:
                self._resending = True
                stream = await self._open()
                await stream.send(append)
                await stream.receive()
                self._resending = False
        await stream.close()
        await self._client.close()

    async def _open(self) -> AppendStream:
        return await self._client.open_append(Life(f"actor-{self._number}", "run"), TABLE)

    def _lose_reply(self) -> bool:
        return not self._resending and self._random.random() < LOST_SHARE


@pytest.mark.parametrize("protection", ["dedup", "no dedup"])
def test_a_quarter_of_ten_thousand_replies_is_lost(tmp_path: Path, protection: str) -> None:
    """Without the memory of repeats (the control) every lost reply stores an item twice."""

    async def test() -> None:
        random = seeded()
        rig = "" if protection == "dedup" else "no-dedup"
        shard, log = VictimShard(tmp_path, rig=rig), AckedLog()
        async with shard_processes(shard), client_of(shard.address) as client:
            lanes = [Lane(shard, log, number, random) for number in range(NUM_LANES)]
            await asyncio.gather(*(lane.append_all(NUM_CALLS // NUM_LANES) for lane in lanes))
            verdict = compare(log, await dump(client))
            stats = await stats_of(client)
        print(
            f"{protection}: sent {len(log.sent)}, replies lost {log.num_replies_lost}, {verdict}, "
            f"repeats refused {stats.num_duplicates}"
        )
        assert verdict.num_lost == verdict.num_corrupt == verdict.num_torn == 0
        assert len(log.sent) == len(log.acked) == NUM_CALLS
        if protection == "dedup":
            assert verdict.num_stored == NUM_CALLS
            assert verdict.num_duplicated == 0
            assert stats.num_duplicates == log.num_replies_lost
        else:
            assert verdict.num_duplicated == log.num_replies_lost > NUM_CALLS // 5

    run(test)


def test_a_writer_that_loses_replies_stores_everything_once(tmp_path: Path) -> None:
    """Each lost reply breaks the stream with up to a window of other appends in flight."""

    async def test() -> None:
        random = seeded()
        shard, log = VictimShard(tmp_path, table={"durability": "wal"}), AckedLog()
        async with shard_processes(shard), client_of(shard.address) as client:
            async with Writers(shard.address, log, lose_reply=lambda: random.random() < 0.02) as writers:
                await until(lambda: holds(log.num_replies_lost >= 25))
                await writers.pause()
                resent = sum(writer.stats.num_resent for writer in writers.writers)
            verdict = compare(log, await dump(client))
        print(f"writers: replies lost {log.num_replies_lost}, resent {resent}, {verdict}")
        assert verdict.clean
        assert verdict.num_lost == 0
        assert verdict.num_stored == verdict.num_acked
        assert resent >= log.num_replies_lost

    run(test)


@pytest.mark.parametrize("durability", ["wal", "memory"])
def test_what_was_stored_before_a_kill_is_known_after_it(tmp_path: Path, durability: str) -> None:
    """Control: a table without files has forgotten the items and the repeats alike."""

    async def test() -> None:
        shard, log = VictimShard(tmp_path, table={"durability": durability}), AckedLog()
        life = Life("actor", "run")

        async def send_all(client: LoggedClient) -> Counter[Outcome]:
            stream = await client.open_append(life, TABLE)
            outcomes: Counter[Outcome] = Counter()
            for sequence in range(NUM_BEFORE_KILL):
                await stream.send(Append(sequence, (payload(0, sequence),)))
                outcomes[(await stream.receive()).outcome] += 1
            await stream.close()
            return outcomes

        async with shard_processes(shard):
            client = LoggedClient(shard.address, log)
            assert await send_all(client) == {Outcome.STORED: NUM_BEFORE_KILL}
            shard.kill()
            await shard.start()
            await client.close()
            client = LoggedClient(shard.address, log)
            again = await send_all(client)
            verdict = compare(log, await dump(client))
            await client.close()
        answers = {outcome.value: number for outcome, number in again.items()}
        print(f"{durability}: all {NUM_BEFORE_KILL} sent again after kill -9: {answers}, {verdict}")
        assert again == {Outcome.DUPLICATE if durability == "wal" else Outcome.STORED: NUM_BEFORE_KILL}
        assert verdict.clean
        assert verdict.num_stored == NUM_BEFORE_KILL

    run(test)
