"""Writes the tables of `docs/metrics.md` from the metrics that the services register.

Run by `make metrics-doc`; `--check` only compares and is what tests/unit/test_docs.py runs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

ROOT = Path(__file__).resolve().parent.parent
SERVICES = ("actor", "inference", "replay", "learner")
BEGIN = "<!-- tables: made by `make metrics-doc` -->"
END = "<!-- end of the tables -->"


@dataclass(frozen=True)
class Metric:
    """One metric as a scrape shows it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


class _Recorder(CollectorRegistry):
    """Remembers what is registered: a labelled metric without children is not in a scrape yet."""

    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        self.collectors.append(collector)
        super().register(collector)


def service_metrics(service: str) -> list[Metric]:
    """What `ActorMetrics` and its like in `services/<service>/metrics.py` register, in that order."""
    module: Any = importlib.import_module(f"services.{service}.metrics")
    registry = _Recorder()
    getattr(module, f"{service.capitalize()}Metrics")(registry)
    return [
        _described(collector, family) for collector in registry.collectors for family in _families(collector)
    ]


def _families(collector: Collector) -> Iterable[Family]:
    # The library's own metrics can describe themselves; collectors of ours show all families in each scrape.
    describe = getattr(collector, "describe", collector.collect)
    families: Iterable[Family] = describe()
    return families


def _described(collector: Collector, family: Family) -> Metric:
    # The client library adds the suffix to counters when it is scraped.
    name = family.name + ("_total" if family.type == "counter" else "")
    labels = getattr(collector, "_labelnames", ()) or getattr(family, "_labelnames", ())
    return Metric(name, family.type, tuple(labels), family.documentation)


def tables() -> str:
    parts = []
    for service in SERVICES:
        header = [
            f"## {service.capitalize()}",
            "",
            "| metric | type | labels | meaning |",
            "|---|---|---|---|",
        ]
        parts.append("\n".join([*header, *(_row(metric) for metric in service_metrics(service))]))
    return "\n\n".join(parts)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
    meaning = " ".join(metric.meaning.split()).replace("|", r"\|")
    return f"| `{metric.name}` | {metric.kind} | {labels} | {meaning} |"


def renewed(text: str) -> str:
    """`text` with its tables made anew."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"error: the page lacks the line {BEGIN!r} or {END!r}")
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/metrics.md", help="the page")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    old = arguments.page.read_text()
    new = renewed(old)
    if not arguments.check:
        arguments.page.write_text(new)
    elif new != old:
        lines = [line for line in new.splitlines() if line not in old.splitlines()]
        gone = [line for line in old.splitlines() if line not in new.splitlines()]
        shown = [*(f"  missing: {line}" for line in lines), *(f"  stale: {line}" for line in gone)]
        sys.exit(
            "\n".join([f"error: {arguments.page} is not what the code has; run: make metrics-doc", *shown])
        )


if __name__ == "__main__":
    main()
