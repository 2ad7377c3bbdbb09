"""A full dump of a shard, and the comparison of it with what the clients know.

The only judge of these tests. A dump comes from the shard itself over gRPC, item by item: a stratified sample
of as many items as there are takes each item of equal mass once. What it misses is asked for again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from services.replay.dedup import Dedup
from services.replay.storage.recovery import recover
from services.replay.stored_table import StoredTable
from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_shard import TableStats
from shoal.config.connections import LimitsSection
from shoal.config.tables import SequenceTable
from tests.chaos.model import AckedLog, AppendId, StoredItem

DUMP_PATIENCE_S = 30.0
TABLE = "train"


@dataclass(frozen=True)
class Verdict:
    """Counts are of items."""

    num_acked: int
    num_stored: int
    # Acked appends of which nothing is there.
    lost: tuple[AppendId, ...]
    num_lost: int
    # Stored once more than sent.
    num_duplicated: int
    # Bytes that nobody sent under this name.
    num_corrupt: int
    # Appends of which a part is there.
    num_torn: int

    def __str__(self) -> str:
        return (
            f"acked {self.num_acked}, stored {self.num_stored}, lost {self.num_lost}, "
            f"duplicated {self.num_duplicated}, corrupt {self.num_corrupt}, torn {self.num_torn}"
        )

    @property
    def clean(self) -> bool:
        """Whatever is there was sent, is whole and is there once. Says nothing of what is lost."""
        return self.num_duplicated == self.num_corrupt == self.num_torn == 0


def compare(log: AckedLog, dump: Iterable[StoredItem]) -> Verdict:
    """Items may be stored without an ack (it was on its way), never the other way round."""
    found: dict[AppendId, Counter[int]] = {}
    num_stored = num_duplicated = num_corrupt = num_torn = 0
    for item in dump:
        num_stored += 1
        found.setdefault(item.append, Counter()).update(item.crcs)
    for append, crcs in found.items():
        sent = Counter(log.sent.get(append, ()))
        num_corrupt += sum(number for crc, number in crcs.items() if crc not in sent)
        num_duplicated += sum(crcs[crc] - number for crc, number in sent.items() if crcs[crc] > number)
        num_torn += any(crcs[crc] < number for crc, number in sent.items())
    lost = tuple(append for append in log.acked if append not in found)
    num_lost = sum(len(log.sent[append]) for append in lost)
    return Verdict(log.num_acked_items, num_stored, lost, num_lost, num_duplicated, num_corrupt, num_torn)


def num_out_of_order(log: AckedLog, verdict: Verdict, killed_at: float, lost_before: set[AppendId]) -> int:
    """Appends that survived though an older one of their life did not, of those acked before a kill.

    A snapshot is one moment of the table: what it misses is newer than what it has.
    """
    oldest_lost: dict[tuple[str, str], int] = {}
    lost = set(verdict.lost)
    for append in lost - lost_before:
        life = (append.actor_id, append.run_id)
        oldest_lost[life] = min(append.sequence, oldest_lost.get(life, append.sequence))
    return sum(
        append.sequence > oldest_lost.get((append.actor_id, append.run_id), append.sequence)
        for append, at in log.acked.items()
        if at <= killed_at and append not in lost
    )


async def dump(client: GrpcReplayClient, table: str = TABLE) -> list[StoredItem]:
    """Every item that a sequence table can hand out. Nobody else may be at work."""
    stream = await client.open_sample(table)
    found: dict[int, StoredItem] = {}
    try:
        async with asyncio.timeout(DUMP_PATIENCE_S):
            while True:
                num_items = (await stats_of(client, table)).num_items
                if len(found) >= num_items:
                    return [found[key] for key in sorted(found)]
                await stream.request(num_items, 5.0)
                for item in (await stream.receive()).items:
                    found[item.key] = StoredItem.of(item)
    finally:
        await stream.close()


async def recovered(directory: Path) -> tuple[list[StoredItem], list[str]]:
    """What a shard would find in its directory, and what it would say of it; nothing is written."""
    settings = SequenceTable(max_items=1 << 14)
    stored = StoredTable(TABLE, settings, LimitsSection(), Dedup(1000), time.monotonic, None)
    report = recover(directory / TABLE, stored.table, stored.dedup, stored.signature)
    assert ledger_adds_up(stored.stats()), stored.stats()
    found: dict[int, StoredItem] = {}
    while len(found) < stored.table.num_items:
        sampled = await stored.table.sample(stored.table.num_items, 1 << 30, 1.0)
        found |= {item.key: StoredItem.of(item) for item in sampled.items}
    return list(found.values()), report.lines


async def stats_of(client: GrpcReplayClient, table: str = TABLE) -> TableStats:
    stats = {stats.table: stats for stats in await client.stats()}[table]
    assert ledger_adds_up(stats), stats
    return stats


def ledger_adds_up(stats: TableStats) -> bool:
    accounted = stats.num_items + stats.num_sampled_out + stats.num_evicted + stats.num_rejected
    return stats.num_inserted == accounted


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
