"""Errors that no disk reports, such as MemoryError, leave the files as those that it does."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

from shoal.journal.reader import list_segments
from tests.unit.replay.storage.faulty_files import FaultyFiles
from tests.unit.replay.storage.test_segments import Rig

ERRORS = [OSError(errno.ENOSPC, "full"), MemoryError()]


class FailingFiles(FaultyFiles):
    """Fails in the middle of a write."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error: Exception | None = error
        self.closed: list[int] = []

    def append(self, descriptor: int, buffers: Sequence[bytes]) -> None:
        if self.error is not None:
            super().append(descriptor, [b"".join(buffers)[:20]])
            raise self.error
        super().append(descriptor, buffers)

    def close(self, descriptor: int) -> None:
        self.closed.append(descriptor)
        super().close(descriptor)


@pytest.mark.parametrize("error", ERRORS)
def test_a_file_that_cannot_be_begun_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    rig = Rig(tmp_path / "t")
    files = rig.log._files = FailingFiles(error)
    with pytest.raises(type(error)):
        rig.log.write(rig.queue)
    assert len(files.closed) == 1
    assert list_segments(rig.directory) == []


@pytest.mark.parametrize("error", ERRORS)
def test_half_a_write_is_cut_off(tmp_path: Path, error: Exception) -> None:
    rig = Rig(tmp_path / "t")
    files = rig.log._files = FailingFiles(error)
    files.error = None
    assert rig.write()
    rig.table.insert(b"an item")
    files.error = error
    with pytest.raises(type(error)):
        rig.log.write(rig.queue)
    files.error = None
    assert rig.write()
    location = rig.table.items[1].payloads[0].location
    assert location is not None
    [path] = list_segments(rig.directory)
    assert path.read_bytes()[location.offset :][:7] == b"an item"
    assert rig.check_nothing_acked_is_lost() == 1
