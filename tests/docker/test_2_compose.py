"""`docker-compose up`, for real: it learns, it is watched, it scales, it survives kills, it leaves nothing.

The tests are one story and run in order; `make test-docker` builds the images first.
"""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
import time
from collections.abc import Iterator

import psutil
import pytest
from docker.models.containers import Container

from tests.docker.project import Project, project

pytestmark = pytest.mark.timeout(900)

TARGET_RETURN = 450
WINDOW_S = 30.0


def _listening() -> set[tuple[str, int]]:
    """Addresses of this machine on which somebody listens for TCP."""
    found = psutil.net_connections("tcp")
    return {(each.laddr.ip, each.laddr.port) for each in found if each.status == psutil.CONN_LISTEN}


def test_up_trains_cartpole_and_down_leaves_nothing() -> None:
    with project("shoaltest") as running:
        began = time.monotonic()
        running.up(settings={"SHOAL_UNTIL_RETURN": str(TARGET_RETURN)})
        up_s = time.monotonic() - began
        learner = running.containers("learner", all=True)[0]
        code = learner.wait(timeout=300)["StatusCode"]
        assert code == 0, running.logs()
        print(f"up in {up_s:.1f} s, learner done {time.monotonic() - began:.1f} s after the command")
        result = json.loads(_read_file(learner, "/data/run/result.json"))
        print(f"mean return {result['mean_return']:.1f} after {result['env_steps']} steps")
        assert result["reason"] == "until_return"
        assert result["mean_return"] >= TARGET_RETURN
        # An end is no crash: nobody starts it again.
        learner.reload()
        assert learner.attrs["RestartCount"] == 0
        running.down()
        assert running.left() == []


@pytest.fixture(scope="module")
def listening_before() -> set[tuple[str, int]]:
    return _listening()


@pytest.fixture(scope="module")
def endless(listening_before: set[tuple[str, int]]) -> Iterator[Project]:
    """One actor, and a run that nothing ends."""
    with project("shoaltest", ["tests/docker/small_actors.yml"]) as running:
        running.up("--scale", "actor=1", settings={"SHOAL_UNTIL_RETURN": ""})
        running.until(lambda: running.value("shoal_learner_env_steps_total > 0"), "trained steps")
        yield running


def _up(running: Project, **expected: int) -> bool:
    """Whether Prometheus has exactly these targets, and all are up."""
    return running.targets() == {job: ["up"] * count for job, count in expected.items()}


def test_prometheus_has_all_targets_up(endless: Project) -> None:
    endless.until(lambda: _up(endless, actor=1, inference=1, replay=2, learner=1), "targets, all up")
    assert endless.value('count(up{run="compose"} == 1)') == 5


def test_nothing_listens_off_loopback(endless: Project, listening_before: set[tuple[str, int]]) -> None:
    new = _listening() - listening_before
    print(f"new listeners: {sorted(new)}")
    assert ("127.0.0.1", endless.port) in new
    assert {address for address, _ in new} == {"127.0.0.1"}


def test_services_are_healthy(endless: Project) -> None:
    """Those that have a health check, which are all of ours."""

    def healths() -> list[str]:
        states = [each.attrs["State"] for each in endless.containers()]
        return [state["Health"]["Status"] for state in states if "Health" in state]

    endless.until(lambda: healths() == ["healthy"] * 5, "five healthy containers")


def test_more_actors_are_more_steps(endless: Project) -> None:
    alone = endless.steps_per_second(WINDOW_S)
    endless.up("--no-recreate", "--scale", "actor=4", settings={"SHOAL_UNTIL_RETURN": ""})
    endless.until(lambda: _up(endless, actor=4, inference=1, replay=2, learner=1), "four actors")
    four = endless.steps_per_second(WINDOW_S)
    print(f"1 actor {alone:,.0f} steps/s, 4 actors {four:,.0f}: {four / alone:.2f} times")
    assert four > alone


def test_two_actors_and_a_shard_are_killed(endless: Project) -> None:
    """As a crash is: the processes die, and the restart policy brings the containers back."""
    learner = endless.containers("learner")[0]
    victims = [*endless.containers("actor")[:2], *endless.containers("replay-1")]
    versions = "min(shoal_inference_policy_version)"
    version = endless.value(versions)
    began = time.monotonic()
    for victim in victims:
        os.kill(victim.attrs["State"]["Pid"], signal.SIGKILL)
    endless.until(lambda: all(_restarted(victim) for victim in victims), "restarted containers")
    back_s = time.monotonic() - began
    endless.until(lambda: _up(endless, actor=4, inference=1, replay=2, learner=1), "targets after the kills")
    after = endless.steps_per_second(WINDOW_S)
    print(f"containers back after {back_s:.1f} s; then {after:,.0f} steps/s")
    assert after > 0
    assert version is not None
    assert endless.until(lambda: endless.value(f"{versions} > {version}"), "newer weights")
    learner.reload()
    assert learner.attrs["RestartCount"] == 0


def test_down_leaves_nothing(endless: Project) -> None:
    endless.down()
    assert endless.left() == []


def _restarted(container: Container) -> bool:
    container.reload()
    attrs = container.attrs
    return bool(attrs["RestartCount"] == 1 and attrs["State"]["Running"])


def _read_file(container: Container, path: str) -> str:
    """Out of a container, which may be over."""
    parts, _ = container.get_archive(path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(parts))) as archive:
        member = archive.extractfile(archive.getmembers()[0])
        assert member is not None
        return member.read().decode()
