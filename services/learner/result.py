"""How a run ended: `result.json` in the run directory, for whoever started the learner.

Of several policies, each also has one in its own directory.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path

from services.learner.files import replace_durably

log = logging.getLogger(__name__)

FILE_NAME = "result.json"

# The reason of a training that has met no condition of its own.
STOPPED = "stopped"


@dataclass(frozen=True)
class RunResult:
    """`reason` is `until_return`, `steps` or `stopped`; the totals are the policy's, over all restarts."""

    reason: str
    mean_return: float | None
    env_steps: int
    trained_steps: int
    learner_steps: int
    policy_version: int
    seconds: float
    policy: str
    # Times that each guard was raised in the last life of the learner.
    guards: dict[str, int] = field(default_factory=dict)
    # Mean return of the episodes that began with the untrained policy, and how many they were.
    untrained_return: float | None = None
    untrained_episodes: int = 0
    # Mean return of the newer half of the trained episodes, and how many they are, where the last 100 reach
    # back beyond it.
    newest_return: float | None = None
    newest_episodes: int = 0
    # The highest mean return of 100 episodes.
    best_return: float | None = None
    # Whether the return is above the untrained policy's by more than chance; None: not known.
    has_learned: bool | None = None


def write_result(run_dir: Path, result: RunResult) -> None:
    """Best effort: the run itself has ended well. Blocking."""
    path = run_dir / FILE_NAME
    try:
        replace_durably(path, (json.dumps(asdict(result), indent=1) + "\n").encode())
    except OSError as error:
        log.error("cannot write %s: %s", path, error.strerror)


def clear_result(run_dir: Path) -> None:
    """A run that goes on has no result yet."""
    (run_dir / FILE_NAME).unlink(missing_ok=True)
