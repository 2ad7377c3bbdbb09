"""`shoal replay` without a shard: how figures are laid out, and what is found in files, sound or not."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from shoal.cli.app import run
from shoal.cli.live_run import find_run, reachable
from shoal.cli.replay_files import check
from shoal.cli.replay_stats import is_well, lines, missing, record, size
from shoal.cli.run_dir import RunDir
from shoal.clients.replay_shard import TableStats
from shoal.clients.replay_stats import ReplayStats, total_of
from shoal.errors import UserError
from shoal.journal.events import Inserted, PrioritiesSet, Removed, StoredPayload, TableState
from shoal.journal.format import Record, encode_record
from shoal.journal.framing import encode_file_header, encode_frame
from shoal.journal.reader import segment_name
from shoal.records import FIRST, Life, Trajectory
from shoal.wire import encode_columns, encode_trajectory

LIFE = Life("actor-0", "f00d")
FILE_ID = 7
ROWS = encode_columns({"reward": np.zeros(4, np.float32)})


def table(**changes: object) -> TableStats:
    """A ledger that adds up: 100 = 60 + 10 + 25 + 5."""
    zero = dict.fromkeys(TableStats.__dataclass_fields__, 0)
    texts = {"table": "train", "kind": "sequence", "durability": "wal", "degraded": ""}
    counts = {
        "num_items": 60,
        "num_inserted": 100,
        "num_sampled_out": 10,
        "num_evicted": 25,
        "num_rejected": 5,
        "num_bytes": 1_500_000,
        "insert_wait_s": 1.5,
    }
    return TableStats(**{**zero, **texts, **counts, **changes})


# Statistics.


def found(away: dict[str, str] | None = None, **shards: TableStats) -> ReplayStats:
    """One table on each of these shards."""
    tables = {name: (stats,) for name, stats in shards.items()}
    return ReplayStats(tables, away or {}, {"train": total_of(shards.values())})


def test_the_ledger_is_shown_per_shard_and_in_total() -> None:
    both = found(a=table(), b=table(num_items=160, num_inserted=200))
    shown = list(lines(both))
    assert shown[0] == "table train: sequence, durability wal"
    assert [line.split()[0] for line in shown[2:5]] == ["a", "b", "total"]
    assert "100 = 60 + 10 + 25 + 5  adds up" in shown[2]
    assert "300 = 220 + 20 + 50 + 10  adds up" in shown[4]
    assert "1.5 MB" in shown[2]
    assert "3 MB" in shown[4]
    assert "inserts 0 times, 3.0 s in all" in "\n".join(shown)
    assert shown[-1] == "ledger: every item is accounted for"
    assert is_well(both)


@pytest.mark.parametrize(("change", "verdict"), [(-1, "1 MISSING"), (2, "2 TOO MANY")])
def test_a_ledger_that_does_not_add_up_is_said(change: int, verdict: str) -> None:
    wrong = found(a=table(), b=table(num_items=60 + change))
    shown = "\n".join(lines(wrong))
    assert verdict in shown
    assert shown.endswith("ledger: DOES NOT ADD UP")
    assert not is_well(wrong)
    told = record(wrong)
    assert (told["adds_up"], [entry["adds_up"] for entry in told["total"]]) == (False, [False])


def test_errors_of_shards_that_cancel_out_are_still_errors() -> None:
    wrong = found(a=table(num_items=59), b=table(num_items=61))
    assert missing(wrong.totals["train"]) == 0
    assert not is_well(wrong)


def test_what_is_wrong_with_a_shard_is_shown() -> None:
    degraded = found(away={"b": "connection refused"}, a=table(degraded="disk full"))
    shown = "\n".join(lines(degraded))
    assert "a is degraded: disk full" in shown
    assert "no answer from b: connection refused" in shown
    assert shown.endswith("adds up for the shards that answered")
    assert not is_well(degraded)


def test_tables_are_told_apart() -> None:
    other = table(table="other", num_items=0, num_evicted=85)
    two = ReplayStats({"a": (table(), other)}, {}, {"train": table(), "other": other})
    shown = list(lines(two))
    assert [line for line in shown if line.startswith("table ")] == [
        "table train: sequence, durability wal",
        "table other: sequence, durability wal",
    ]
    assert sum("100 = 0 + 10 + 85 + 5" in line for line in shown) == 1
    assert [entry["table"] for entry in record(two)["total"]] == ["train", "other"]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (64_000_000, "64 MB"), (5_000_000_000_000, "5,000 GB")],
)
def test_sizes(num_bytes: int, text: str) -> None:
    assert size(num_bytes) == text


# Which run is asked.


def test_a_run_that_goes_on_is_found_by_its_directory(tmp_path: Path) -> None:
    run_dir, sockets = RunDir(tmp_path / "run"), tmp_path / "sockets"
    run_dir.root.mkdir()
    sockets.mkdir()
    # One of them is away for a moment.
    run_dir.config.write_text("launch: {replay_shards: 2}")
    for name in ("replay-1", "replay-0.health", "actor-0"):
        (sockets / f"{name}.sock").touch()
    with reachable(run_dir, sockets, "secret"):
        live = find_run(run_dir.root)
        assert live.replay == tuple(f"unix:{sockets}/replay-{i}.sock" for i in range(2))
        assert live.token_file is not None
        assert live.token_file.read_text() == "secret"
        assert live.token_file.stat().st_mode & 0o777 == 0o600
        assert "secret" not in "".join(path.read_text() for path in run_dir.root.iterdir())
    with pytest.raises(UserError, match="no run is going on"):
        find_run(run_dir.root)


def test_the_name_of_a_socket_directory_that_is_gone_is_no_run(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.config.touch()
    run_dir.sockets.write_text(str(tmp_path / "gone"))
    with pytest.raises(UserError, match="no run is going on"):
        find_run(tmp_path)


# Files.


def payload(value: float) -> bytes:
    first = np.zeros((3, 1), np.bool_)
    return encode_trajectory(Trajectory({"observation": np.full((3, 1, 40), value), FIRST: first}))


def inserted(
    first_key: int, payloads: Sequence[bytes], priorities: Sequence[float] = (), rows: int = 0
) -> Inserted:
    return Inserted(
        first_key=first_key,
        num_keys=rows or len(payloads),
        life=LIFE,
        sequence=first_key * 10,
        payloads=tuple(StoredPayload.of(data) for data in payloads),
        priorities=np.array(priorities, np.float64),
    )


def state(keys: Sequence[int] = (), priorities: Sequence[float] = ()) -> TableState:
    return TableState(
        kind="sequence",
        signature=(),
        next_key=max(keys, default=0) + 1,
        keys=np.array(keys, np.uint64),
        priorities=np.array(priorities, np.float64),
        times_sampled=np.empty(0, np.uint32),
        counters={},
    )


def write_segment(directory: Path, number: int, records: Sequence[Record]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    parts = [encode_file_header(FILE_ID)]
    for item in records:
        meta, blobs = encode_record(item)
        parts += encode_frame(meta, blobs, FILE_ID)
    path = directory / segment_name(number)
    path.write_bytes(b"".join(parts))
    return path


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """Two tables: one with priorities in two files, one of transitions."""
    keys = np.array([2, 99], np.uint64)
    write_segment(
        tmp_path / "shard/train", 1, [state(), inserted(1, [payload(1.0), payload(2.0)], [0.5, 1.5])]
    )
    write_segment(
        tmp_path / "shard/train",
        2,
        [
            state([1, 2], [0.75, 1.5]),
            inserted(3, [payload(3.0)], [2.0]),
            PrioritiesSet(keys, np.array([8.0, 9.0])),
            Removed(np.array([1], np.uint64)),
        ],
    )
    write_segment(tmp_path / "shard/rows", 1, [state(), inserted(1, [ROWS], rows=4)])
    return tmp_path / "shard"


def dump(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    assert run(["replay", "dump", "--json", *arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_dump_lists_every_item_with_its_newest_priority(
    shard: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = dump(capsys, str(shard))
    assert [(item["table"], item["key"], item["priority"]) for item in listed] == [
        *(("rows", key, None) for key in (1, 2, 3, 4)),
        *(("train", key, priority) for key, priority in ((1, 0.75), (2, 8.0), (3, 2.0))),
    ]
    assert {item["bytes"] for item in listed[:4]} == {len(ROWS) // 4}, "rows share one payload"
    assert listed[-1] == {
        "table": "train",
        "key": 3,
        "actor": "actor-0",
        "run": "f00d",
        "sequence": 30,
        "bytes": len(payload(3.0)),
        "priority": 2.0,
    }


def test_items_without_a_priority_have_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = inserted(1, [payload(1.0), payload(2.0)], [math.nan, 1.0])
    write_segment(tmp_path, 1, [state(), given, state([2], [math.nan])])
    assert [item["priority"] for item in dump(capsys, str(tmp_path))] == [None, None]
    assert run(["replay", "dump", str(tmp_path)]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]] == ["-", "-"]


def test_dump_of_one_table_and_of_some_items(shard: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [item["key"] for item in dump(capsys, str(shard / "train"))] == [1, 2, 3]
    assert [item["table"] for item in dump(capsys, str(shard / "train"), "--limit", "2")] == ["train"] * 2
    assert dump(capsys, str(shard), "--limit", "0") == []


def test_dump_as_lines(shard: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "dump", str(shard / "train")]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["table", "key", "actor", "run", "sequence", "bytes", "priority"]
    expected = ["train", "2", "actor-0", "f00d", "10", str(len(payload(2.0))), "8"]
    assert rows[1].split() == expected
    assert len(rows) == 3


def test_verify_of_sound_files(shard: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "verify", str(shard)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("rows/000000000001.seg: sound; 2 frames, 4 items, ")
    assert shown[-1] == "3 files, sound: 8 frames, 7 items"
    assert run(["replay", "verify", "--json", str(shard)]) == 0
    assert json.loads(capsys.readouterr().out)["sound"] is True


def test_verify_of_unrolls_with_the_state_before_them(tmp_path: Path) -> None:
    first, core = np.zeros((3, 1), np.bool_), np.ones((1, 1, 40), np.float32)
    data = encode_trajectory(Trajectory({"reward": np.zeros((3, 1)), "initial.core": core, FIRST: first}))
    write_segment(tmp_path / "train", 1, [state(), inserted(1, [data], [0.5])])
    assert check(tmp_path).is_sound


def test_verify_finds_every_flipped_byte(tmp_path: Path) -> None:
    path = write_segment(
        tmp_path / "train", 1, [state(), inserted(1, [payload(1.0)], [0.5]), state([1], [1.0])]
    )
    sound = path.read_bytes()
    for offset in range(len(sound)):
        path.write_bytes(sound[:offset] + bytes([sound[offset] ^ 1]) + sound[offset + 1 :])
        assert not check(tmp_path).is_sound, offset


def test_damage_is_named_and_the_rest_is_still_dumped(
    shard: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shard / "train" / segment_name(1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 0xFF
    path.write_bytes(data)
    assert run(["replay", "verify", str(shard)]) == 1
    shown = capsys.readouterr().out
    assert "train/000000000001.seg: 1 DAMAGED; 1 frames, 0 items" in shown
    assert "CRC32C" in shown
    assert shown.splitlines()[-1] == "3 files, 1 of them DAMAGED: 7 frames, 5 items"
    assert [item["key"] for item in dump(capsys, str(shard / "train"))] == [3]


def test_a_file_that_ends_within_a_frame_is_sound(shard: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shard / "train" / segment_name(2)
    path.write_bytes(path.read_bytes()[:-1])
    assert run(["replay", "verify", str(shard)]) == 0
    assert "ends within a frame" in capsys.readouterr().out


def test_an_array_that_was_damaged_before_it_was_stored_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The frame is whole; the CRC that its sender put into the payload is not."""
    damaged = bytearray(payload(1.0))
    at = damaged.index(b"observation") + 40
    damaged[at] ^= 1
    write_segment(tmp_path, 1, [state(), inserted(5, [payload(0.0), bytes(damaged)])])
    assert run(["replay", "verify", str(tmp_path)]) == 1
    assert "payload of key 6: " in capsys.readouterr().out
    write_segment(tmp_path, 1, [state(), inserted(5, [bytes(damaged)], rows=3)])
    assert run(["replay", "verify", str(tmp_path)]) == 1
    assert "payload of keys 5 to 7: " in capsys.readouterr().out


@pytest.mark.parametrize("command", ["dump", "verify"])
@pytest.mark.parametrize(
    ("path", "message"), [("", "holds no segment files of a replay table"), ("gone", "no directory ")]
)
def test_nothing_to_read_is_the_users_mistake(
    command: str, path: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", command, str(tmp_path / path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert (captured.err.count("\n"), captured.out) == (1, "")


def one_line_with(path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", *arguments]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: cannot read ")
    assert str(path) in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_what_cannot_be_read_is_named(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "train" / segment_name(1)
    path.mkdir(parents=True)
    one_line_with(path, [command, str(tmp_path)], capsys)
    path.rmdir()
    path.symlink_to(path)
    one_line_with(path, [command, str(tmp_path)], capsys)

    def listdir(directory: Path) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(directory))

    monkeypatch.setattr(os, "listdir", listdir)
    one_line_with(tmp_path, [command, str(tmp_path)], capsys)


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay"]) == 0
    shown = capsys.readouterr()
    assert "verify" in shown.out
    assert shown.err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stats", "here"], "here is no run directory"),
        (["stats", "here", "--address", "a:1"], "give a RUN_DIR, or --address and --config, not both"),
        (["stats", "--address", "nowhere"], "needs a port from 0 to 65535"),
        (["stats", "--config", "gone.yaml"], "cannot read config file gone.yaml"),
        (["stats", "--set", "security.tokne=1"], "did you mean 'security.token'?"),
    ],
)
def test_mistakes_of_stats(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["replay", *arguments]) == 2
    assert message in capsys.readouterr().err
