"""Policy versions: rising in one life, over lives, above what subscribers have. Kills: test_checkpoint."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.learner.versions import MAX_FOREIGN_VERSION, VersionCounter
from shoal.errors import InvalidArgumentError, UserError


def test_counts_from_zero(tmp_path: Path) -> None:
    counter = VersionCounter(tmp_path / "v", block=4)
    assert [counter.next() for _ in range(20)] == list(range(20))


@settings(max_examples=50, deadline=None)
@given(lives=st.lists(st.tuples(st.integers(0, 30), st.integers(-1, 200)), min_size=1, max_size=6))
def test_rises_over_lives_and_above_subscribers(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("versions") / "v"
    last = -1
    for num_versions, foreign in lives:
        counter = VersionCounter(path, block=8)
        for index in range(num_versions):
            if index == num_versions // 2:
                counter.raise_above(foreign)
                last = max(last, foreign)
            version = counter.next()
            assert version > last
            assert int(path.read_text()) > version, "used before it was reserved"
            last = version


@pytest.mark.parametrize("num_used", [1, 8, 9, 21])
def test_a_restart_skips_no_more_than_one_block(tmp_path: Path, num_used: int) -> None:
    first = VersionCounter(tmp_path / "v", block=8)
    last = [first.next() for _ in range(num_used)][-1]
    assert last < VersionCounter(tmp_path / "v", block=8).next() <= last + 8


def test_the_disk_is_touched_once_per_block(tmp_path: Path) -> None:
    counter = VersionCounter(tmp_path / "v", block=8)
    reserved = []
    for _ in range(17):
        counter.next()
        reserved.append(int((tmp_path / "v").read_text()))
    assert reserved == [8] * 8 + [16] * 8 + [24]


@pytest.mark.parametrize("version", [-2, MAX_FOREIGN_VERSION, 2**63 - 1])
def test_a_wild_version_of_a_subscriber_is_refused(tmp_path: Path, version: int) -> None:
    counter = VersionCounter(tmp_path / "v")
    with pytest.raises(InvalidArgumentError, match=f"policy version {version} is out of range"):
        counter.raise_above(version)
    assert counter.next() == 0


@pytest.mark.parametrize("content", [b"", b"abc\n", b"-5\n", b"12 13\n", b"9" * 20, b"\x00\x01"])
def test_nonsense_in_the_file_is_the_users_to_mend(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "v").write_bytes(content)
    with pytest.raises(UserError, match="instead of a policy version"):
        VersionCounter(tmp_path / "v")


def test_a_disk_that_fails_does_not_stop_versions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The directory is gone: every reservation fails, one line says so, versions rise."""
    directory = tmp_path / "gone"
    directory.mkdir()
    now = 0.0
    counter = VersionCounter(directory / "v", block=4, clock=lambda: now)
    directory.rmdir()
    with caplog.at_level(logging.ERROR):
        assert [counter.next() for _ in range(20)] == list(range(20))
        assert len(caplog.records) == 1
        assert "versions may repeat after a crash" in caplog.text
        directory.mkdir()
        now = 11.0
        assert counter.next() == 20
    assert len(caplog.records) == 1
    assert int((directory / "v").read_text()) > 20


def test_two_threads_get_no_version_twice(tmp_path: Path) -> None:
    counter = VersionCounter(tmp_path / "v", block=16)
    taken: list[list[int]] = [[], []]
    threads = [
        threading.Thread(target=lambda mine=mine: mine.extend(counter.next() for _ in range(300)))
        for mine in taken
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert sorted(taken[0] + taken[1]) == list(range(600))
