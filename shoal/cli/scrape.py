"""Reads the services' /metrics and follows their counters over restarts.

The monitor polls with `fetch` about once a second; the text is cut down to what a view needs before it is
parsed, since all this runs on the cores that also train. No HTTP library: one request, one answer.
Everything runs on the supervisor's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterator

from shoal.errors import UnavailableError

TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 8 << 20

Labels = frozenset[tuple[str, str]]
# Sample name -> labels -> value.
Metrics = dict[str, dict[Labels, float]]


async def fetch(address: str, timeout_s: float = TIMEOUT_S) -> str:
    """The text that `http://<address>/metrics` answers. Raises UnavailableError."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                writer.write(f"GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
                answer = await _read_all(reader)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, ValueError, EOFError) as error:
        reason = str(error) or type(error).__name__
        raise UnavailableError(f"cannot read metrics of {address}: {reason}") from None
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0] + b" ":
        raise UnavailableError(f"{address}/metrics answered {head[:80].decode(errors='replace')!r}")
    return body.decode(errors="replace")


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    answer = bytearray()
    while chunk := await reader.read(1 << 16):
        answer += chunk
        if len(answer) > MAX_ANSWER_BYTES:
            raise ValueError(f"more than {MAX_ANSWER_BYTES} bytes")
    return bytes(answer)


def parse(text: str) -> Metrics:
    """shoal's own samples. Histogram buckets and creation times are left out: no view shows them."""
    # Costs 70 ms to import: not while the services have yet to be started.
    from prometheus_client.parser import text_string_to_metric_families

    wanted = (line for line in text.splitlines() if _is_wanted(line))
    metrics: Metrics = defaultdict(dict)
    for family in text_string_to_metric_families("\n".join(wanted) + "\n"):
        for sample in family.samples:
            metrics[sample.name][frozenset(sample.labels.items())] = float(sample.value)
    return dict(metrics)


def _is_wanted(line: str) -> bool:
    if not line.startswith("shoal_"):
        return False
    name = line.split("{", 1)[0].split(" ", 1)[0]
    return not name.endswith(("_bucket", "_created"))


def is_counter(name: str) -> bool:
    """By Prometheus' naming rule: counters end in _total, histograms have _sum and _count."""
    return name.endswith(("_total", "_sum", "_count"))


class Counters:
    """What the counters of all processes grew by, although each restart sets them back to zero."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, Metrics]] = {}

    def advance(self, process: str, life: int, metrics: Metrics) -> Metrics:
        """Growth since this process was last seen. `life` (its pid) tells a restart from a slow counter.

        A new life counts from zero; what a dying one counted after it was last seen is lost.
        """
        old_life, old = self._seen.get(process, (None, {}))
        if old_life != life:
            old = {}
        self._seen[process] = (life, metrics)
        return {
            name: _growth(old.get(name, {}), series) for name, series in metrics.items() if is_counter(name)
        }


def _growth(before: dict[Labels, float], now: dict[Labels, float]) -> dict[Labels, float]:
    grown = {labels: value - before.get(labels, 0.0) for labels, value in now.items()}
    # A counter that fell was set back to zero and has counted up to what it shows.
    return {labels: growth if growth >= 0 else now[labels] for labels, growth in grown.items()}


def label(labels: Labels, key: str) -> str | None:
    """The value of one label."""
    return next((value for name, value in labels if name == key), None)


def total(metrics: Metrics, name: str) -> float | None:
    """Sum over all label values; None if the metric is not there."""
    series = metrics.get(name)
    return sum(series.values()) if series else None


def policy_of(labels: Labels) -> str:
    return label(labels, "policy") or ""


def by_policy(metrics: Metrics, name: str) -> dict[str, float]:
    """Values of a metric by its label `policy`; other labels are summed over."""
    values: dict[str, float] = defaultdict(float)
    for labels, value in metrics.get(name, {}).items():
        values[policy_of(labels)] += value
    return dict(values)


def by_label(metrics: Metrics, key: str) -> Iterator[tuple[str, str, float]]:
    """(metric, label value, value) of every series that has the label `key`."""
    for name, series in metrics.items():
        for labels, value in series.items():
            found = label(labels, key)
            if found is not None:
                yield name, found, value
