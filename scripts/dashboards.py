"""Writes what is generated under `deploy/`: the dashboards' JSON, and the rules as a PrometheusRule.

Run by `make dashboards`; `--check` only compares and is what tests/deploy/test_dashboards.py runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from boards import fleet, replay, throughput, training
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from page_tables import ROOT

BOARDS = (training.BOARD, throughput.BOARD, fleet.BOARD, replay.BOARD)
DASHBOARDS, RULES = Path("grafana/dashboards"), Path("prometheus/rules")
RULE_OBJECT = Path("prometheus/prometheusrule.yaml")


def generated(rules: Path) -> Iterator[tuple[Path, str]]:
    """Paths under `deploy/` with what belongs there."""
    for board in BOARDS:
        name = board.uid.removeprefix("shoal-") + ".json"
        text = json.dumps(board.build(), cls=JSONEncoder, indent=1, sort_keys=True)
        yield DASHBOARDS / name, text + "\n"
    yield RULE_OBJECT, prometheus_rule(rules)


def prometheus_rule(directory: Path) -> str:
    """All rule files as one object of the Prometheus operator."""
    groups = [
        group
        for file in sorted(directory.glob("*.yml"))
        for group in yaml.safe_load(file.read_text())["groups"]
    ]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "shoal", "labels": {"app.kubernetes.io/part-of": "shoal"}},
        "spec": {"groups": groups},
    }
    text = yaml.safe_dump(rule, sort_keys=False, width=120, allow_unicode=True)
    return f"# Made from rules/*.yml by `make dashboards`: change those.\n{text}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    parser.add_argument("--deploy", type=Path, default=ROOT / "deploy", help="the directory to write to")
    arguments = parser.parse_args()
    files = {arguments.deploy / path: text for path, text in generated(arguments.deploy / RULES)}
    unknown = set((arguments.deploy / DASHBOARDS).glob("*.json")) - set(files)
    if not arguments.check:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for path in unknown:
            path.unlink()
        return
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    if stale or unknown:
        names = ", ".join(str(path) for path in sorted([*stale, *unknown]))
        sys.exit(f"error: not what the code makes: {names}; run: make dashboards")


if __name__ == "__main__":
    main()
