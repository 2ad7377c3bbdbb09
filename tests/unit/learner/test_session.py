"""One policy's training in the session: whatever fails beside it ends it, after it has saved."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from services.learner.loop import TrainingLoop
from services.learner.prefetch import Prefetcher
from services.learner.publisher import WeightsPublisher
from services.learner.result import RunResult
from services.learner.session import _Training
from shoal.records import DEFAULT_POLICY

RESULT = RunResult("stopped", None, 1, 1, 1, 1, 1.0, DEFAULT_POLICY, {})


class Loop:
    """Trains until it is told to stop."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.has_saved = False

    def run(self) -> RunResult:
        assert self.stopped.wait(20.0)
        self.has_saved = True
        return RESULT

    def stop(self) -> None:
        self.stopped.set()


class Beside:
    """The prefetcher and the publisher: each goes on for ever, or fails at once."""

    def __init__(self, failing: str) -> None:
        self._failing = failing

    async def run(self) -> None:
        await self._work("prefetcher")

    async def failure(self) -> None:
        await self._work("publisher")

    async def _work(self, name: str) -> None:
        if name == self._failing:
            raise OSError(f"the {name} failed")
        await asyncio.Event().wait()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def train(pool: ThreadPoolExecutor, loop: Loop, failing: str, is_ending: bool = False) -> RunResult:
    async def run() -> RunResult:
        beside, ending = Beside(failing), asyncio.Event()
        if is_ending:
            ending.set()
        training = _Training(
            cast(TrainingLoop, loop), cast(Prefetcher, beside), cast(WeightsPublisher, beside), pool
        )
        return await asyncio.wait_for(training.run(ending), 20.0)

    return asyncio.run(run())


@pytest.mark.parametrize("failing", ["prefetcher", "publisher"])
def test_a_failure_beside_the_loop_ends_it_after_it_has_saved(pool: ThreadPoolExecutor, failing: str) -> None:
    loop = Loop()
    with pytest.raises(OSError, match=f"the {failing} failed"):
        train(pool, loop, failing)
    assert loop.has_saved


def test_who_is_told_to_end_gives_the_result(pool: ThreadPoolExecutor) -> None:
    loop = Loop()
    assert train(pool, loop, failing="", is_ending=True) is RESULT
    assert loop.has_saved
