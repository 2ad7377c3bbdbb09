"""Files that are whole or not there, and the lock on a run directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.learner.files import DirectoryLock, replace_durably
from services.learner.metrics import LearnerMetrics
from services.learner.parts import build_parts, take_run_dir
from services.learner.result import RunResult, clear_result, write_result
from shoal.config import Config, load_config
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


def config_of(run_dir: Path, *overrides: str) -> Config:
    return load_config(None, [f"run.dir={run_dir}", *overrides], {})


TWO = "env.policies={red: [red_*], blue: ['*']}"


@pytest.mark.parametrize(("overrides", "where"), [((), ""), ((TWO,), "policies/blue")])
def test_a_second_learner_leaves_the_first_ones_files(
    tmp_path: Path, overrides: tuple[str, ...], where: str
) -> None:
    config = config_of(tmp_path / "run", *overrides)
    lock = take_run_dir(config)
    being_written = tmp_path / "run" / where / "checkpoints" / ".tmp-000001-step-5"
    being_written.mkdir()
    with pytest.raises(UserError, match="another learner is running"):
        take_run_dir(config)
    assert being_written.exists()
    lock.release()
    take_run_dir(config).release()
    assert not being_written.exists(), "a dead writer's leftover is cleared"


def test_each_policy_has_its_place_and_no_result_of_an_earlier_session(tmp_path: Path) -> None:
    config = config_of(tmp_path, TWO)
    take_run_dir(config).release()
    results = [
        tmp_path / "result.json",
        *(tmp_path / f"policies/{name}/result.json" for name in ("red", "blue")),
    ]
    for path in results:
        path.write_text("{}")
    take_run_dir(config).release()
    assert not any(path.exists() for path in results)

    async def build() -> list[Path]:
        parts = build_parts(config, LearnerMetrics(CollectorRegistry()))
        assert [part.metrics.policy for part in parts] == ["red", "blue"]
        assert [part.versions.next() for part in parts] == [0, 0]
        return [part.store.path for part in parts]

    assert asyncio.run(build()) == [tmp_path / f"policies/{name}/checkpoints" for name in ("red", "blue")]
    assert (tmp_path / "policies" / "red" / "policy_version").exists()
    assert not (tmp_path / "policy_version").exists()


@pytest.mark.parametrize(
    ("before", "where", "after", "said"),
    [
        ((), "checkpoints", (TWO,), "has one policy and env.policies asks for several"),
        ((TWO,), "policies/blue/checkpoints", (), "has several policies and env.policies asks for one"),
    ],
)
def test_checkpoints_that_would_not_be_found_are_not_passed_over_in_silence(
    tmp_path: Path, before: tuple[str, ...], where: str, after: tuple[str, ...], said: str
) -> None:
    take_run_dir(config_of(tmp_path, *before)).release()
    # Nothing was trained yet.
    take_run_dir(config_of(tmp_path, *after)).release()
    (tmp_path / where / "000001-step-5").mkdir()
    with pytest.raises(UserError, match=rf"{said}: .*{where}/000001.*or use another run\.dir"):
        take_run_dir(config_of(tmp_path, *after))
    take_run_dir(config_of(tmp_path, *before)).release()


@pytest.mark.parametrize("name", [".lock", "result.json"])
def test_a_directory_in_the_way_is_the_users_to_mend(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=rf"cannot write to {tmp_path}/{name}: .*another run\.dir"):
        take_run_dir(config_of(tmp_path))


def test_a_run_dir_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run_dir = tmp_path / "file" / "run"
    with pytest.raises(UserError, match=rf"cannot write to {run_dir}: Not a directory\. .*another run\.dir"):
        take_run_dir(config_of(run_dir))


def test_result_round_trip(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = RunResult("until_return", 481.5, 1000, 4000, 10, 7, 12.5, "red")
    write_result(tmp_path, result)
    text = (tmp_path / "result.json").read_text()
    assert '"reason": "until_return"' in text
    assert '"mean_return": 481.5' in text
    assert '"policy": "red"' in text
    clear_result(tmp_path)
    clear_result(tmp_path)
    assert not list(tmp_path.iterdir())
    write_result(tmp_path / "gone", result)
    assert "cannot write" in caplog.text
