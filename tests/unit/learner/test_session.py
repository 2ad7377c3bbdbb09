"""One policy's training in the session: whatever fails beside it ends it, after it has saved."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import cast

import pytest
import torch
from prometheus_client import CollectorRegistry

import services.learner.session
from services.learner.loop import TrainingLoop
from services.learner.metrics import LearnerMetrics
from services.learner.parts import build_parts
from services.learner.peers import Alone
from services.learner.prefetch import Prefetcher
from services.learner.publisher import WeightsPublisher
from services.learner.result import RunResult
from services.learner.session import _first_result, _prepare, _Shared, _Training
from services.learner.sources import Source
from services.learner.summaries import Curves
from shoal.config import Config
from shoal.config.ranks import Ranks
from shoal.records import DEFAULT_POLICY, DiscreteAction, EnvSpec

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


def test_the_result_is_that_of_the_policy_that_ended_the_run() -> None:
    """Another one may be over first: it was stopped by another learner, while the first still saved."""

    async def given(result: RunResult | None) -> RunResult | None:
        return result

    async def body() -> None:
        reached = replace(RESULT, reason="steps", policy="red")
        results = (None, RESULT, reached, replace(reached, policy="blue"))
        trainings = [asyncio.create_task(given(result)) for result in results]
        await asyncio.wait(trainings)
        assert _first_result(trainings) is reached
        assert _first_result(trainings[:2]) is RESULT
        assert _first_result(trainings[:1]) is None

    asyncio.run(body())


def test_no_policy_is_built_while_it_waits_for_another_learner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners may build policies in different orders: each would wait for the others with the wrong one."""
    both = threading.Barrier(2, timeout=20.0)

    class Met(Exception):
        pass

    def meet(*_: object) -> None:
        both.wait()
        raise Met

    monkeypatch.setattr(services.learner.session, "build_or_resume", lambda *_: None)
    monkeypatch.setattr(services.learner.session, "begin_alike", meet)

    async def body() -> None:
        config = Config()
        cpu = torch.device("cpu")
        shared = _Shared(config, asyncio.Event(), asyncio.Lock(), 1, cpu, Ranks())
        (parts,) = build_parts(config, LearnerMetrics(CollectorRegistry()))
        spec = EnvSpec("Test-v0", (), DiscreteAction(2))
        with ThreadPoolExecutor(2) as pool:
            preparing = [
                _prepare(shared, parts, Alone(), spec, cast(Source, None), cast(Curves, None), pool)
                for _ in range(2)
            ]
            ends = await asyncio.gather(*preparing, return_exceptions=True)
        assert [type(end) for end in ends] == [Met, Met]

    asyncio.run(asyncio.wait_for(body(), 30.0))
