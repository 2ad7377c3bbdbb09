"""What all services share in measuring themselves: phase timers and the /metrics endpoint.

Each service defines its own metrics in `services/<name>/metrics.py`; nothing is registered at import.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, start_http_server

from shoal.errors import AddressInUseError, ConfigError

Clock = Callable[[], float]


class Phases:
    """Seconds spent per phase of a loop: the always-on time breakdown of a service.

    Exposed as `<name>_seconds_total{phase=...}`. Each phase is written by one thread.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        documentation: str,
        phases: Sequence[str],
        clock: Clock = time.perf_counter,
    ) -> None:
        counter = Counter(f"{name}_seconds", documentation, ["phase"], registry=registry)
        self._counters = {phase: counter.labels(phase) for phase in phases}
        self._clock = clock

    @classmethod
    def of(cls, counters: Mapping[str, Counter], clock: Clock = time.perf_counter) -> Phases:
        """Of counters that are registered elsewhere, by phase: those of one policy among several, say."""
        phases = cls.__new__(cls)
        phases._counters, phases._clock = dict(counters), clock
        return phases

    def add(self, phase: str, seconds: float) -> None:
        self._counters[phase].inc(seconds)

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        start = self._clock()
        try:
            yield
        finally:
            self._counters[phase].inc(self._clock() - start)


@dataclass(frozen=True)
class MetricsServer:
    """The running HTTP endpoint."""

    address: str
    _server: WSGIServer
    _thread: threading.Thread

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def start_metrics_server(address: str, registry: CollectorRegistry) -> MetricsServer:
    """Serve /metrics on `host:port` in a daemon thread; port 0 takes a free one."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"cannot serve metrics on {address!r}: write it as host:port, port 0 to 65535")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        raise AddressInUseError(f"cannot serve metrics on {address}: {error.strerror}") from None
    return MetricsServer(f"{host}:{server.server_port}", server, thread)
