"""Files that are there as a whole or not at all."""

from __future__ import annotations

import resource
import signal
from pathlib import Path

import pytest

from shoal.cli.files import write_whole


def test_a_write_that_fails_midway_leaves_what_was_there(tmp_path: Path) -> None:
    """The system itself refuses: no file may grow beyond a limit."""
    path = tmp_path / "config.yaml"
    write_whole(path, b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(OSError, match="File too large"):
            write_whole(path, b"new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path], "nothing is left beside it"
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
