"""What a replay shard measures about itself.

Created once in `__main__`. The tables keep plain counters (their ledgers), which are read when somebody
scrapes: the hot path pays nothing, and /metrics and the Stats RPC cannot disagree. Scrapes run on the
endpoint's thread and only read numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.replay.tables import Ledger, Table
from shoal.clients.replay import TableStats

_GAUGES: tuple[tuple[str, str, Callable[[TableStats], float]], ...] = (
    ("items", "Items stored.", lambda stats: stats.num_items),
    ("bytes", "Payload bytes stored.", lambda stats: stats.num_bytes),
    ("max_items", "Items at which inserts wait.", lambda stats: stats.max_items),
    ("max_bytes", "Payload bytes at which inserts wait.", lambda stats: stats.max_bytes),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Ledger], float]], ...] = (
    ("inserted", "Items stored since the start.", lambda ledger: ledger.num_inserted),
    ("sampled_out", "Items handed out for good.", lambda ledger: ledger.num_sampled_out),
    ("evicted", "Items dropped to make room.", lambda ledger: ledger.num_evicted),
    ("duplicates", "Repeats of stored items, not stored again.", lambda ledger: ledger.num_duplicates),
    ("insert_timeouts", "Inserts that found no room in time.", lambda ledger: ledger.num_insert_timeouts),
    ("sample_timeouts", "Samples that found no item in time.", lambda ledger: ledger.num_sample_timeouts),
    ("insert_wait_seconds", "Time inserts waited for samples (s).", lambda ledger: ledger.insert_wait_s),
    ("sample_wait_seconds", "Time samples waited for inserts (s).", lambda ledger: ledger.sample_wait_s),
    ("received_bytes", "Payload bytes that came in.", lambda ledger: ledger.received_bytes),
    ("sampled_bytes", "Payload bytes handed out.", lambda ledger: ledger.sampled_bytes),
)


class ReplayMetrics(Collector):
    """Metrics of one shard; those of the tables have a label `table`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tables: Mapping[str, Table] = {}
        self.append_streams = Gauge("shoal_replay_append_streams", "Open Append streams.", registry=registry)
        self.sample_streams = Gauge("shoal_replay_sample_streams", "Open Sample streams.", registry=registry)
        registry.register(self)

    def watch(self, tables: Mapping[str, Table]) -> None:
        """From now on scrapes show these tables."""
        self._tables = tables

    def collect(self) -> Iterator[Metric]:
        for name, documentation, of_stats in _GAUGES:
            gauge = GaugeMetricFamily(f"shoal_replay_{name}", documentation, labels=["table"])
            for label, table in self._tables.items():
                gauge.add_metric([label], of_stats(table.stats()))
            yield gauge
        for name, documentation, of_ledger in _COUNTERS:
            counter = CounterMetricFamily(f"shoal_replay_{name}", documentation, labels=["table"])
            for label, table in self._tables.items():
                counter.add_metric([label], of_ledger(table.ledger))
            yield counter
        rejected = CounterMetricFamily(
            "shoal_replay_rejected", "Items refused, by reason.", labels=["table", "reason"]
        )
        for label, table in self._tables.items():
            for reason, number in table.ledger.num_rejected.items():
                rejected.add_metric([label, reason], number)
        yield rejected
