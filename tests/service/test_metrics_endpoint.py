"""The /metrics endpoint over real HTTP."""

from __future__ import annotations

import urllib.request

import pytest
from prometheus_client import CollectorRegistry

from shoal.errors import AddressInUseError, ConfigError
from shoal.metrics import Phases, start_metrics_server


def test_endpoint_serves_what_is_registered_and_names_a_taken_port() -> None:
    registry = CollectorRegistry()
    Phases(registry, "shoal_x_phase", "Test.", ["a"])
    server = start_metrics_server("127.0.0.1:0", registry)
    try:
        with urllib.request.urlopen(f"http://{server.address}/metrics") as response:
            assert b'shoal_x_phase_seconds_total{phase="a"} 0.0' in response.read()
        with pytest.raises(AddressInUseError, match=server.address):
            start_metrics_server(server.address, registry)
    finally:
        server.close()


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:70000"])
def test_an_address_without_a_usable_port_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        start_metrics_server(address, CollectorRegistry())
