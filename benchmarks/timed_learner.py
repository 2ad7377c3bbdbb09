"""The learner's own program, with the moments written down at which a step ended and its weights went out.

`python -m benchmarks.timed_learner`, for P8. Two methods are wrapped and do what they do otherwise. A line
for each version goes to the file that the environment names: version, end of the step, end of `publish`, in
seconds of the clock that all processes of a machine share.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.weight_latency import FILE_VARIABLE
from services.learner.__main__ import main
from services.learner.publisher import WeightsPublisher
from services.learner.trainer import Trainer
from shoal.rpc.process import run_service


class Moments:
    """Training thread only."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)
        self._step_ended_s: float | None = None

    def wrap(self) -> None:
        step, publish = Trainer.step, WeightsPublisher.publish

        @functools.wraps(step)
        def timed_step(*args: Any, **kwargs: Any) -> Any:
            outcome = step(*args, **kwargs)
            self._step_ended_s = time.monotonic()
            return outcome

        @functools.wraps(publish)
        def timed_publish(publisher: Any, version: int, *args: Any, **kwargs: Any) -> Any:
            done = publish(publisher, version, *args, **kwargs)
            # The first weights of a run belong to no step.
            if self._step_ended_s is not None:
                self._file.write(f"{version} {self._step_ended_s:.6f} {time.monotonic():.6f}\n")
            return done

        Trainer.step = timed_step  # type: ignore[method-assign]
        WeightsPublisher.publish = timed_publish  # type: ignore[method-assign]


if __name__ == "__main__":
    Moments(Path(os.environ[FILE_VARIABLE])).wrap()
    run_service("learner", main)
