"""Where a shard keeps its files, and that only one process does."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from services.replay.__main__ import main
from services.replay.directory import DirectoryLock, shard_directory
from shoal.config import Config
from shoal.config.tables import QueueTable
from shoal.config.tree import ReplaySection, RunSection
from shoal.errors import ConfigError, UserError
from shoal.rpc.process import ServiceContext


def config(replay_id: str = "replay", directory: Path | None = None, **table: object) -> Config:
    tables = {"train": QueueTable.model_validate(table)}
    return Config(
        run=RunSection(dir=Path("runs/pong")),
        replay=ReplaySection.model_validate({"id": replay_id, "dir": directory, "tables": tables}),
    )


def test_only_tables_that_keep_files_have_a_directory() -> None:
    assert shard_directory(config()) is None
    assert shard_directory(config(directory=Path("/data"))) is None
    expected = Path("runs/pong/replay/replay")
    assert shard_directory(config(durability="wal")) == expected
    assert shard_directory(config(durability="fsync")) == expected
    assert shard_directory(config(snapshot_every_s=10.0)) == expected
    assert shard_directory(config("replay-7", durability="wal")) == Path("runs/pong/replay/replay-7")
    assert shard_directory(config(directory=Path("/data"), durability="wal")) == Path("/data")


@pytest.mark.parametrize("name", ["..", ".", "../x", "a/b", "/etc", "-x", "a\0b", "a b", "é"])
def test_an_id_never_leads_out_of_the_runs_directory(name: str) -> None:
    with pytest.raises(ConfigError, match=r"replay\.dir"):
        shard_directory(config(name, durability="wal"))
    assert shard_directory(config(name, Path("/data"), durability="wal")) == Path("/data")


def test_a_directory_has_one_holder_at_a_time(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "inside"
    lock = DirectoryLock(directory)
    with pytest.raises(UserError, match=f"in use by process {os.getpid()}: stop it"):
        DirectoryLock(directory)
    lock.release()
    DirectoryLock(directory).release()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot keep replay files in .*file/x: Not a directory"):
        DirectoryLock(tmp_path / "file" / "x")


def refuse(number: int) -> Callable[..., int]:
    def call(*arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
def test_a_full_disk_does_not_stop_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(os, call, refuse(errno.ENOSPC))
    lock = DirectoryLock(tmp_path)
    with pytest.raises(UserError, match=r"in use by process unknown: stop it"):
        DirectoryLock(tmp_path)
    lock.release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EROFS, errno.EACCES])
def test_a_directory_that_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", refuse(number))
    with pytest.raises(UserError, match=rf"cannot lock {tmp_path}/lock: {os.strerror(number)}; keep"):
        DirectoryLock(tmp_path)
    monkeypatch.setattr(os, "open", refuse(number))
    with pytest.raises(UserError, match=rf"cannot keep replay files in {tmp_path}: {os.strerror(number)}"):
        DirectoryLock(tmp_path)


def test_the_directory_is_held_until_the_process_ends(tmp_path: Path) -> None:
    settings = config(directory=tmp_path, durability="wal")

    async def run() -> None:
        context = ServiceContext("replay", settings)
        context.stop()
        await asyncio.wait_for(main(settings, context), 30.0)

    asyncio.run(run())
    # A thread may still be writing, if the disk held it up.
    with pytest.raises(UserError, match=f"in use by process {os.getpid()}"):
        DirectoryLock(tmp_path)
