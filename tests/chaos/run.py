"""How a test of this folder runs: on an event loop of its own, with a deadline for all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

DEADLINE_S = 240.0


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test()

    asyncio.run(main())


async def holds(condition: bool) -> bool:
    """For `until(lambda: holds(...))`."""
    return condition
