"""Reading ahead of the answers: order, bounds, waiting times, endings."""

from __future__ import annotations

import asyncio

import pytest

from services.replay.read_ahead import ReadAhead
from shoal.errors import UnavailableError
from tests.unit.replay.virtual_time import run, settle


class Source:
    """A stream of requests that the test feeds."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self.num_read = 0

    async def read(self) -> bytes | None:
        request = await self.queue.get()
        self.num_read += 1
        if isinstance(request, Exception):
            raise request
        return request


def test_in_order_with_the_time_that_each_has_waited() -> None:
    async def main() -> None:
        source = Source()
        with ReadAhead(source.read, len, 10, 1000) as reader:
            source.queue.put_nowait(b"a")
            await asyncio.sleep(2.0)
            source.queue.put_nowait(b"b")
            source.queue.put_nowait(None)
            await asyncio.sleep(3.0)
            assert await reader.next() == (b"a", 5.0)
            assert await reader.next() == (b"b", 3.0)
            assert await reader.next() is None
            assert await reader.next() is None

    run(main())


@pytest.mark.parametrize(("max_items", "max_bytes"), [(3, 1000), (1000, 3)])
def test_stops_reading_at_the_bound_and_goes_on_below_it(max_items: int, max_bytes: int) -> None:
    async def main() -> None:
        source = Source()
        for _ in range(10):
            source.queue.put_nowait(b"x")
        with ReadAhead(source.read, len, max_items, max_bytes) as reader:
            await settle()
            assert source.num_read == 3
            await reader.next()
            await settle()
            assert source.num_read == 4

    run(main())


def test_one_request_larger_than_the_bound_is_still_read() -> None:
    async def main() -> None:
        source = Source()
        source.queue.put_nowait(b"x" * 5000)
        source.queue.put_nowait(b"y")
        with ReadAhead(source.read, len, 10, 100) as reader:
            await settle()
            assert source.num_read == 1
            assert (await reader.next()) == (b"x" * 5000, 0.0)
            assert (await reader.next()) == (b"y", 0.0)

    run(main())


def test_a_failing_read_or_a_drain_ends_it_at_once() -> None:
    async def main() -> None:
        source = Source()
        with ReadAhead(source.read, len, 10, 100) as reader:
            source.queue.put_nowait(ValueError("broken"))
            with pytest.raises(ValueError, match="broken"):
                await reader.next()
        with ReadAhead(source.read, len, 10, 100) as reader:
            source.queue.put_nowait(b"never answered")
            waiting = asyncio.ensure_future(reader.next())
            await waiting
            waiting = asyncio.ensure_future(reader.next())
            await settle()
            reader.fail(UnavailableError("draining"))
            with pytest.raises(UnavailableError, match="draining"):
                await waiting

    run(main())


def test_leaving_the_block_ends_the_reading_task() -> None:
    async def main() -> None:
        with ReadAhead(Source().read, len, 10, 100):
            await settle()
            assert len(asyncio.all_tasks()) == 2
        await settle()
        assert len(asyncio.all_tasks()) == 1

    run(main())
