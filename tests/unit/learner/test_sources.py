"""Which sampler feeds the learner, and what an item of it is, by the kind of its table."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from services.learner.metrics import LearnerMetrics, PolicyMetrics
from services.learner.schedule import ImportanceExponent
from services.learner.session import item_length
from services.learner.sources import BatchSource, QueueSource, Source, make_source
from shoal.clients.replay_batches import BatchSampler, BatchStats
from shoal.clients.replay_draw import ItemRefs, SampledBatch
from shoal.clients.replay_sampler import ReplaySampler
from shoal.clients.replay_weights import beta_of
from shoal.config import Config, load_config
from shoal.config.policies import policy_places
from shoal.config.ranks import Ranks
from shoal.errors import InvalidArgumentError
from shoal.records import Item, Life

ITEMS = tuple(Item(key, Life("actor", "run"), key, (b"data",)) for key in range(3))


def metrics(registry: CollectorRegistry | None = None) -> PolicyMetrics:
    return LearnerMetrics(registry or CollectorRegistry()).of("policy")


def config_of(table: str) -> Config:
    return load_config(None, [f"replay.tables.train={table}", "actor.unroll_length=8"], {})


@pytest.mark.parametrize(
    ("table", "source", "length"),
    [
        ("{}", QueueSource, 8),
        ("{kind: sequence}", BatchSource, 8),
        ("{kind: sequence, unrolls: 3}", BatchSource, 24),
        ("{kind: transition}", BatchSource, 1),
    ],
)
def test_the_table_decides(table: str, source: type[Source], length: int) -> None:
    config = config_of(table)
    (place,) = policy_places(config)
    assert item_length(config, place.table) == length

    async def check() -> None:
        made = make_source(config, place, Ranks(), metrics())
        assert type(made) is source
        assert not made.has_priorities
        await made.close()

    asyncio.run(check())


@pytest.mark.parametrize(
    ("algorithm", "alpha", "beta"),
    [
        ("{name: apex, importance_exponent: 0.7}", 0.6, 0.7),
        ("{name: apex}", 0.0, 0.0),
        ("{name: impala}", 0.0, 0.0),
    ],
)
def test_importance_weights_are_for_prioritised_tables(algorithm: str, alpha: float, beta: float) -> None:
    table = f"{{kind: sequence, alpha: {alpha}}}"
    config = load_config(None, [f"replay.tables.train={table}", f"algorithm={algorithm}"], {})

    async def check() -> None:
        made = make_source(config, policy_places(config)[0], Ranks(), metrics())
        assert isinstance(made, BatchSource)
        assert made.has_priorities == (alpha > 0)
        assert beta_of(made._sampler._beta, 0) == beta
        await made.close()

    asyncio.run(check())


class Sampler:
    """What both samplers do, from a list of what they hand out."""

    def __init__(self, *handed_out: object) -> None:
        self._handed_out = list(handed_out)
        self.calls: list[str] = []
        self.stats = BatchStats()
        self.failure: BaseException | None = None
        self.batch_size = 3

    def start(self) -> None:
        self.calls.append("start")

    async def next(self, timeout_s: float | None) -> object:
        assert timeout_s is None
        return self._handed_out.pop(0)

    def send_priorities(self, refs: ItemRefs, priorities: np.ndarray) -> None:
        raise InvalidArgumentError("no number")

    def on_failure(self, error: BaseException) -> None:
        self.failure = error

    async def close(self) -> None:
        self.calls.append("close")


def test_importance_weights_follow_the_steps_of_the_run() -> None:
    """Halfway from 0.4 to 1 after half of the schedule, those before a restart counted."""
    settings = ["algorithm={name: apex, schedule_steps: 1000}"]

    async def check() -> None:
        config = load_config(None, settings, {})
        exponent = ImportanceExponent(config)
        sampler = Sampler(replace(BATCH, steps_inserted=200), replace(BATCH, steps_inserted=5000))
        source = BatchSource(cast(BatchSampler, sampler), metrics(), exponent, has_priorities=True)
        source.go_on_from(300, batch_bytes=1)
        assert exponent(0) == pytest.approx(0.4 + 0.6 * 0.3)
        await source.next()
        assert exponent(1) == pytest.approx(0.7)
        await source.next()
        assert exponent(2) == 1.0

    asyncio.run(check())


REFS = ItemRefs((), np.zeros(3, np.int64), np.arange(3, dtype=np.uint64))
BATCH = SampledBatch(ITEMS, None, np.ones(3), REFS)


def test_a_queue_gives_one_item_at_a_time() -> None:
    async def check() -> None:
        sampler = Sampler(*ITEMS)
        source = QueueSource(cast(ReplaySampler, sampler))
        source.start()
        assert [await source.next() for _ in ITEMS] == [(item,) for item in ITEMS]
        await source.close()
        assert sampler.calls == ["start", "close"]

    asyncio.run(check())


def test_a_sampled_table_gives_batches_and_counts_what_became_of_priorities() -> None:
    async def check() -> None:
        sampler = Sampler(BATCH, BATCH)
        registry = CollectorRegistry()
        exponent = ImportanceExponent(load_config(None, ["algorithm.name=apex"], {}))
        source = BatchSource(cast(BatchSampler, sampler), metrics(registry), exponent, has_priorities=True)
        source.start()
        assert await source.next() is BATCH
        sampler.stats.num_updated, sampler.stats.num_gone = 5, 2
        assert await source.next() is BATCH
        sampler.stats.num_updated, sampler.stats.num_updates_dropped = 9, 1
        await source.close()
        assert sampler.calls == ["start", "close"]
        for outcome, number in (("updated", 9), ("gone", 2), ("dropped", 1)):
            name = f"shoal_learner_priorities_{outcome}_total"
            assert registry.get_sample_value(name, {"policy": "policy"}) == number

    asyncio.run(check())


@pytest.mark.parametrize(
    ("batch_bytes", "has_priorities", "drawn"),
    [(1, False, 24), (1 << 17, False, 12), (1 << 20, False, 3), (1, True, 3)],
)
def test_small_batches_are_drawn_several_at_a_time(
    batch_bytes: int, has_priorities: bool, drawn: int
) -> None:
    sampler = Sampler()
    exponent = ImportanceExponent(load_config(None, ["algorithm.name=sac"], {}))
    source = BatchSource(cast(BatchSampler, sampler), metrics(), exponent, has_priorities)
    source.go_on_from(0, batch_bytes)
    assert sampler.batch_size == drawn


def test_priorities_that_nobody_would_take_end_the_sampling() -> None:
    sampler = Sampler()
    exponent = ImportanceExponent(load_config(None, ["algorithm.name=apex"], {}))
    source = BatchSource(cast(BatchSampler, sampler), metrics(), exponent, has_priorities=True)
    source.send_priorities(REFS, np.full(3, np.nan))
    assert isinstance(sampler.failure, InvalidArgumentError)
