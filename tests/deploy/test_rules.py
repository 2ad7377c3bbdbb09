"""Prometheus rules: well formed, every alert tested both ways and with a section in the runbooks."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.k8s_render import kustomize, needs_kubectl
from tests.deploy.rule_files import PROMETHEUS, RULE_FILES, TEST_FILES, alerts, metrics_in, records, rules
from tests.tools import ROOT, tool
from tests.unit.test_docs import anchors

RUNBOOKS = "docs/runbooks.md"
SEVERITIES = {"critical", "warning", "info"}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [tool("promtool"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_rules_are_well_formed() -> None:
    done = promtool("check", "rules", *RULE_FILES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_tests_of_the_rules_pass() -> None:
    done = promtool("test", "rules", *TEST_FILES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("was", "becomes"), [(") > 0.9\n", ") > 0.99\n"), ("2 * shoal_replay_ratio", "1 * shoal_replay_ratio")]
)
def test_a_rule_that_is_changed_fails_its_unit_tests(tmp_path: Path, was: str, becomes: str) -> None:
    """One that hears too little, one that hears too much."""
    shutil.copytree(PROMETHEUS / "rules", tmp_path / "rules")
    shutil.copytree(PROMETHEUS / "tests", tmp_path / "tests")
    file = tmp_path / "rules/replay.yml"
    assert file.read_text().count(was) == 1
    file.write_text(file.read_text().replace(was, becomes))
    done = promtool("test", "rules", tmp_path / "tests/replay.yml")
    assert done.returncode == 1
    assert "FAILED" in done.stdout + done.stderr


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    fires, silent = set(), set()
    for file in TEST_FILES:
        for case in yaml.safe_load(file.read_text())["tests"]:
            for check in case.get("alert_rule_test", []):
                (fires if check["exp_alerts"] else silent).add(check["alertname"])
            for check in case.get("promql_expr_test", []):
                firing = [sample["labels"] for sample in check["exp_samples"]]
                fires |= set(re.findall(r'ALERTS\{alertname="(\w+)",alertstate="firing"', " ".join(firing)))
    assert fires == set(alerts())
    assert silent == set(alerts())


def test_every_alert_says_what_it_means_and_where_to_read_on() -> None:
    sections = anchors((ROOT / RUNBOOKS).read_text())
    for name, rule in alerts().items():
        assert re.fullmatch(r"Shoal[A-Za-z]+", name)
        assert rule["labels"]["severity"] in SEVERITIES, name
        texts = rule["annotations"]
        assert texts.keys() == {"summary", "description", "runbook"}, name
        assert not texts["summary"].endswith("."), name
        assert texts["description"].endswith("."), name
        page, _, anchor = texts["runbook"].partition("#")
        assert (page, anchor) == (RUNBOOKS, name.lower())
        assert anchor in sections, f"{name}: no section {anchor} in {page}"


def test_no_section_of_the_runbooks_is_of_an_alert_that_is_gone() -> None:
    named = re.findall(r"^## (Shoal\w+)$", (ROOT / RUNBOOKS).read_text(), flags=re.MULTILINE)
    assert sorted(named) == sorted(alerts())


def test_what_rules_are_made_of_is_exported_or_recorded() -> None:
    exported = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/metrics.md").read_text(), flags=re.MULTILINE))
    ours = {name for rule in rules() for name in metrics_in(rule["expr"]) if name.startswith("shoal")}
    assert ours - exported - records() == set()


def test_rules_that_others_rely_on_are_there() -> None:
    """Autoscalers name them."""
    assert {"shoal:learner_starvation:ratio", "shoal:inference_queue_wait:seconds"} <= records()


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('sum by (run, job) (up{job=~"a|b"})', {"up"}),
        ("rate(shoal_x_total[5m]) / on (run) group_left shoal:y:sum > 0.5", {"shoal_x_total", "shoal:y:sum"}),
        ('topk by (run) (1, a{b="c{d}", e=~"f"}) or vector(0) > bool 1e-9', {"a"}),
        ("time() - made_up and offset_metric unless on () other", {"made_up", "offset_metric", "other"}),
    ],
)
def test_names_are_found_in_expressions(expression: str, names: set[str]) -> None:
    assert metrics_in(expression) == names


@needs_kubectl
def test_the_rules_for_kubernetes_are_the_same() -> None:
    (made,) = kustomize(PROMETHEUS)
    assert made["kind"] == "PrometheusRule"
    assert [rule for group in made["spec"]["groups"] for rule in group["rules"]] == rules()
