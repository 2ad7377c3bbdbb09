"""The Prometheus rules as data, their unit tests, and the metrics that an expression names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.tools import ROOT

PROMETHEUS = ROOT / "deploy/prometheus"
RULE_FILES = sorted((PROMETHEUS / "rules").glob("*.yml"))
TEST_FILES = sorted((PROMETHEUS / "tests").glob("*.yml"))

_WORDS = {
    "and",
    "or",
    "unless",
    "on",
    "ignoring",
    "by",
    "without",
    "group_left",
    "group_right",
    "bool",
    "offset",
}
# What is no metric in an expression: texts, matchers, ranges, and the labels of a clause.
_NOT_METRICS = (
    r'"(?:[^"\\]|\\.)*"',
    r"\{[^}]*\}",
    r"\[[^\]]*\]",
    r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)",
)


def rules(files: list[Path] | None = None) -> list[dict[str, Any]]:
    """All rules of the files, recording and alerting."""
    groups = [group for file in files or RULE_FILES for group in yaml.safe_load(file.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def records() -> set[str]:
    return {rule["record"] for rule in rules() if "record" in rule}


def metrics_in(expression: str) -> set[str]:
    """Names of metrics and recording rules; not those of functions, labels and variables."""
    for pattern in _NOT_METRICS:
        expression = re.sub(pattern, " ", expression)
    names = re.findall(r"(?<![\w$.])[a-zA-Z_:][\w:]*\b(?!\s*\()", expression)
    return {name for name in names if name.lower() not in _WORDS}
