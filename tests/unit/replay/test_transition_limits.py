"""Columns of which a transition table can make no rows that it could write, read back and hand out."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.replay.shard import Shard
from services.replay.tables import EventSink, NoJournal
from services.replay.transition_table import TransitionTable
from shoal.clients.replay_shard import Ack, Append, Outcome
from shoal.config.connections import LimitsSection
from shoal.config.tables import TransitionTable as TransitionSettings
from shoal.config.tree import ReplaySection
from shoal.errors import InvalidArgumentError, LimitError
from shoal.records import OBSERVATION, Trajectory
from shoal.wire import encode_trajectory
from tests.unit.replay.payloads import LIFE, insertion, trajectory
from tests.unit.replay.restarts import Recorder
from tests.unit.replay.shards import assert_adds_up, stats_of
from tests.unit.replay.virtual_time import run


def make_table(sink: EventSink, max_sample_bytes: int = 1 << 24, **settings: Any) -> TransitionTable:
    clock = asyncio.get_running_loop().time
    return TransitionTable("train", TransitionSettings(**settings), sink, max_sample_bytes, clock)


def with_columns(*names: str, rows: int = 2) -> Trajectory:
    """Observations of these names, a number each, in place of the one that there is."""
    columns = trajectory(rows=rows, envs=1).columns
    del columns[OBSERVATION]
    return Trajectory(columns | {f"{OBSERVATION}.{name}": np.ones((rows, 1), np.float32) for name in names})


def many(number: int) -> Trajectory:
    return with_columns(*map(str, range(number)))


async def opened(directory: Path) -> Shard:
    settings = ReplaySection(tables={"train": TransitionSettings(durability="wal")})
    shard = Shard(settings, LimitsSection(), directory)
    await shard.open()
    return shard


async def append(shard: Shard, sequence: int, made: Trajectory) -> Ack:
    return await shard.append(LIFE, "train", Append(sequence, (encode_trajectory(made),)))


@pytest.mark.parametrize(
    ("fits", "does_not", "reason"),
    [
        # With action, reward, discount and num_steps a row has 256 columns.
        (many(126), many(127), "258 columns: at most 256"),
        (with_columns("x" * 32_000), with_columns("x" * 40_000), "layout of 80.* bytes: at most 65536"),
    ],
)
def test_what_is_acked_can_be_read_after_kill_9_and_what_could_not_be_is_refused(
    tmp_path: Path, fits: Trajectory, does_not: Trajectory, reason: str
) -> None:
    async def main() -> None:
        shard = await opened(tmp_path / "first")
        refused = await append(shard, 1, does_not)
        assert refused.outcome is Outcome.REJECTED
        assert re.search(reason, refused.reason)
        assert "table 'train' cannot keep transitions of these columns" in refused.reason
        assert stats_of(shard).num_items == 0
        assert_adds_up(stats_of(shard))
        assert (await append(shard, 2, fits)).outcome is Outcome.STORED
        shutil.copytree(tmp_path / "first", tmp_path / "second")
        await shard.close()
        again = await opened(tmp_path / "second")
        assert (stats_of(again).num_items, stats_of(again).num_corrupt) == (1, 0)
        sampled = (await again.sample("train", 1)).transitions
        assert sampled is not None
        assert {f"next_{name}" for name in fits.columns if name.startswith(OBSERVATION)} < set(
            sampled.columns
        )
        await again.close()

    asyncio.run(main())


def test_what_fits_with_one_row_fits_with_many() -> None:
    """The number of rows is a part of the layout: a larger number takes more bytes."""

    async def main() -> None:
        outcomes = set()
        for length in range(32_480, 32_720, 4):
            table = make_table(Recorder(), max_items=10_000)
            new = insertion(0, with_columns("x" * length, rows=1001))
            try:
                table.check(new)
            except LimitError:
                outcomes.add("refused")
            else:
                assert await table.insert(new, 0.0)
                outcomes.add("stored")
        assert outcomes == {"refused", "stored"}

    run(main())


@pytest.mark.parametrize("letter", ["x", "\N{GREEK SMALL LETTER ALPHA}"])
def test_a_row_that_no_answer_can_hold_is_refused(letter: str) -> None:
    async def main() -> None:
        # Two columns of this name are in a row, and four others with short names.
        name_bytes = 2 * len((letter * 1000).encode())
        too_small = make_table(NoJournal(), name_bytes + 6 * 256)
        with pytest.raises(LimitError, match=r"a transition .* takes \d+ bytes of an answer, which has"):
            too_small.check(insertion(0, with_columns(letter * 1000)))
        make_table(NoJournal(), name_bytes + 6 * 256 + 300).check(insertion(0, with_columns(letter * 1000)))

    run(main())


def test_a_shard_refuses_rows_above_the_limit_of_messages() -> None:
    async def main() -> None:
        limits = LimitsSection(max_message_bytes=1 << 16)
        shard = Shard(ReplaySection(tables={"train": TransitionSettings()}), limits)
        # Compressed it is small, and a row has it twice.
        for width, outcome in ((9000, Outcome.REJECTED), (6000, Outcome.STORED)):
            wide = trajectory(rows=2, envs=1)
            wide.columns[OBSERVATION] = np.zeros((2, 1, width), np.float32)
            ack = await append(shard, width, wide)
            assert ack.outcome is outcome, ack.reason
        assert stats_of(shard).num_items == 1

    run(main())


def test_rows_that_cannot_be_packed_are_not_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        def refuse(_columns: object) -> bytes:
            raise InvalidArgumentError("no")

        table = make_table(Recorder())
        new = insertion(0, trajectory())
        monkeypatch.setattr("services.replay.transition_table.encode_columns", refuse)
        with pytest.raises(InvalidArgumentError):
            await table.insert(new, 0.0)
        assert (table.num_items, table.ledger.num_inserted, new.first_key) == (0, 0, None)
        monkeypatch.undo()
        assert await table.insert(new, 0.0)

    run(main())
