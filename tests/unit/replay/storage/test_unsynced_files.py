"""Files of a process that was killed before it synced them: a new one does before it says they are safe."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from services.replay.dedup import Claim
from services.replay.storage.files import RealFiles
from shoal.errors import UserError
from shoal.journal.reader import segment_name
from tests.unit.replay.storage.faulty_files import FaultyFiles
from tests.unit.replay.storage.table_double import LIFE, recovered
from tests.unit.replay.storage.test_recovery import make_journal
from tests.unit.replay.storage.test_segments import Rig
from tests.unit.replay.virtual_time import run


def killed_before_fsync(directory: Path, durability: str) -> FaultyFiles:
    """What it wrote last is in the files, and nobody knows whether it is on the disk."""
    rig = Rig(directory, durability)
    rig.table.insert(b"first")
    assert rig.write()
    rig.table.insert(b"second")
    rig.files.fail(errno.EIO, "fsync")
    # `wal` acks all the same.
    assert rig.write() == (durability == "wal")
    rig.files.heal()
    return rig.files


@pytest.mark.parametrize(("durability", "on_disk"), [("fsync", {1: b"first"}), ("wal", {})])
def test_what_a_restart_finds_outlives_the_power(
    tmp_path: Path, durability: str, on_disk: dict[int, bytes]
) -> None:
    files = killed_before_fsync(tmp_path / "t", durability)
    # Control: without the restart this is all that would be there.
    files.lose_power(tmp_path / "before")
    assert recovered(tmp_path / "before").table.contents == on_disk
    found = recovered(tmp_path / "t", files)
    assert run(found.dedup.claim(LIFE, 2, 0.0)) is Claim.DUPLICATE, "acked"
    files.lose_power(tmp_path / "after")
    assert recovered(tmp_path / "after").table.contents == {1: b"first", 2: b"second"}


@pytest.mark.parametrize("call", ["open", "fsync"])
def test_files_that_cannot_be_synced_stop_the_start(tmp_path: Path, call: str) -> None:
    make_journal(tmp_path / "t", num_segments=1)
    files = FaultyFiles()
    files.fail(errno.EIO, call)
    with pytest.raises(
        UserError, match=rf"cannot sync .*{segment_name(1)}: {os.strerror(errno.EIO)}; mend that"
    ):
        recovered(tmp_path / "t", files)


def test_a_directory_that_cannot_be_synced_stops_the_start(tmp_path: Path) -> None:
    make_journal(tmp_path / "t", num_segments=1)

    class NoNames(FaultyFiles):
        def fsync_directory(self, path: Path) -> None:
            if path == tmp_path / "t":
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(UserError, match=r"cannot keep replay files in .*: the disk reports an error"):
        recovered(tmp_path / "t", NoNames())


class WatchingFiles(RealFiles):
    def __init__(self) -> None:
        self.synced: list[Path] = []

    def fsync_directory(self, path: Path) -> None:
        self.synced.append(path)


def test_directories_survive_the_loss_of_power_whoever_made_them(tmp_path: Path) -> None:
    for _ in range(2):
        files = WatchingFiles()
        files.make_directory(tmp_path / "run" / "shard" / "t")
        assert files.synced[:3] == [tmp_path / "run" / "shard", tmp_path / "run", tmp_path]


@pytest.mark.parametrize("why", ["not ours", "mounted"])
def test_directories_above_those_that_we_can_have_made_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "not ours":
        monkeypatch.setattr(os, "access", lambda path, mode: path not in (tmp_path, *tmp_path.parents))
    else:
        monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "run")
    files = WatchingFiles()
    files.make_directory(tmp_path / "run" / "t")
    assert files.synced == [tmp_path / "run"]
