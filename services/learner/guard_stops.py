"""Which guard ended the run, and when: told to the learner's next life by a small file in its directory.

A guard that stops takes the process and its counters with it, often before anybody has scraped them. Read at
the start by `__main__` and written at the end by the training thread; no torch.
"""

from __future__ import annotations

import json
import logging
import math
import time
from pathlib import Path

from services.learner.files import replace_durably
from services.learner.metrics import PolicyMetrics
from shoal.config.guards import GuardsSection

log = logging.getLogger(__name__)

FILE_NAME = "guard_stops.json"
GUARDS = tuple(name for name in GuardsSection.model_fields if name != "max_rollbacks")


def show_guard_stops(directory: Path, metrics: PolicyMetrics) -> None:
    """Every guard's last stop as a metric; 0 is never. Blocking."""
    stops = read_guard_stops(directory)
    for guard in GUARDS:
        metrics.guard_stop_time(guard).set(stops.get(guard, 0.0))


def note_guard_stop(directory: Path, guard: str, metrics: PolicyMetrics) -> None:
    """This guard ends the run now. Best effort: the run ends either way. Blocking."""
    now = time.time()
    metrics.guard_stop_time(guard).set(now)
    path = directory / FILE_NAME
    try:
        replace_durably(path, (json.dumps(read_guard_stops(directory) | {guard: now}) + "\n").encode())
    except OSError as error:
        log.error("cannot write %s: %s", path, error.strerror)


def read_guard_stops(directory: Path) -> dict[str, float]:
    """Unix time of the last stop by guard; nothing if there was none, or if the file is damaged."""
    path = directory / FILE_NAME
    try:
        found = json.loads(path.read_text())
        return {str(guard): float(when) for guard, when in found.items() if math.isfinite(float(when))}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.warning("cannot read %s: %s", path, error)
        return {}
