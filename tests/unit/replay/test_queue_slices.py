"""A queue gives a few of its items to a snapshot without a look at all the others."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from services.replay.queue_table import QueueTable
from services.replay.tables import Insertion, NoJournal
from shoal.config.tables import QueueTable as QueueSettings
from tests.unit.replay.payloads import LIFE
from tests.unit.replay.virtual_time import run


class Watched(OrderedDict[int, Any]):
    """Counts what is looked at."""

    num_seen = 0

    def __iter__(self) -> Iterator[int]:
        for key in super().__iter__():
            self.num_seen += 1
            yield key

    def get(self, key: int, default: Any = None) -> Any:
        self.num_seen += 1
        return super().get(key, default)


def test_a_slice_costs_as_much_as_there_is_in_it() -> None:
    async def main() -> None:
        table = QueueTable(
            "train", QueueSettings(max_items=200), NoJournal(), asyncio.get_running_loop().time
        )
        for sequence in range(4):
            await table.insert(Insertion(LIFE, sequence, (b"data",) * 50, ()), 1.0)
        table._entries = watched = Watched(table._entries)
        watched.num_seen = 0
        assert [item.first_key for item in table.items_from(101, 111)] == list(range(101, 111))
        # And the oldest.
        assert watched.num_seen <= 11
        assert len(table.items_from(0)) == 200

    run(main())
