"""Phase timers."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from shoal.metrics import Phases


def test_phases_add_up_per_phase_even_when_the_body_raises() -> None:
    ticks = iter([0.0, 2.0, 10.0, 13.0])
    registry = CollectorRegistry()
    phases = Phases(registry, "shoal_x_phase", "Test.", ["a", "b"], clock=lambda: next(ticks))
    with phases.measure("a"):
        pass
    with pytest.raises(RuntimeError), phases.measure("a"):
        raise RuntimeError
    phases.add("b", 0.5)
    assert registry.get_sample_value("shoal_x_phase_seconds_total", {"phase": "a"}) == 5.0
    assert registry.get_sample_value("shoal_x_phase_seconds_total", {"phase": "b"}) == 0.5


def test_a_phase_that_was_not_declared_is_a_bug() -> None:
    with pytest.raises(KeyError):
        Phases(CollectorRegistry(), "shoal_x_phase", "Test.", ["a"]).add("c", 1.0)
