"""Dashboards as files: they are what the code makes, and every panel says what it is for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.deploy.board_files import BOARDS, boards, panels, queries
from tests.deploy.k8s_render import kustomize, needs_kubectl
from tests.deploy.rule_files import metrics_in, records
from tests.deploy.test_rules import promtool
from tests.tools import ROOT

GRAFANA = ROOT / "deploy/grafana"
# Of Prometheus itself and of its client library.
NOT_OURS = {
    *("up", "ALERTS", "process_start_time_seconds", "process_resident_memory_bytes"),
    *("process_cpu_seconds_total", "process_open_fds"),
}


def check(deploy: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/dashboards.py"), "--check", "--deploy", str(deploy)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_files_are_what_the_code_makes() -> None:
    done = check(ROOT / "deploy")
    assert done.returncode == 0, done.stderr


def test_files_that_were_changed_by_hand_are_seen(tmp_path: Path) -> None:
    deploy = tmp_path / "deploy"
    shutil.copytree(ROOT / "deploy/grafana", deploy / "grafana")
    shutil.copytree(ROOT / "deploy/prometheus", deploy / "prometheus")
    assert check(deploy).returncode == 0
    training = deploy / "grafana/dashboards/training.json"
    training.write_text(training.read_text().replace("Entropy", "Energy"))
    rule = deploy / "prometheus/rules/training.yml"
    rule.write_text(rule.read_text().replace("> 0.8", "> 0.9"))
    (deploy / "grafana/dashboards/mine.json").write_text("{}")
    done = check(deploy)
    assert done.returncode == 1
    assert all(name in done.stderr for name in ("training.json", "prometheusrule.yaml", "mine.json"))
    assert "fleet.json" not in done.stderr


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.name)
def test_every_panel_says_what_to_do_and_asks_the_chosen_runs(path: Path) -> None:
    board = json.loads(path.read_text())
    variables = [variable["name"] for variable in board["templating"]["list"]]
    assert variables[:2] == ["datasource", "run"]
    titles = [panel["title"] for panel in panels(board)]
    assert len(titles) == len(set(titles)) > 5
    for panel in panels(board):
        assert re.fullmatch(r"[^\n]{30,160}\.", panel["description"]), panel["title"]
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            selectors = re.findall(r"\{[^}]*\}", target["expr"])
            assert selectors, target["expr"]
            assert all('run=~"$run"' in selector for selector in selectors), target["expr"]
            assert set(re.findall(r"\$([a-z]\w*)", target["expr"])) <= set(variables)


def test_ids_and_places_are_unique() -> None:
    assert len({board["uid"] for board in boards().values()}) == len(BOARDS) == 4
    for name, board in boards().items():
        numbers = [panel["id"] for panel in board["panels"]]
        assert len(numbers) == len(set(numbers)), name
        taken: set[tuple[int, int]] = set()
        for place in (panel["gridPos"] for panel in board["panels"]):
            assert place["x"] + place["w"] <= 24, name
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, f"{name}: panels overlap at {place}"
            taken |= cells


def test_every_query_is_promql(tmp_path: Path) -> None:
    rules = [{"record": f"query:{index}", "expr": query.filled_in()} for index, query in enumerate(queries())]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_queries_name_is_exported_or_recorded() -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    kinds = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", page, flags=re.MULTILINE))
    buckets = {f"{name}_bucket" for name, kind in kinds.items() if kind == "histogram"}
    known = kinds.keys() | buckets | records() | NOT_OURS
    unknown = [str(query) for query in queries() if metrics_in(query.expression) - known]
    assert unknown == []


def test_grafana_finds_what_compose_mounts() -> None:
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/shoal.yml").read_text())
    assert provider["providers"][0]["options"]["path"] == "/var/lib/shoal/dashboards"
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())
    assert source["datasources"][0]["type"] == "prometheus"
    assert source["datasources"][0]["url"] == "http://prometheus:9090"


@needs_kubectl
def test_the_dashboards_for_kubernetes_are_the_same() -> None:
    made = kustomize(GRAFANA)
    assert {each["kind"] for each in made} == {"ConfigMap"}
    assert all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in made)
    texts = {name: text for each in made for name, text in each["data"].items()}
    assert texts == {f"shoal-{path.name}": path.read_text() for path in BOARDS}
