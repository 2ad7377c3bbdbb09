"""The counters of all shards together: asked at once, and added up per table.

Used by `shoal.clients.replay`, on an event loop. Each call dials anew: it is for people and for scripts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from shoal.clients.replay_shard import ReplayShardClient, TableStats
from shoal.errors import UnavailableError
from shoal.rpc.addresses import Address


@dataclass(frozen=True)
class ReplayStats:
    """What the shards that are there say of their tables, by address and in total."""

    # Shard address -> its tables.
    shards: dict[str, tuple[TableStats, ...]]
    # Shard address -> why it gave no answer. What it holds is missing from the totals.
    away: dict[str, str]
    # Table name -> all shards together.
    totals: dict[str, TableStats]


async def gather_stats(
    addresses: Sequence[Address], connect: Callable[[Address], ReplayShardClient]
) -> ReplayStats:
    """Ask every shard. Raises the UserError of one that refuses us, and UnavailableError if none is there."""
    answers = await asyncio.gather(*(_stats_of(connect(address)) for address in addresses))
    shards: dict[str, tuple[TableStats, ...]] = {}
    away: dict[str, str] = {}
    for address, answer in zip(addresses, answers, strict=True):
        if isinstance(answer, UnavailableError):
            away[address.target] = str(answer)
        else:
            shards[address.target] = answer
    if not shards:
        told = "; ".join(f"{target}: {why}" for target, why in away.items()) or "no address is known"
        raise UnavailableError(f"no replay shard is there: {told}")
    by_table: dict[str, list[TableStats]] = {}
    for tables in shards.values():
        for stats in tables:
            by_table.setdefault(stats.table, []).append(stats)
    return ReplayStats(shards, away, {name: total_of(tables) for name, tables in by_table.items()})


def total_of(tables: Iterable[TableStats]) -> TableStats:
    """One table over all shards: numbers added up, but for `unrolls`; of texts that differ all, each once."""
    all_of_them = list(tables)
    total: dict[str, Any] = {}
    for field in fields(TableStats):
        values = [getattr(stats, field.name) for stats in all_of_them]
        is_text = isinstance(values[0], str)
        total[field.name] = ", ".join(dict.fromkeys(filter(None, values))) if is_text else sum(values)
    total["unrolls"] = max(stats.unrolls for stats in all_of_them)
    return TableStats(**total)


async def _stats_of(client: ReplayShardClient) -> tuple[TableStats, ...] | UnavailableError:
    try:
        return await client.stats()
    except UnavailableError as error:
        return error
    finally:
        await client.close()
