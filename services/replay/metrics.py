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

from services.replay.memory_limit import memory_limit_bytes
from services.replay.stored_table import StoredTable
from services.replay.tables import Ledger
from shoal.clients.replay_shard import TableStats

_GAUGES: tuple[tuple[str, str, Callable[[TableStats], float]], ...] = (
    ("items", "Items stored.", lambda stats: stats.num_items),
    ("bytes", "Payload bytes stored, in memory or on disk.", lambda stats: stats.num_bytes),
    ("ram_bytes", "Payload bytes in memory.", lambda stats: stats.ram_bytes),
    ("disk_bytes", "Bytes of the table's files.", lambda stats: stats.disk_bytes),
    ("max_items", "Items at which inserts wait or the oldest goes.", lambda stats: stats.max_items),
    ("max_bytes", "Payload bytes at which inserts wait or the oldest goes.", lambda stats: stats.max_bytes),
    (
        "priority_mass",
        "Sum of priority ^ alpha over all items that can be sampled.",
        lambda stats: stats.priority_mass,
    ),
    (
        "degraded",
        "1 while this table's disk takes no writes, cannot be read or is slow.",
        lambda stats: bool(stats.degraded),
    ),
)
_TABLE_GAUGES: tuple[tuple[str, str, Callable[[StoredTable], float]], ...] = (
    (
        "journal_pending_bytes",
        "Bytes that wait to be written to the journal.",
        lambda stored: stored.pending_bytes,
    ),
    (
        "recovery_seconds",
        "Time that reading the table's files took at the start (s).",
        lambda stored: stored.recovery_s,
    ),
    ("recovered_items", "Items that were found in files at the start.", lambda stored: stored.num_recovered),
    (
        "recovery_corrupt_frames",
        "Damaged records that were skipped at the start.",
        lambda stored: stored.num_corrupt_frames,
    ),
    (
        "samples_per_insert",
        "Samples per insert that the table is set to keep; 0: no ratio is kept.",
        lambda stored: stored.samples_per_insert,
    ),
    (
        "ratio_tolerance",
        "Samples that either side may be ahead of that ratio.",
        lambda stored: stored.ratio_tolerance,
    ),
    (
        "ratio_surplus",
        "Samples that inserts have paid for and nobody has taken yet; below 0 the samples are ahead.",
        lambda stored: stored.ratio_surplus,
    ),
)
_COUNTERS: tuple[tuple[str, str, Callable[[Ledger], float]], ...] = (
    ("inserted", "Items that came in, rejected ones included.", lambda ledger: ledger.num_inserted),
    ("sampled_out", "Items handed out for good.", lambda ledger: ledger.num_sampled_out),
    ("evicted", "Items dropped to make room, or damaged.", lambda ledger: ledger.num_evicted),
    (
        "corrupt",
        "Items found damaged on disk and dropped; part of evicted.",
        lambda ledger: ledger.num_corrupt,
    ),
    ("duplicates", "Repeats of stored appends, not stored again.", lambda ledger: ledger.num_duplicates),
    (
        "insert_timeouts",
        "Appends that were not safely stored in time.",
        lambda ledger: ledger.num_insert_timeouts,
    ),
    ("sample_timeouts", "Samples that found no item in time.", lambda ledger: ledger.num_sample_timeouts),
    ("samples", "Items handed out, repeats included.", lambda ledger: ledger.num_samples),
    ("priorities_updated", "New priorities that were set.", lambda ledger: ledger.num_priorities_updated),
    ("priorities_gone", "New priorities whose item was gone.", lambda ledger: ledger.num_priorities_gone),
    ("insert_waits", "Inserts that waited for samples.", lambda ledger: ledger.num_insert_waits),
    ("sample_waits", "Samples that waited for inserts.", lambda ledger: ledger.num_sample_waits),
    ("insert_wait_seconds", "Time inserts waited for samples (s).", lambda ledger: ledger.insert_wait_s),
    ("sample_wait_seconds", "Time samples waited for inserts (s).", lambda ledger: ledger.sample_wait_s),
    ("received_bytes", "Payload bytes that came in.", lambda ledger: ledger.received_bytes),
    ("sampled_bytes", "Payload bytes handed out.", lambda ledger: ledger.sampled_bytes),
)


class ReplayMetrics(Collector):
    """Metrics of one shard; those of the tables have a label `table`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tables: Mapping[str, StoredTable] = {}
        self.append_streams = Gauge("shoal_replay_append_streams", "Open Append streams.", registry=registry)
        self.sample_streams = Gauge("shoal_replay_sample_streams", "Open Sample streams.", registry=registry)
        limit = Gauge(
            "shoal_replay_memory_limit_bytes",
            "Memory that this process may use before the kernel ends it: its container's, or the machine's.",
            registry=registry,
        )
        limit.set(memory_limit_bytes())
        registry.register(self)

    def watch(self, tables: Mapping[str, StoredTable]) -> None:
        """From now on scrapes show these tables: once they have recovered."""
        self._tables = tables

    def collect(self) -> Iterator[Metric]:
        stats = {label: stored.stats() for label, stored in self._tables.items()}
        for name, documentation, of_stats in _GAUGES:
            gauge = GaugeMetricFamily(f"shoal_replay_{name}", documentation, labels=["table"])
            for label, table in stats.items():
                gauge.add_metric([label], of_stats(table))
            yield gauge
        for name, documentation, of_stored in _TABLE_GAUGES:
            gauge = GaugeMetricFamily(f"shoal_replay_{name}", documentation, labels=["table"])
            for label, stored in self._tables.items():
                gauge.add_metric([label], of_stored(stored))
            yield gauge
        free = GaugeMetricFamily(
            "shoal_replay_disk_free_bytes",
            "Room that is left on the disk of the table's files; not of tables without files.",
            labels=["table"],
        )
        for label, stored in self._tables.items():
            if (num_bytes := stored.disk_free_bytes) is not None:
                free.add_metric([label], num_bytes)
        yield free
        for name, documentation, of_ledger in _COUNTERS:
            counter = CounterMetricFamily(f"shoal_replay_{name}", documentation, labels=["table"])
            for label, stored in self._tables.items():
                counter.add_metric([label], of_ledger(stored.table.ledger))
            yield counter
        rejected = CounterMetricFamily(
            "shoal_replay_rejected", "Trajectories refused, by reason.", labels=["table", "reason"]
        )
        for label, stored in self._tables.items():
            for reason, number in stored.table.ledger.num_rejected.items():
                rejected.add_metric([label, reason], number)
        yield rejected
