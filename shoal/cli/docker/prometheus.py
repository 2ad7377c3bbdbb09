"""Asks Prometheus over its HTTP API. Standard library only: one request, one answer, no proxies. Blocking."""

from __future__ import annotations

import http.client
import json
import math
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import UserError

DEFAULT_ADDRESS = "127.0.0.1:9090"
PORT = 9090
TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 << 20


class PrometheusError(UserError):
    """It does not answer, or not with figures."""


@dataclass(frozen=True)
class Series:
    """Samples of one time series, oldest first: (Unix time, value)."""

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float:
        return self.samples[-1][1]


def check_address(address: str) -> tuple[str, int]:
    """Host and port. Raises UserError."""
    host, separator, port = address.removeprefix("http://").rstrip("/").rpartition(":")
    if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"--prometheus {address!r}: write it as host:port, such as {DEFAULT_ADDRESS}")
    return host.strip("[]"), int(port)


class Prometheus:
    """One server."""

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self._host, self._port = check_address(address)
        self._timeout_s = timeout_s

    def now(self, query: str) -> list[Series]:
        """The newest value of each series that the query finds."""
        return _series(self._ask(query=query))

    def value(self, query: str) -> float | None:
        """Of a query that finds one series; None if it finds none, or not a number."""
        found = self.now(query)
        return found[0].last if found and math.isfinite(found[0].last) else None

    def between(self, selector: str, start: float, end: float) -> list[Series]:
        """The samples as they were scraped, from `start` to `end` in Unix time."""
        milliseconds = max(math.ceil((end - start) * 1000), 1)
        return _series(self._ask(query=f"{selector}[{milliseconds}ms]", time=f"{end:.3f}"))

    def _ask(self, **parameters: str) -> Any:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request("GET", f"/api/v1/query?{urllib.parse.urlencode(parameters)}")
            body = connection.getresponse().read(MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise PrometheusError(
                f"Prometheus does not answer at {self.address} ({str(error) or type(error).__name__}): "
                "is it up? name another with --prometheus HOST:PORT"
            ) from None
        finally:
            connection.close()
        try:
            answer = json.loads(body)
            if answer["status"] != "success":
                raise PrometheusError(f"Prometheus at {self.address} refused a query: {answer['error']}")
            return answer["data"]["result"]
        except (ValueError, KeyError, TypeError):
            raise PrometheusError(
                f"what answers at {self.address} is not Prometheus: name another with --prometheus HOST:PORT"
            ) from None


def _series(result: Sequence[Mapping[str, Any]]) -> list[Series]:
    """Of a vector (one value each) or a matrix (several)."""
    return [
        Series(
            each["metric"],
            tuple((float(at), float(value)) for at, value in each.get("values") or [each["value"]]),
        )
        for each in result
    ]
