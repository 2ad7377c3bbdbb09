"""Files that are whole or not there, and the lock on a run directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.learner.__main__ import _take_run_dir
from services.learner.checkpoint import CheckpointStore
from services.learner.files import DirectoryLock, replace_durably
from services.learner.result import RunResult, clear_result, write_result
from shoal.errors import UserError


def test_replace_leaves_nothing_else(tmp_path: Path) -> None:
    for text in (b"one", b"two, longer", b""):
        replace_durably(tmp_path / "file", text)
        assert (tmp_path / "file").read_bytes() == text
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_directory_has_one_learner_at_a_time(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(UserError, match=r"another learner is running in .*run\.dir"):
        DirectoryLock(tmp_path)
    lock.release()
    DirectoryLock(tmp_path).release()


def test_a_second_learner_leaves_the_first_ones_files(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run" / "checkpoints", 3)
    lock = _take_run_dir(tmp_path / "run", store)
    being_written = store.path / ".tmp-000001-step-5"
    being_written.mkdir()
    with pytest.raises(UserError, match="another learner is running"):
        _take_run_dir(tmp_path / "run", store)
    assert being_written.exists()
    lock.release()
    _take_run_dir(tmp_path / "run", store).release()
    assert not being_written.exists(), "a dead writer's leftover is cleared"


@pytest.mark.parametrize("name", [".lock", "result.json"])
def test_a_directory_in_the_way_is_the_users_to_mend(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=rf"cannot write to {tmp_path}/{name}: .*Set run\.dir"):
        _take_run_dir(tmp_path, CheckpointStore(tmp_path / "checkpoints", 3))


def test_a_run_dir_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run_dir = tmp_path / "file" / "run"
    with pytest.raises(UserError, match=rf"cannot write to {run_dir}: Not a directory\. Set run\.dir"):
        _take_run_dir(run_dir, CheckpointStore(run_dir / "checkpoints", 3))


def test_result_round_trip(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = RunResult("until_return", 481.5, 1000, 10, 7, 12.5)
    write_result(tmp_path, result)
    text = (tmp_path / "result.json").read_text()
    assert '"reason": "until_return"' in text
    assert '"mean_return": 481.5' in text
    clear_result(tmp_path)
    clear_result(tmp_path)
    assert not list(tmp_path.iterdir())
    write_result(tmp_path / "gone", result)
    assert "cannot write" in caplog.text
