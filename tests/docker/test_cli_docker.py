"""`shoal up`, `ps`, `logs`, `scale`, `chaos` and `down` with a real engine, services and Prometheus.

One project for all tests, in this order: bringing it up takes longest. `make test-docker` runs them.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.cli.docker.containers import Container
from shoal.cli.docker.engine import Project
from shoal.cli.docker.log_stream import backlog
from shoal.cli.docker.measures import LEARNER_STEPS, OPEN_STEPS
from shoal.cli.docker.prometheus import Prometheus, PrometheusError
from tests.docker.small_project import SmallProject, free_port, import_image, make_project, remove_image

pytestmark = pytest.mark.timeout(400)

NUM_ACTORS = 3


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallProject]:
    import_image()
    project = make_project(tmp_path_factory.mktemp("project"), num_actors=1)
    try:
        yield project
    finally:
        project.shoal("down", "--volumes", check=False)
        remove_image()


@pytest.fixture
def engine(small: SmallProject) -> Iterator[Project]:
    with Project.open("the test", small.name) as project:
        yield project


def until(condition: Callable[[], bool], timeout_s: float = 90) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.2)


def of(containers: list[Container], service: str) -> list[Container]:
    return [each for each in containers if each.service == service]


def knows(server: Prometheus, query: str) -> bool:
    try:
        return bool(server.now(query))
    except PrometheusError:
        return False


def test_up_waits_and_says_where_to_look(small: SmallProject, engine: Project) -> None:
    done = small.shoal("up", "--actors", str(NUM_ACTORS), "--until-return", "100000")
    assert f"project {small.name}: 7 of 7 containers up" in done.stdout
    assert f"Prometheus: http://{small.prometheus}" in done.stdout
    found = engine.containers()
    assert all(each.is_up for each in found)
    assert len(of(found, "actor")) == NUM_ACTORS
    [learner] = of(found, "learner")
    assert learner.health == "healthy"
    told = subprocess.run(
        ["docker", "inspect", "--format", "{{.Config.Env}}", learner.id],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "SHOAL__STOP__UNTIL_RETURN=100000.0" in told.stdout


def test_ps_lists_containers_and_the_learners_speed(small: SmallProject) -> None:
    server = Prometheus(small.prometheus)
    until(lambda: knows(server, f"rate({LEARNER_STEPS}[1m]) > 0"))
    lines = small.shoal("ps").stdout.splitlines()
    assert lines[0].split() == ["container", "state", "health", "restarts", "since", "address"]
    rows = {line.split()[0]: line.split()[1:] for line in lines[1:-1]}
    assert set(rows) == {"actor-1", "actor-2", "actor-3", "inference", "learner", "prometheus", "replay-0"}
    assert rows["learner"][:3] == ["running", "healthy", "0"]
    assert rows["prometheus"][-1] == small.prometheus
    assert " env steps/s" in lines[-1]


def test_ps_without_prometheus(small: SmallProject) -> None:
    address = f"127.0.0.1:{free_port()}"
    done = small.shoal("ps", "--prometheus", address)
    assert done.stdout.splitlines()[-1] == f"learner: no figures, Prometheus does not answer at {address}"


def test_logs_are_merged_with_names(small: SmallProject, engine: Project) -> None:
    lines = small.shoal("logs", "learner", "actor", "--tail", "3").stdout.splitlines()
    assert {line.split(" |")[0].strip() for line in lines} == {"learner", "actor-1", "actor-2", "actor-3"}
    assert sum(line.startswith("learner") for line in lines) <= 3
    times = [line.time for line in backlog(engine, engine.containers(), None)]
    assert times == sorted(times)
    assert {len(time) for time in times} == {30}, "texts of one width sort as times do"


def test_logs_follow_until_ctrl_c(small: SmallProject) -> None:
    process = subprocess.Popen(
        small.command("logs", "learner", "--follow", "--tail", "0"),
        cwd=small.folder,
        env=small.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    # The learner tells every ten seconds how it goes.
    assert "learner step" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")


def test_scale_leaves_the_others_alone(small: SmallProject, engine: Project) -> None:
    before = {each.id: each.started_at for each in engine.containers()}
    assert small.shoal("scale", "actor=4").stdout == "actor: 4 running\n"
    after = {each.id: each.started_at for each in engine.containers()}
    assert len(after) == len(before) + 1
    assert before.items() <= after.items()


def test_chaos_kills_and_brings_back(small: SmallProject, engine: Project) -> None:
    server = Prometheus(small.prometheus)
    until(lambda: knows(server, f"count({OPEN_STEPS}{{state='recording'}}) == 4"))
    before = {each.id: each.started_at for each in of(engine.containers(), "actor")}
    figures = small.folder / "chaos.json"
    done = small.shoal(
        *("chaos", "--spot", "--every", "8", "--minutes", "0.3", "--calm", "8", "--back-after", "1"),
        *("--seed", "1", "--json", str(figures)),
    )
    print(done.stdout)
    record = json.loads(figures.read_text())
    actors = of(engine.containers(), "actor")
    assert [each.is_running for each in actors] == [True] * 4
    changed = sum(before[each.id] != each.started_at for each in actors)
    assert 2 <= changed <= record["kills"]
    assert record["rounds"] >= 2
    assert record["learner_restarts"] == 0
    assert record["drained"] == 0
    assert all(record[window]["learner_steps_per_s"] > 0 for window in ("before", "chaos", "after"))
    assert record["kept"] > 0
    assert record["lost_steps_estimate"] > 0
    assert f"kills: {record['kills']} in" in done.stdout
    assert "of its speed while" in done.stdout.splitlines()[-1]


def test_chaos_with_notice_lets_actors_drain(small: SmallProject, engine: Project) -> None:
    figures = small.folder / "notice.json"
    # Longer than it takes to begin: who has not begun cannot drain.
    until(lambda: knows(Prometheus(small.prometheus), f"count({OPEN_STEPS}{{state='recording'}}) == 4"))
    done = small.shoal(
        *("chaos", "--spot", "--every", "60", "--minutes", "0.4", "--calm", "5", "--notice", "gke"),
        *("--back-after", "1", "--min-kept", "10", "--json", str(figures)),
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 1, "nobody keeps ten times the speed"
    record = json.loads(figures.read_text())
    assert (record["kills"], record["drained"], record["notice_s"]) == (2, 2, 15)
    assert all(each.is_running for each in of(engine.containers(), "actor"))


def test_ctrl_c_brings_everybody_back(small: SmallProject, engine: Project) -> None:
    process = subprocess.Popen(
        small.command(
            *("chaos", "--spot", "--fraction", "1", "--every", "100", "--minutes", "5", "--calm", "3"),
            *("--back-after", "300"),
        ),
        cwd=small.folder,
        env=small.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: not any(each.is_running for each in of(engine.containers(), "actor")))
    # Until it has something to compare.
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "You ended it before the time was over; all actors were started again." in out
    assert [each.is_running for each in of(engine.containers(), "actor")] == [True] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("logs", "acter"), "has no service 'acter': it has actor, inference, learner, prometheus, replay-0"),
        (("chaos", "--spot", "--prometheus", "127.0.0.1:1"), "Prometheus does not answer at 127.0.0.1:1"),
        (("up", "--file", "gone.yml"), "no compose file gone.yml"),
    ],
)
def test_mistakes(small: SmallProject, arguments: tuple[str, ...], message: str) -> None:
    one_line(small.shoal(*arguments, check=False), message)


@pytest.mark.parametrize("arguments", [("ps",), ("logs",), ("scale", "actor=2"), ("chaos", "--spot")])
def test_a_project_that_is_not_there(small: SmallProject, arguments: tuple[str, ...]) -> None:
    other = SmallProject(f"{small.name}x", small.folder, small.prometheus)
    one_line(other.shoal(*arguments, check=False), "is not there: start it with `shoal up`")


def test_no_engine_and_no_file(small: SmallProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = SmallProject(small.name, tmp_path, small.prometheus)
    one_line(elsewhere.shoal("up", check=False), "no docker-compose.yml in ")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    one_line(small.shoal("ps", check=False), "no Docker engine answers at unix:///")


def one_line(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_down_says_what_stays(small: SmallProject, engine: Project) -> None:
    done = small.shoal("down")
    assert f"these volumes stay: {small.name}_run" in done.stdout
    assert engine.containers() == []
    assert engine.volumes() == [f"{small.name}_run"]
    assert "no volume is left" in small.shoal("down", "--volumes").stdout
    assert engine.volumes() == []
