"""Writes checkpoints in the background, one at a time, while training goes on.

The training thread hands over copies; a thread of its own serialises, hashes and waits for the disk. A failed
write is logged and counted, never raised: the next interval tries again, and after the last one the log says
what is lost.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from services.learner.checkpoint import CheckpointStore
from services.learner.metrics import PolicyMetrics
from shoal.records import EnvSpec

log = logging.getLogger(__name__)


class CheckpointSaver:
    """One run's checkpoints, for one spec and configuration."""

    def __init__(
        self,
        store: CheckpointStore,
        spec: EnvSpec,
        config_yaml: str,
        metrics: PolicyMetrics,
        saved_step: int,
    ) -> None:
        """`saved_step` is the learner step that is already on the disk."""
        self._store = store
        self._spec = spec
        self._config_yaml = config_yaml
        self._metrics = metrics
        self._saved_step = saved_step
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: Future[None] | None = None

    @property
    def is_busy(self) -> bool:
        """The last one is still being written: the disk is slower than the interval."""
        return self._running is not None and not self._running.done()

    def save(self, tensors: dict[str, np.ndarray], progress: dict[str, Any], is_last: bool = False) -> None:
        """Start writing what the caller will not change any more."""
        self._running = self._pool.submit(self._write, tensors, progress, is_last)

    def wait(self) -> None:
        """Until nothing is being written."""
        if self._running is not None:
            wait([self._running])

    def close(self) -> None:
        """Waits for what is being written."""
        self._pool.shutdown()

    def _write(self, tensors: dict[str, np.ndarray], progress: dict[str, Any], is_last: bool) -> None:
        if is_last and 0 < progress["learner_steps"] == self._saved_step:
            # A run that is resumed and has nothing to do must not push older ones out.
            return
        start = time.perf_counter()
        try:
            path = self._store.save(tensors, progress, self._spec, self._config_yaml)
        except Exception as error:
            # Nobody reads the future: what is not logged here would never be seen.
            self._metrics.checkpoints_failed.inc()
            log.error(
                "cannot write the checkpoint of learner step %d to %s: %s; %s",
                progress["learner_steps"],
                self._store.path,
                error.strerror if isinstance(error, OSError) else repr(error),
                f"what was learnt after step {self._saved_step} is lost"
                if is_last
                else "training goes on, the next interval tries again",
                exc_info=not isinstance(error, OSError),
            )
            return
        self._saved_step = progress["learner_steps"]
        self._metrics.checkpoints.inc()
        self._metrics.checkpoint_time.set_to_current_time()
        log.info("wrote checkpoint %s in %.0f ms", path, 1e3 * (time.perf_counter() - start))
