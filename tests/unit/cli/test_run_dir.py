"""The run directory's name, lock and errors."""

from __future__ import annotations

import errno
import gc
import os
import time
from pathlib import Path

import pytest

from shoal.cli.run_dir import RunDir, default_root, run_name
from shoal.errors import UserError

WHEN = time.strptime("2026-01-02 03:04:05", "%Y-%m-%d %H:%M:%S")


def test_default_name_holds_the_time_and_is_never_taken(tmp_path: Path) -> None:
    first = default_root("cartpole", parent=tmp_path, when=WHEN)
    assert first == tmp_path / "cartpole-20260102-030405"
    first.mkdir()
    assert default_root("cartpole", parent=tmp_path, when=WHEN).name == "cartpole-20260102-030405-2"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ALE/Pong-v5", "ALE-Pong-v5"),
        ("../../etc", "etc"),
        ("a b:c", "a-b-c"),
        ("///", "run"),
        ("x" * 99, "x" * 64),
    ],
)
def test_names_are_made_fit(text: str, name: str) -> None:
    assert run_name(text) == name


def test_lock_is_held_until_every_holder_is_gone(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    lock = run_dir.claim()
    inherited = os.dup(lock)
    os.close(lock)
    with pytest.raises(UserError, match=rf"is in use by another run \(process {os.getpid()}\)"):
        run_dir.claim()
    os.close(inherited)
    os.close(run_dir.claim())


def test_unwritable_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run_dir = RunDir(tmp_path / "file" / "run")
    with pytest.raises(UserError, match=r"cannot write run directory .*file/run: Not a directory; make room"):
        run_dir.create()
    with pytest.raises(UserError, match="cannot write run directory"):
        run_dir.claim()


def test_a_lock_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run_dir = RunDir(tmp_path)
    gc.collect()  # what the tests before left with their exceptions
    fds = os.listdir("/proc/self/fd")
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        with pytest.raises(UserError, match=rf"{tmp_path}: No space left on device; make room there"):
            run_dir.claim()
    assert os.listdir("/proc/self/fd") == fds
    os.close(run_dir.claim())


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_unreadable_result_is_no_result(tmp_path: Path, text: str) -> None:
    run_dir = RunDir(tmp_path)
    assert run_dir.read_result() == {}
    run_dir.result.write_text(text)
    assert run_dir.read_result() == {}
