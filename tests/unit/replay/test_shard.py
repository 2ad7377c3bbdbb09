"""The shard: what may enter, what is a repeat, and a ledger that adds up under anything."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

import services.replay.shard
from services.replay.dedup import Claim, Dedup
from services.replay.shard import MAX_ID_CHARS, Shard
from shoal.clients.replay import Ack, Outcome, TableStats
from shoal.config.tree import LimitsSection, QueueTable, ReplaySection
from shoal.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError
from shoal.records import Life
from tests.unit.replay.payloads import payload
from tests.unit.replay.virtual_time import run, settle

LIFE = Life("actor", "run")
PAYLOAD = payload()


class Forgetful(Dedup):
    """The control: every item is new."""

    async def claim(self, life: Life, sequence: int, timeout_s: float) -> Claim:
        return Claim.GRANTED

    def settle(self, life: Life, sequence: int, *, stored: bool) -> None:
        return None


def make_shard(limits: LimitsSection | None = None, **bounds: float) -> Shard:
    tables = {"train": QueueTable.model_validate(bounds), "other": QueueTable()}
    return Shard(
        ReplaySection(tables=tables), limits or LimitsSection(), clock=asyncio.get_running_loop().time
    )


def stats_of(shard: Shard, table: str = "train") -> TableStats:
    return next(stats for stats in shard.stats() if stats.table == table)


def test_stored_bytes_come_out_as_they_went_in() -> None:
    async def main() -> None:
        shard = make_shard()
        assert await shard.append(LIFE, "train", 4, PAYLOAD) == Ack(4, Outcome.STORED)
        sampled = await shard.sample("train", 1)
        assert sampled.items[0].payload == PAYLOAD
        assert (sampled.items[0].life, sampled.items[0].sequence) == (LIFE, 4)
        assert (sampled.num_items, sampled.num_bytes, sampled.priority_mass) == (0, 0, 0.0)

    run(main())


def test_repeats_are_acked_and_not_stored_per_life_and_table() -> None:
    async def main() -> None:
        shard = make_shard()
        assert (await shard.append(LIFE, "train", 1, PAYLOAD)).outcome is Outcome.STORED
        assert (await shard.append(LIFE, "train", 1, PAYLOAD)).outcome is Outcome.DUPLICATE
        assert (await shard.append(Life("actor", "next"), "train", 1, PAYLOAD)).outcome is Outcome.STORED
        assert (await shard.append(LIFE, "other", 1, PAYLOAD)).outcome is Outcome.STORED
        stats = stats_of(shard)
        assert (stats.num_items, stats.num_inserted, stats.num_duplicates) == (2, 2, 1)

    run(main())


def test_resend_while_the_first_insert_still_waits_is_stored_once() -> None:
    async def main() -> None:
        shard = make_shard(max_items=1)
        await shard.append(LIFE, "train", 0, PAYLOAD)
        first = asyncio.ensure_future(shard.append(LIFE, "train", 1, PAYLOAD, 60.0))
        await settle()
        resend = asyncio.ensure_future(shard.append(LIFE, "train", 1, PAYLOAD, 60.0))
        await settle()
        await shard.sample("train", 1)
        assert (await first).outcome is Outcome.STORED
        assert (await resend).outcome is Outcome.DUPLICATE
        assert stats_of(shard).num_inserted == 2

    run(main())


@pytest.mark.parametrize("granted", [False, True])
def test_broken_stream_then_resend_is_stored_once(granted: bool) -> None:
    """The first insert is cancelled while it waits, or just after a sampler stored it."""

    async def main() -> None:
        shard = make_shard(max_items=1)
        await shard.append(LIFE, "train", 0, PAYLOAD)
        first = asyncio.ensure_future(shard.append(LIFE, "train", 1, PAYLOAD, 60.0))
        await settle()
        resend = asyncio.ensure_future(shard.append(LIFE, "train", 1, PAYLOAD, 60.0))
        await settle()
        if granted:
            await shard.sample("train", 1)
        first.cancel()
        await settle()
        if not granted:
            await shard.sample("train", 1)
        ack = await resend
        assert first.cancelled()
        assert ack.outcome is (Outcome.DUPLICATE if granted else Outcome.STORED)
        items = (await shard.sample("train", 10)).items
        assert [item.sequence for item in items] == [1]
        assert stats_of(shard).num_inserted == 2

    run(main())


def test_timeouts_are_the_callers_or_the_tables_less_what_has_passed() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        shard = make_shard(max_items=1, insert_timeout_s=7.0, sample_timeout_s=9.0)
        await shard.append(LIFE, "train", 0, PAYLOAD)
        for given_s, waited_s, expected_s in (
            (2.0, 0.0, 2.0),
            (0.0, 0.0, 7.0),
            (2.0, 1.5, 0.5),
            (2.0, 5.0, 0.0),
        ):
            started = loop.time()
            ack = await shard.append(LIFE, "train", 1, PAYLOAD, given_s, waited_s)
            assert ack.outcome is Outcome.TIMED_OUT
            assert loop.time() - started == pytest.approx(expected_s)
        assert stats_of(shard).num_insert_timeouts == 4
        assert stats_of(shard).insert_wait_s == pytest.approx(9.5)
        await shard.sample("train", 1)
        for given_s, waited_s, expected_s in ((2.0, 0.0, 2.0), (0.0, 0.0, 9.0), (2.0, 1.5, 0.5)):
            started = loop.time()
            assert (await shard.sample("train", 1, given_s, waited_s)).items == ()
            assert loop.time() - started == pytest.approx(expected_s)
        assert stats_of(shard).sample_wait_s == pytest.approx(11.5)

    run(main())


def test_what_breaks_a_rule_is_rejected_with_the_reason_and_may_be_sent_right_later() -> None:
    async def main() -> None:
        shard = make_shard(LimitsSection(max_tensor_bytes=1024), max_bytes=1 << 20)
        garbage = await shard.append(LIFE, "train", 0, b"\xff\xff garbage")
        assert garbage.outcome is Outcome.REJECTED
        assert "no Trajectory message" in garbage.reason
        large = await shard.append(LIFE, "train", 1, payload(envs=300))
        assert large.outcome is Outcome.REJECTED
        assert "above the limit of 1024 bytes" in large.reason
        assert shard.tables["train"].ledger.num_rejected == {"invalid": 1, "limit": 1}
        assert stats_of(shard).num_rejected == 2
        assert (await shard.append(LIFE, "train", 0, PAYLOAD)).outcome is Outcome.STORED

    run(main())


def test_a_fault_of_the_check_itself_is_a_rejection_with_its_traceback_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As an ending of the stream the writer would send the same item again, for ever."""

    def broken(payload: bytes, limits: LimitsSection) -> None:
        raise OverflowError("bug")

    async def main() -> None:
        shard = make_shard()
        with monkeypatch.context() as patch:
            patch.setattr(services.replay.shard, "decode_trajectory", broken)
            ack = await shard.append(LIFE, "train", 0, PAYLOAD)
        assert ack.outcome is Outcome.REJECTED
        assert "internal error while checking" in ack.reason
        assert (await shard.append(LIFE, "train", 0, PAYLOAD)).outcome is Outcome.STORED

    run(main())
    assert "OverflowError: bug" in caplog.text


def test_item_above_the_tables_or_the_messages_size_is_rejected_instead_of_waiting_for_ever() -> None:
    async def main() -> None:
        big = payload(envs=2000)
        shard = make_shard(max_bytes=len(big) - 1)
        ack = await shard.append(LIFE, "train", 0, big)
        assert ack.outcome is Outcome.REJECTED
        assert f"max_bytes of table 'train' ({len(big) - 1})" in ack.reason
        shard = make_shard(LimitsSection(max_message_bytes=1 << 16))
        ack = await shard.append(LIFE, "train", 0, payload(envs=4000))
        assert ack.outcome is Outcome.REJECTED
        assert "limits.max_message_bytes" in ack.reason
        assert asyncio.get_running_loop().time() == 0.0

    run(main())


def test_what_was_stored_fits_into_one_answer() -> None:
    async def main() -> None:
        limits = LimitsSection(max_message_bytes=1 << 16)
        shard = make_shard(limits)
        item = payload(envs=600)
        for sequence in range(6):
            assert (await shard.append(LIFE, "train", sequence, item)).outcome is Outcome.STORED
        sizes = []
        while stats_of(shard).num_items:
            items = (await shard.sample("train", 6)).items
            sizes.append(len(items))
            assert sum(len(item.payload) for item in items) < limits.max_message_bytes
        assert sum(sizes) == 6
        assert 1 < max(sizes) < 6

    run(main())


def test_unknown_tables_and_bad_requests() -> None:
    async def main() -> None:
        shard = make_shard()
        with pytest.raises(NotFoundError, match="no replay table 'nope' here: there are train, other"):
            shard.check_append(LIFE, "nope")
        with pytest.raises(NotFoundError):
            await shard.append(LIFE, "nope", 0, PAYLOAD)
        with pytest.raises(NotFoundError):
            await shard.sample("nope", 1)
        with pytest.raises(NotFoundError):
            shard.update_priorities("nope", [], [])
        with pytest.raises(InvalidArgumentError, match="at least 1"):
            await shard.sample("train", 0)
        for life in (Life("", "run"), Life("actor", ""), Life("a" * (MAX_ID_CHARS + 1), "run")):
            with pytest.raises(InvalidArgumentError, match="1 to 128"):
                shard.check_append(life, "train")
        with pytest.raises(InvalidArgumentError, match="1 keys with 2 priorities"):
            shard.update_priorities("train", [1], [1.0, 2.0])
        for priority in (-1.0, float("nan"), float("inf")):
            with pytest.raises(InvalidArgumentError, match="not a finite number"):
                shard.update_priorities("train", [1], [priority])
        with pytest.raises(FailedPreconditionError, match="no priorities"):
            shard.update_priorities("train", [1], [1.0])

    run(main())


def test_a_draining_shard_refuses_appends_and_hands_out_the_rest() -> None:
    async def main() -> None:
        shard = make_shard(max_items=1)
        await shard.append(LIFE, "train", 0, PAYLOAD)
        waiting = asyncio.ensure_future(shard.append(LIFE, "train", 1, PAYLOAD, 60.0))
        await settle()
        shard.stop_inserts()
        with pytest.raises(UnavailableError):
            await waiting
        with pytest.raises(UnavailableError):
            shard.check_append(LIFE, "train")
        assert len((await shard.sample("train", 1)).items) == 1
        shard.stop_samples()
        with pytest.raises(UnavailableError):
            await shard.sample("train", 1)

    run(main())


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
            appends.append(loop.create_task(shard.append(LIFE, "train", number, PAYLOAD, timeout_s)))
        elif what == "garbage":
            appends.append(loop.create_task(shard.append(LIFE, "train", number, b"\xff\xff\xff")))
        elif what == "sample":
            samples.append(loop.create_task(shard.sample("train", number, timeout_s)))
        elif what == "pass":
            await asyncio.sleep(number)
        elif appends or samples:
            every = [*appends, *samples]
            every[number % len(every)].cancel()
        stats = stats_of(shard)
        assert stats.num_inserted == stats.num_items + stats.num_sampled_out + stats.num_evicted
        assert stats.num_items <= stats.max_items
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
        assert stats.num_inserted == stats.num_sampled_out == len(out)
        assert stats.num_rejected == counts[Outcome.REJECTED]
        # Cancelled appends may have been counted before they could answer.
        cancelled = len(appends) - len(acks)
        assert counts[Outcome.STORED] <= stats.num_inserted <= counts[Outcome.STORED] + cancelled
        assert stats.num_duplicates == counts[Outcome.DUPLICATE]
        assert stats.num_insert_timeouts == counts[Outcome.TIMED_OUT]

    run(main())


def test_control_without_memory_repeats_are_stored() -> None:
    async def main() -> None:
        shard = Shard(ReplaySection(), LimitsSection(), make_dedup=Forgetful)
        _, out = await work_through(shard, [("append", 1, 1.0), ("append", 1, 1.0)])
        assert out == [1, 1]

    run(main())
