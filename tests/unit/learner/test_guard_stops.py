"""What a learner that a guard has ended tells its next life."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from services.learner.guard_stops import FILE_NAME, GUARDS, read_guard_stops, show_guard_stops
from services.learner.guards import GuardError
from services.learner.metrics import LearnerMetrics
from shoal.errors import NonFiniteError
from tests.unit.learner.test_guards import ALL, greedy, guarded
from tests.unit.learner.test_loop import trajectory


def shown(directory: Path) -> dict[str, float]:
    """The metric as a learner shows it that starts now."""
    registry = CollectorRegistry()
    show_guard_stops(directory, LearnerMetrics(registry).of("policy"))
    found = {}
    for guard in ALL:
        labels = {"policy": "policy", "guard": guard}
        value = registry.get_sample_value("shoal_learner_guard_stop_timestamp_seconds", labels)
        assert value is not None, f"{guard} is not shown"
        found[guard] = value
    return found


def test_every_guard_is_known() -> None:
    assert set(GUARDS) == set(ALL)


def test_a_run_that_ends_well_leaves_nothing(tmp_path: Path) -> None:
    guarded(tmp_path).run(*[trajectory()] * 3)
    assert not (tmp_path / FILE_NAME).exists()
    assert set(shown(tmp_path).values()) == {0.0}


def test_the_next_life_shows_which_guard_ended_the_last_and_when(tmp_path: Path) -> None:
    before = time.time()
    with pytest.raises(NonFiniteError):
        guarded(tmp_path).run(trajectory(), trajectory(reward=np.nan))
    stops = shown(tmp_path)
    assert before <= stops.pop("non_finite") <= time.time()
    assert set(stops.values()) == {0.0}
    with pytest.raises(GuardError):
        guarded(
            tmp_path,
            algorithm={"entropy_cost": 0.0, "learning_rate": 0.05},
            entropy_collapse={"action": "stop", "for_steps": 20, "fraction": 0.02},
        ).run(*[greedy()] * 2000)
    assert set(read_guard_stops(tmp_path)) == {"non_finite", "entropy_collapse"}, "older ones are kept"


@pytest.mark.parametrize("text", ["", "[1]", '{"non_finite": null}', '{"non_finite": NaN}', "\x00"])
def test_a_damaged_file_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    assert read_guard_stops(tmp_path) == {}
