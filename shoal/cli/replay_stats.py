"""Asks replay shards for their counters and lays them out, per shard and in total: `shoal replay stats`.

The ledger is checked shard by shard: every item that was inserted is stored, sampled out, evicted or
rejected. Only `ask_shards` opens connections, on an event loop of its own; the rest is text building.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_shard import TableStats
from shoal.clients.replay_stats import ReplayStats, gather_stats
from shoal.config import Config
from shoal.rpc.addresses import Address, AddressBook

TOTAL = "total"
LEDGER = "inserted = stored + sampled out + evicted + rejected"
COLUMNS = ("shard", "items", "bytes", "RAM", "disk", LEDGER, "")


def ask_shards(config: Config) -> ReplayStats:
    """Raises UnavailableError if no shard answers, and a UserError if one refuses, for a wrong token say."""

    def connect(address: Address) -> GrpcReplayClient:
        return GrpcReplayClient(address, config.security, config.limits, config.rpc)

    async def ask() -> ReplayStats:
        addresses = await AddressBook(config.addresses.replay, config.rpc).resolve()
        return await gather_stats(addresses, connect)

    return asyncio.run(ask())


def missing(stats: TableStats) -> int:
    """Items that the ledger lost (or invented, below zero): 0 if it adds up."""
    accounted = stats.num_items + stats.num_sampled_out + stats.num_evicted + stats.num_rejected
    return stats.num_inserted - accounted


def adds_up(found: ReplayStats) -> bool:
    """Shard by shard: errors of two shards must not cancel out."""
    return all(missing(table) == 0 for tables in found.shards.values() for table in tables)


def is_well(found: ReplayStats) -> bool:
    return not found.away and adds_up(found)


def record(found: ReplayStats) -> dict[str, Any]:
    """For programs."""
    return {
        "shards": {name: [_table_record(table) for table in tables] for name, tables in found.shards.items()},
        "total": [_table_record(table) for table in found.totals.values()],
        "away": found.away,
        "adds_up": adds_up(found),
    }


def _table_record(stats: TableStats) -> dict[str, Any]:
    return {**asdict(stats), "adds_up": missing(stats) == 0}


def lines(found: ReplayStats) -> Iterator[str]:
    """For people: a block per table, with a row per shard and one for all of them."""
    for name, total in found.totals.items():
        shards = {shard: t for shard, tables in found.shards.items() for t in tables if t.table == name}
        yield f"table {name}: {total.kind}, durability {total.durability}"
        rows = [_row(shard, stats) for shard, stats in shards.items()]
        if len(shards) > 1:
            rows.append(_row(TOTAL, total))
        yield from _aligned([COLUMNS, *rows])
        yield from (f"  {line}" for line in _flow(total))
        yield from (f"  {shard} is degraded: {s.degraded}" for shard, s in shards.items() if s.degraded)
        yield ""
    for name, why in found.away.items():
        yield f"no answer from {name}: {why}"
    if not adds_up(found):
        yield "ledger: DOES NOT ADD UP"
    elif found.away:
        yield "ledger: adds up for the shards that answered"
    else:
        yield "ledger: every item is accounted for"


def _row(shard: str, stats: TableStats) -> tuple[str, ...]:
    parts = (stats.num_items, stats.num_sampled_out, stats.num_evicted, stats.num_rejected)
    ledger = f"{stats.num_inserted:,} = " + " + ".join(f"{part:,}" for part in parts)
    lost = missing(stats)
    verdict = "adds up" if lost == 0 else f"{abs(lost):,} {'MISSING' if lost > 0 else 'TOO MANY'}"
    sizes = (stats.num_bytes, stats.ram_bytes, stats.disk_bytes)
    return (shard, f"{stats.num_items:,}", *map(size, sizes), ledger, verdict)


def _flow(stats: TableStats) -> Iterator[str]:
    yield (
        f"sampled {stats.num_samples:,} items; priorities: {stats.num_priorities_updated:,} updated, "
        f"{stats.num_priorities_gone:,} came too late; priority mass {stats.priority_mass:,.4g}"
    )
    yield (
        f"waits: inserts {stats.num_insert_waits:,} times, {stats.insert_wait_s:,.1f} s in all; "
        f"samples {stats.num_sample_waits:,} times, {stats.sample_wait_s:,.1f} s"
    )
    yield (
        f"not inserts: {stats.num_duplicates:,} duplicates, {stats.num_insert_timeouts:,} appends timed out; "
        f"damaged on disk and evicted: {stats.num_corrupt:,}"
    )


def size(num_bytes: int) -> str:
    """Three digits and a unit."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= factor:
            amount = num_bytes / factor
            return f"{amount:.3g} {unit}" if amount < 1000 else f"{amount:,.0f} {unit}"
    return f"{num_bytes} B"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """First and last column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        first, *middle, last = (
            text.rjust(width) if 0 < i < len(row) - 1 else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  " + "  ".join([first, *middle, last]).rstrip()
