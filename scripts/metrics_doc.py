"""Writes the tables of `docs/metrics.md` from the metrics that the services register.

Run by `make metrics-doc`; `--check` only compares and is what tests/unit/test_docs.py runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from page_tables import write_or_check
from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.registry import Collector

SERVICES = ("actor", "inference", "replay", "learner")


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


if __name__ == "__main__":
    write_or_check(__doc__, "docs/metrics.md", "metrics-doc", tables)
