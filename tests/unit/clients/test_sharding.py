"""Links to shards: when one counts as silent."""

from __future__ import annotations

import asyncio

from shoal.rpc.addresses import Address
from shoal.sharding import Link, LinkSet, OnChange
from tests.unit.replay.virtual_time import VirtualTimeLoop, run, settle

SILENT_AFTER_S = 4.0


class OneShard:
    current = (Address("unix:/shard"),)

    async def watch(self, on_change: OnChange) -> None:
        await asyncio.Event().wait()


class Listening(Link):
    num_silent = 0

    async def session(self) -> None:
        await asyncio.Event().wait()

    def on_silent(self) -> None:
        self.num_silent += 1

    async def close(self) -> None:
        pass


def on_failure(error: BaseException) -> None:
    raise error


def test_time_in_which_this_process_stood_still_is_not_the_shards() -> None:
    async def main() -> None:
        links = LinkSet(OneShard(), Listening, on_failure, silent_after_s=SILENT_AFTER_S, max_backoff_s=1.0)
        links.start()
        await settle()
        (link,) = links
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        link.expect()
        await asyncio.sleep(SILENT_AFTER_S / 2)
        loop.stand_still(10 * SILENT_AFTER_S)
        await settle()
        assert link.num_silent == 0
        link.heard(more=True)
        await asyncio.sleep(SILENT_AFTER_S / 2)
        assert link.num_silent == 0
        # It has all of its time again, and no more.
        await asyncio.sleep(SILENT_AFTER_S)
        assert link.num_silent > 0
        await links.close()

    run(main())
