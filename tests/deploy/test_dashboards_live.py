"""Every query of every dashboard, and every rule, against a Prometheus that scrapes real runs.

Two runs at a time: asynchronous PPO on queues with two actors and two shards, and Ape-X on a prioritised
table with files. All tests of this file share them.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shoal.config.load import load_config
from tests.deploy.board_files import queries
from tests.deploy.prometheus import PATIENCE_S, Prometheus, Target, prometheus, until
from tests.deploy.rule_files import metrics_in, records, rules
from tests.e2e.programs import Programs, programs
from tests.tools import ROOT

pytestmark = pytest.mark.timeout(240)

RUNS = {
    "appo": (
        "appo_cartpole",
        ["launch.actors=2", "launch.replay_shards=2", "launch.evaluators=1", "actor.envs=16"],
    ),
    "apex": ("apex_cartpole", ["replay.tables.train.durability=wal", "stop.steps=100000000"]),
}
# What a loaded or small machine may bring about, however well the runs are.
OF_THE_MACHINE = {"ShoalLearnerStarved", "ShoalReplayDisk", "ShoalReplayMemory"}
AUTOSCALERS = ROOT / "deploy/k8s"


def started(run: str, stack: ExitStack, directory: Path) -> Programs:
    """All processes of a run, as an operator starts them."""
    preset, overrides = RUNS[run]
    overrides = [*overrides, f"run.dir={directory / run}", f"replay.dir={directory / run / 'replay'}"]
    overrides += ["learner.checkpoint_every_s=2"]
    config = load_config(ROOT / f"configs/{preset}.yaml", overrides, environ={})
    started = stack.enter_context(programs(config))
    for name in started.specs:
        started.start(name)
    return started


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    directory = tmp_path_factory.mktemp("live")
    start = time.monotonic()
    with ExitStack() as stack:
        running = {run: started(run, stack, directory) for run in RUNS}
        targets = [
            Target(each.announced(name)["metrics"], spec.service, run)
            for run, each in running.items()
            for name, spec in each.specs.items()
        ]
        server = stack.enter_context(prometheus(targets, directory))
        # Both learn: then there is something to show, and all else comes within seconds.
        training = (
            "sum by (run) (shoal_learner_steps_total) > 20 and on (run) shoal_learner_checkpoints_total > 0"
        )
        until(lambda: len(server.values(training)) == len(RUNS), lambda: "not all runs train")
        print(f"{len(targets)} processes, trained after {time.monotonic() - start:.0f} s")
        yield server


def without_data(server: Prometheus, expressions: dict[str, str]) -> list[str]:
    """Names of those that show nothing, or nothing but NaN."""
    return [name for name, expression in expressions.items() if not server.has_data(expression)]


def soon_without_data(server: Prometheus, expressions: dict[str, str]) -> list[str]:
    """The same, once there was time for all of them."""
    missing = expressions
    deadline = time.monotonic() + PATIENCE_S
    while missing and time.monotonic() < deadline:
        missing = {name: expressions[name] for name in without_data(server, missing)}
        time.sleep(0.5)
    return list(missing)


def test_all_processes_are_scraped(scraped: Prometheus) -> None:
    def found() -> tuple[int, list[float], list[float]]:
        """Sums, those that are down, and what is up of one run. A scrape may be late."""
        appo = sorted(scraped.values('shoal:up:sum{run="appo"}'))
        return len(scraped.values("shoal:up:sum")), scraped.values("up == 0"), appo

    until(lambda: found() == (8, [], [1, 1, 2, 3]), lambda: str(found()))


def test_every_query_of_every_panel_returns_data(scraped: Prometheus) -> None:
    asked = {str(query): query.filled_in() for query in queries()}
    missing = soon_without_data(scraped, asked)
    print(f"{len(asked)} queries, {len(missing)} without data")
    assert missing == []


def test_a_query_of_nothing_is_seen(scraped: Prometheus) -> None:
    made_up = {"gone": "shoal_made_up_total", "nan": "0 / (0 * sum(up))", "well": "sum(up)"}
    assert without_data(scraped, made_up) == ["gone", "nan"]


def test_a_run_that_is_not_chosen_shows_nothing(scraped: Prometheus) -> None:
    found = [str(query) for query in queries() if scraped.has_data(query.filled_in(run="nobody"))]
    assert found == [str(query) for query in queries() if query.panel == "Alerts that fire"]


def test_every_recording_rule_returns_data(scraped: Prometheus) -> None:
    assert soon_without_data(scraped, {name: name for name in records()}) == []
    shares = scraped.values("sum by (run) (shoal:bottleneck:share)")
    assert len(shares) == len(RUNS)
    assert all(math.isclose(share, 1, abs_tol=0.02) for share in shares), shares
    assert all(0 <= ratio <= 1 for ratio in scraped.values("shoal:learner_starvation:ratio"))
    limits = scraped.ask("api/v1/query", query="topk by (run) (1, shoal:bottleneck:share)")["result"]
    for each in limits:
        labels = each["metric"]
        print(f"{labels['run']} is limited by {labels['part']} ({float(each['value'][1]):.2f})")


def unknown_metrics(server: Prometheus, names: set[str]) -> set[str]:
    # Prometheus makes this one itself, once there is an alert.
    return names - server.metric_names() - {"ALERTS"}


def test_every_metric_that_is_named_exists(scraped: Prometheus) -> None:
    named = {name for query in queries() for name in metrics_in(query.expression)}
    named |= {name for rule in rules() for name in metrics_in(rule["expr"])}
    named |= named_by_autoscalers()
    print(f"{len(named)} metrics are named")
    assert unknown_metrics(scraped, named) == set()
    assert unknown_metrics(scraped, {"shoal_made_up_total", "up"}) == {"shoal_made_up_total"}


def named_by_autoscalers() -> set[str]:
    """Metrics in the manifests; not the names that an adapter gives them (`as:`) for Kubernetes."""
    texts = [path.read_text() for path in AUTOSCALERS.rglob("*.y*ml")] if AUTOSCALERS.exists() else []
    text = "\n".join(texts)
    renamed = set(re.findall(r"\bas: [\"']?(\w+)", text))
    pattern = r"\bshoal(?::\w+:\w+|_(?:actor|inference|replay|learner)_\w+)"
    return set(re.findall(pattern, text)) - renamed


def test_no_alert_fires_in_healthy_runs(scraped: Prometheus) -> None:
    """Not even one that is still pending: its condition would be true of a run that is well."""

    def raised() -> set[str]:
        return {alert["labels"]["alertname"] for alert in scraped.alerts()}

    until(lambda: raised() <= OF_THE_MACHINE, lambda: str(scraped.alerts()))
    print(f"pending: {sorted(raised()) or 'none'}")
    assert [alert for alert in scraped.alerts() if alert["state"] == "firing"] == []
