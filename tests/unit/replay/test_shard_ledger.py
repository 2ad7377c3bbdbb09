"""A shard under overlapping calls: each sequence is stored at most once and its ledger adds up."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from services.replay.dedup import Claim, Dedup
from services.replay.shard import Shard
from shoal.clients.replay_shard import Ack, Outcome
from shoal.config.connections import LimitsSection
from shoal.config.tree import ReplaySection
from shoal.records import Life
from tests.unit.replay.shards import LIFE, an, assert_adds_up, make_shard, stats_of
from tests.unit.replay.virtual_time import run


class Forgetful(Dedup):
    """The control: every item is new."""

    async def claim(self, life: Life, sequence: int, timeout_s: float) -> Claim:
        return Claim.GRANTED

    def settle(self, life: Life, sequence: int) -> None:
        return None


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 8), st.sampled_from([0.1, 1.0, 10.0])),
        st.tuples(st.just("garbage"), st.integers(0, 8), st.just(0.0)),
        st.tuples(st.just("sample"), st.integers(1, 3), st.sampled_from([0.1, 1.0, 10.0])),
        st.tuples(st.just("cancel"), st.integers(0, 1000), st.just(0.0)),
        st.tuples(st.just("pass"), st.integers(0, 2), st.just(0.0)),
    ),
    max_size=50,
)


async def work_through(
    shard: Shard, operations: list[tuple[str, int, float]]
) -> tuple[list[asyncio.Task[Ack]], list[int]]:
    """Do it all with overlapping calls; returns the appends and the sequences that came out, in order."""
    loop = asyncio.get_running_loop()
    appends: list[asyncio.Task[Ack]] = []
    samples = []
    for what, number, timeout_s in operations:
        if what == "append":
            appends.append(loop.create_task(shard.append(LIFE, "train", an(number, timeout_s=timeout_s))))
        elif what == "garbage":
            appends.append(loop.create_task(shard.append(LIFE, "train", an(number, b"\xff\xff\xff"))))
        elif what == "sample":
            samples.append(loop.create_task(shard.sample("train", number, timeout_s)))
        elif what == "pass":
            await asyncio.sleep(number)
        elif appends or samples:
            every = [*appends, *samples]
            every[number % len(every)].cancel()
        stats = stats_of(shard)
        assert_adds_up(stats)
    if appends or samples:
        await asyncio.wait([*appends, *samples])
    out = [item.sequence for task in samples if not task.cancelled() for item in task.result().items]
    out += [item.sequence for item in (await shard.sample("train", 100, 0.001)).items]
    return appends, out


@given(OPERATIONS)
def test_each_sequence_is_stored_at_most_once_and_the_ledger_adds_up(
    operations: list[tuple[str, int, float]],
) -> None:
    async def main() -> None:
        shard = make_shard(max_items=2)
        appends, out = await work_through(shard, operations)
        acks = [task.result() for task in appends if not task.cancelled()]
        assert len(out) == len(set(out))
        acked = {ack.sequence for ack in acks if ack.outcome in (Outcome.STORED, Outcome.DUPLICATE)}
        assert acked <= set(out)
        stats = stats_of(shard)
        counts = {outcome: sum(ack.outcome is outcome for ack in acks) for outcome in Outcome}
        assert_adds_up(stats)
        assert stats.num_inserted - stats.num_rejected == stats.num_sampled_out == len(out)
        assert stats.num_rejected == counts[Outcome.REJECTED]
        # Cancelled appends may have been counted before they could answer.
        cancelled = len(appends) - len(acks)
        assert counts[Outcome.STORED] <= len(out) <= counts[Outcome.STORED] + cancelled
        assert stats.num_duplicates == counts[Outcome.DUPLICATE]
        assert stats.num_insert_timeouts == counts[Outcome.TIMED_OUT] + counts[Outcome.PENDING]

    run(main())


def test_control_without_memory_repeats_are_stored() -> None:
    async def main() -> None:
        shard = Shard(ReplaySection(), LimitsSection(), make_dedup=Forgetful)
        _, out = await work_through(shard, [("append", 1, 1.0), ("append", 1, 1.0)])
        assert out == [1, 1]

    run(main())
