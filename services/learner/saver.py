"""Writes checkpoints in the background, one at a time, while training goes on.

The training thread hands over copies; a thread of its own serialises, hashes and waits for the disk. A failed
write is logged and counted, never raised: the next interval tries again.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from services.learner.checkpoint import CheckpointStore
from services.learner.metrics import LearnerMetrics
from shoal.records import EnvSpec

log = logging.getLogger(__name__)


class CheckpointSaver:
    """One run's checkpoints, for one spec and configuration."""

    def __init__(
        self, store: CheckpointStore, spec: EnvSpec, config_yaml: str, metrics: LearnerMetrics
    ) -> None:
        self._store = store
        self._spec = spec
        self._config_yaml = config_yaml
        self._metrics = metrics
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: Future[bool] | None = None

    @property
    def is_busy(self) -> bool:
        """The last one is still being written: the disk is slower than the interval."""
        return self._running is not None and not self._running.done()

    def save(self, tensors: dict[str, np.ndarray], progress: dict[str, Any]) -> Future[bool]:
        """Start writing what the caller will not change any more. The result says whether it worked."""
        self._running = self._pool.submit(self._write, tensors, progress)
        return self._running

    def close(self) -> None:
        """Waits for what is being written."""
        self._pool.shutdown()

    def _write(self, tensors: dict[str, np.ndarray], progress: dict[str, Any]) -> bool:
        start = time.perf_counter()
        try:
            path = self._store.save(tensors, progress, self._spec, self._config_yaml)
        except OSError as error:
            self._metrics.checkpoints_failed.inc()
            log.error(
                "cannot write a checkpoint to %s: %s; training goes on, the next interval tries again",
                self._store.path,
                error.strerror,
            )
            return False
        self._metrics.checkpoints.inc()
        self._metrics.checkpoint_time.set_to_current_time()
        log.info("wrote checkpoint %s in %.0f ms", path, 1e3 * (time.perf_counter() - start))
        return True
