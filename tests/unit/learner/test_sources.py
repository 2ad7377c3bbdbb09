"""Which sampler feeds the learner, and what an item of it is, by the kind of its table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from services.learner.session import item_length
from services.learner.sources import BatchSource, QueueSource, Source, make_source
from shoal.config import Config, load_config
from shoal.config.policies import policy_places
from shoal.config.ranks import Ranks
from shoal.records import Item, Life

ITEMS = tuple(Item(key, Life("actor", "run"), key, (b"data",)) for key in range(3))


def config_of(table: str) -> Config:
    return load_config(None, [f"replay.tables.train={table}", "actor.unroll_length=8"], {})


@pytest.mark.parametrize(
    ("table", "source", "length"),
    [
        ("{}", QueueSource, 8),
        ("{kind: sequence}", BatchSource, 8),
        ("{kind: sequence, unrolls: 3}", BatchSource, 24),
    ],
)
def test_the_table_decides(table: str, source: type[Source], length: int) -> None:
    config = config_of(table)
    (place,) = policy_places(config)
    assert item_length(config, place.table) == length

    async def check() -> None:
        made = make_source(config, place, Ranks())
        assert type(made) is source
        await made.close()

    asyncio.run(check())


class Sampler:
    """What a sampler does, told apart by what it hands out."""

    def __init__(self, next_: Callable[[float | None], Awaitable[object]]) -> None:
        self.next = next_
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    async def close(self) -> None:
        self.calls.append("close")


class Batch:
    items = ITEMS


async def one_item(timeout_s: float | None) -> Item:
    assert timeout_s is None
    return ITEMS[0]


async def one_batch(timeout_s: float | None) -> Batch:
    assert timeout_s is None
    return Batch()


@pytest.mark.parametrize(
    ("source", "next_", "expected"),
    [(QueueSource, one_item, ITEMS[:1]), (BatchSource, one_batch, ITEMS)],
)
def test_items_come_as_they_are_sampled(
    source: Callable[[Sampler], Source],
    next_: Callable[[float | None], Awaitable[object]],
    expected: tuple[Item, ...],
) -> None:
    async def check() -> None:
        sampler = Sampler(next_)
        made = source(sampler)
        made.start()
        assert await made.next() == expected
        await made.close()
        assert sampler.calls == ["start", "close"]

    asyncio.run(check())
