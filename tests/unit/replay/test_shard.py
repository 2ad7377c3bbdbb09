"""The shard: what may enter, what is a repeat, when it is acked, and a ledger that adds up under anything."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import services.replay.shard
from services.replay.shard import MAX_ID_CHARS, Shard
from services.replay.tables import MAX_PAYLOADS, Insertion
from shoal.clients.replay_shard import Ack, Append, Outcome
from shoal.config.connections import LimitsSection
from shoal.config.tables import AnyTable, QueueTable, SequenceTable, TransitionTable
from shoal.config.tree import ReplaySection
from shoal.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError
from shoal.records import ArraySpec, Life
from shoal.wire import encode_trajectory
from tests.service.replay_items import trajectory
from tests.unit.replay.payloads import payload
from tests.unit.replay.shards import LIFE, PAYLOAD, an, make_shard, stats_of
from tests.unit.replay.virtual_time import run, settle

KEYS = np.array([1], np.uint64)


def test_stored_bytes_come_out_as_they_went_in() -> None:
    async def main() -> None:
        shard = make_shard()
        assert await shard.append(LIFE, "train", an(4)) == Ack(4, Outcome.STORED)
        sampled = await shard.sample("train", 1)
        assert sampled.items[0].payloads == (PAYLOAD,)
        assert (sampled.items[0].life, sampled.items[0].sequence) == (LIFE, 4)
        assert (sampled.num_items, sampled.num_bytes, sampled.priority_mass) == (1, len(PAYLOAD), 1.0)
        left = await shard.sample("train", 0)
        assert (left.items, left.num_items, left.num_bytes, left.priority_mass) == ((), 0, 0, 0.0)

    run(main())


def test_the_state_of_a_policy_is_kept_with_its_unroll_and_refused_by_single_transitions() -> None:
    async def main() -> None:
        tables: dict[str, AnyTable] = {"q": QueueTable(), "s": SequenceTable(), "t": TransitionTable()}
        shard = Shard(ReplaySection(tables=tables), LimitsSection(), None)
        unroll = trajectory()
        frames = np.arange(3 * 84 * 84, dtype=np.uint8).reshape(1, 1, 3, 84, 84)
        unroll.columns.update(
            {"initial.core": np.ones((1, 1, 5), np.float32), "initial.frames.observation": frames}
        )
        data = encode_trajectory(unroll)
        for name in ("q", "s"):
            assert (await shard.append(LIFE, name, an(0, data))).outcome is Outcome.STORED
            assert (await shard.sample(name, 1)).items[0].payloads == (data,)
        refused = await shard.append(LIFE, "t", an(0, data))
        assert refused.outcome is Outcome.REJECTED
        assert "initial.core, initial.frames.observation" in refused.reason
        assert "use a table of kind sequence" in refused.reason
        # A state is as much a part of a table's signature as any column.
        unroll.columns["initial.core"] = np.ones((1, 1, 6), np.float32)
        other = await shard.append(LIFE, "s", an(1, encode_trajectory(unroll)))
        assert "initial.core float32[6] differs" in other.reason
        unroll.columns["initial.core"] = np.full((1, 1, 5), np.nan, np.float32)
        nan = await shard.append(LIFE, "s", an(1, encode_trajectory(unroll)))
        assert "initial.core has 5 values that are not finite" in nan.reason

    run(main())


def test_repeats_are_acked_and_not_stored_per_life_and_table() -> None:
    async def main() -> None:
        shard = make_shard()
        assert (await shard.append(LIFE, "train", an(1))).outcome is Outcome.STORED
        assert (await shard.append(LIFE, "train", an(1))).outcome is Outcome.DUPLICATE
        assert (await shard.append(Life("actor", "next"), "train", an(1))).outcome is Outcome.STORED
        assert (await shard.append(LIFE, "other", an(1))).outcome is Outcome.STORED
        stats = stats_of(shard)
        assert (stats.num_items, stats.num_inserted, stats.num_duplicates) == (2, 2, 1)

    run(main())


def test_resend_while_the_first_insert_still_waits_is_stored_once() -> None:
    async def main() -> None:
        shard = make_shard(max_items=1)
        await shard.append(LIFE, "train", an(0))
        first = asyncio.ensure_future(shard.append(LIFE, "train", an(1, timeout_s=60.0)))
        await settle()
        resend = asyncio.ensure_future(shard.append(LIFE, "train", an(1, timeout_s=60.0)))
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
        await shard.append(LIFE, "train", an(0))
        first = asyncio.ensure_future(shard.append(LIFE, "train", an(1, timeout_s=60.0)))
        await settle()
        resend = asyncio.ensure_future(shard.append(LIFE, "train", an(1, timeout_s=60.0)))
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
        await shard.append(LIFE, "train", an(0))
        for given_s, waited_s, expected_s in (
            (2.0, 0.0, 2.0),
            (0.0, 0.0, 7.0),
            (2.0, 1.5, 0.5),
            (2.0, 5.0, 0.0),
        ):
            started = loop.time()
            ack = await shard.append(LIFE, "train", an(1, timeout_s=given_s), waited_s)
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
        garbage = await shard.append(LIFE, "train", an(0, b"\xff\xff garbage"))
        assert garbage.outcome is Outcome.REJECTED
        assert "no Trajectory message" in garbage.reason
        large = await shard.append(LIFE, "train", an(1, PAYLOAD, payload(envs=300)))
        assert large.outcome is Outcome.REJECTED
        assert "above the limit of 1024 bytes" in large.reason
        other = await shard.append(LIFE, "other", an(1, PAYLOAD, payload(width=9)))
        assert "signature" in shard.tables["other"].table.ledger.num_rejected
        assert other.outcome is Outcome.REJECTED
        assert "float32[4]" in other.reason
        assert "float32[9]" in other.reason
        rejected = {"invalid": 1, "limit": 2, "signature": 0, "not_finite": 0, "range": 0}
        assert shard.tables["train"].table.ledger.num_rejected == rejected
        assert shard.tables["other"].table.ledger.num_rejected["signature"] == 2
        stats = stats_of(shard)
        assert (stats.num_rejected, stats.num_inserted, stats.num_items) == (3, 3, 0)
        assert (await shard.append(LIFE, "train", an(0))).outcome is Outcome.STORED

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
            ack = await shard.append(LIFE, "train", an(0))
        assert ack.outcome is Outcome.REJECTED
        assert "internal error while checking" in ack.reason
        assert (await shard.append(LIFE, "train", an(0))).outcome is Outcome.STORED

    run(main())
    assert "OverflowError: bug" in caplog.text


def test_item_above_the_tables_or_the_messages_size_is_rejected_instead_of_waiting_for_ever() -> None:
    async def main() -> None:
        big = payload(envs=2000)
        shard = make_shard(max_bytes=len(big) - 1)
        ack = await shard.append(LIFE, "train", an(0, big))
        assert ack.outcome is Outcome.REJECTED
        assert f"max_bytes of table 'train' ({len(big) - 1})" in ack.reason
        shard = make_shard(LimitsSection(max_message_bytes=1 << 16))
        ack = await shard.append(LIFE, "train", an(0, payload(envs=4000)))
        assert ack.outcome is Outcome.REJECTED
        assert "limits.max_message_bytes" in ack.reason
        assert asyncio.get_running_loop().time() == 0.0

    run(main())


def test_what_was_stored_fits_into_one_answer() -> None:
    async def main() -> None:
        limits = LimitsSection(max_message_bytes=1 << 16)
        shard = make_shard(limits)
        item = payload(envs=400)
        for sequence in range(6):
            assert (await shard.append(LIFE, "train", an(sequence, item))).outcome is Outcome.STORED
        sizes = []
        while stats_of(shard).num_items:
            items = (await shard.sample("train", 6)).items
            sizes.append(len(items))
            assert sum(item.num_bytes for item in items) < limits.max_message_bytes
        assert sum(sizes) == 6
        assert 1 < max(sizes) < 6

    run(main())


def test_unknown_tables_and_bad_requests() -> None:
    async def main() -> None:
        shard = make_shard()
        with pytest.raises(NotFoundError, match="no replay table 'nope' here: there are train, other"):
            shard.check_append(LIFE, "nope")
        with pytest.raises(NotFoundError):
            await shard.append(LIFE, "nope", an(0))
        with pytest.raises(NotFoundError):
            await shard.sample("nope", 1)
        with pytest.raises(NotFoundError):
            shard.update_priorities("nope", KEYS, np.ones(1))
        with pytest.raises(InvalidArgumentError, match="-1 items"):
            await shard.sample("train", -1)
        for life in (Life("", "run"), Life("actor", ""), Life("a" * (MAX_ID_CHARS + 1), "run")):
            with pytest.raises(InvalidArgumentError, match="1 to 128"):
                shard.check_append(life, "train")
        with pytest.raises(InvalidArgumentError, match="1 keys with 2 priorities"):
            shard.update_priorities("train", KEYS, np.ones(2))
        for priority in (-1.0, float("nan"), float("inf")):
            with pytest.raises(InvalidArgumentError, match="not a finite number"):
                shard.update_priorities("train", KEYS, np.array([priority]))
        with pytest.raises(InvalidArgumentError, match="int64"):
            shard.update_priorities("train", KEYS.astype(np.int64), np.ones(1))
        with pytest.raises(FailedPreconditionError, match="no priorities"):
            shard.update_priorities("train", KEYS, np.ones(1))
        with pytest.raises(FailedPreconditionError, match="x float64"):
            shard.check_append(LIFE, "train", (ArraySpec("x", "float32", ()), ArraySpec("x", "float64", ())))

    run(main())


def test_what_a_stream_declares_counts_once_it_appends() -> None:
    async def main() -> None:
        shard = make_shard()
        # Neither appends: who does is not bound by either.
        shard.check_append(LIFE, "train", (ArraySpec("x", "float32", ()),))
        shard.check_append(LIFE, "train", (ArraySpec("x", "float64", ()),))
        declared = (ArraySpec("action", "int64", (), 1),)
        shard.check_append(LIFE, "train", declared)
        ack = await shard.append(LIFE, "train", an(0, payload(1)), declared=declared)
        assert "1 categories" in ack.reason
        ack = await shard.append(LIFE, "train", an(1, payload(0)), declared=declared)
        assert ack.outcome is Outcome.STORED
        with pytest.raises(FailedPreconditionError, match="x float64"):
            shard.check_append(LIFE, "train", (ArraySpec("x", "float64", ()),))
        shard.check_append(LIFE, "train", declared)

    run(main())


def test_a_draining_shard_refuses_appends_and_hands_out_the_rest() -> None:
    async def main() -> None:
        shard = make_shard(max_items=1)
        await shard.append(LIFE, "train", an(0))
        waiting = asyncio.ensure_future(shard.append(LIFE, "train", an(1, timeout_s=60.0)))
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


def test_an_append_of_several_is_stored_or_refused_as_a_whole() -> None:
    async def main() -> None:
        shard = make_shard()
        three = [payload(number) for number in range(3)]
        assert (await shard.append(LIFE, "train", an(0, *three))).outcome is Outcome.STORED
        assert (await shard.append(LIFE, "train", an(0, *three))).outcome is Outcome.DUPLICATE
        assert (await shard.append(LIFE, "train", an(1, PAYLOAD, b"\xff"))).outcome is Outcome.REJECTED
        items = (await shard.sample("train", 10)).items
        assert [(item.key, item.sequence, item.payloads[0]) for item in items] == [
            (1, 0, three[0]),
            (2, 0, three[1]),
            (3, 0, three[2]),
        ]
        stats = stats_of(shard)
        assert (stats.num_inserted, stats.num_rejected, stats.num_duplicates) == (5, 2, 1)
        for payloads in ((), (PAYLOAD,) * (MAX_PAYLOADS + 1)):
            ack = await shard.append(LIFE, "train", Append(2, payloads))
            assert ack.outcome is Outcome.REJECTED
            assert f"append of {len(payloads)} trajectories" in ack.reason

    run(main())


def test_an_append_that_is_large_once_unpacked_is_refused_though_each_trajectory_is_small() -> None:
    async def main() -> None:
        shard = make_shard(LimitsSection(max_trajectory_bytes=2048))
        assert (await shard.append(LIFE, "train", an(0, PAYLOAD))).outcome is Outcome.STORED
        ack = await shard.append(LIFE, "train", an(1, *[PAYLOAD] * 15))
        assert ack.outcome is Outcome.REJECTED
        assert "limits.max_trajectory_bytes" in ack.reason

    run(main())


def test_all_unrolls_of_a_sequence_must_fit_into_one_answer() -> None:
    async def main() -> None:
        limits = LimitsSection(max_message_bytes=1 << 16)
        item = payload(envs=1, width=2000)
        for unrolls, outcome in ((1, Outcome.STORED), (4, Outcome.REJECTED)):
            tables: dict[str, AnyTable] = {"train": SequenceTable(unrolls=unrolls, max_items=10)}
            shard = Shard(ReplaySection(tables=tables), limits)
            assert (await shard.append(LIFE, "train", an(0, item))).outcome is outcome

    run(main())


def test_what_waits_for_its_turn_holds_no_unpacked_columns_that_its_table_does_not_need() -> None:
    tables: dict[str, AnyTable] = {
        "queue": QueueTable(),
        "sequence": SequenceTable(max_items=10),
        "transition": TransitionTable(max_items=10),
    }
    shard = Shard(ReplaySection(tables=tables), LimitsSection())
    unpacked = trajectory()
    for name, kept in (
        ("queue", ["first"]),
        ("sequence", ["first"]),
        ("transition", list(unpacked.columns)),
    ):
        insertion = Insertion(LIFE, 0, (encode_trajectory(unpacked),), ())
        shard.tables[name].check(insertion, iter([unpacked]))
        (left,) = insertion.trajectories
        assert list(left.columns) == kept
        assert (left.unroll_length, left.num_envs) == (unpacked.unroll_length, unpacked.num_envs)


def test_an_append_that_the_table_refuses_does_not_fix_the_signature() -> None:
    async def main() -> None:
        tables: dict[str, AnyTable] = {"train": SequenceTable(max_items=10)}
        shard = Shard(ReplaySection(tables=tables), LimitsSection())
        two_envs = await shard.append(LIFE, "train", an(0, payload(envs=2, width=9)))
        assert two_envs.outcome is Outcome.REJECTED
        assert "one environment" in two_envs.reason
        assert (await shard.append(LIFE, "train", an(1, payload(envs=1)))).outcome is Outcome.STORED

    run(main())
