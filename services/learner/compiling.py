"""`torch.compile` for the loss of an algorithm. Training thread only.

The first batch of each shape pays: forward and backward pass are compiled, which takes from seconds to
minutes and is told in the log. Shapes differ where a batch is gone over in parts that are not equal. What
cannot be compiled, or a machine without a compiler, trains as without: slower, not wrong.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch

from shoal.algorithms.algorithm import Algorithm, LossOutput
from shoal.algorithms.batch import Batch

log = logging.getLogger(__name__)


class CompiledLoss:
    """The loss of an algorithm, compiled when it is first called with batches of a shape."""

    def __init__(self, algorithm: Algorithm[Any]) -> None:
        self._algorithm = algorithm
        self._compiled: Callable[[Batch], LossOutput] | None = None
        # Rows and environments of the batches that it works for.
        self._shapes: set[torch.Size] = set()
        self._has_failed = False

    def __call__(self, batch: Batch) -> LossOutput:
        if not self._has_failed:
            try:
                return self._call(batch)
            except Exception as error:  # whatever the compiler and what it calls may raise
                self._give_up(error)
        # An error of the loss itself comes up here again.
        return self._algorithm.loss(batch)

    def _call(self, batch: Batch) -> LossOutput:
        if self._compiled is None:
            self._compiled = torch.compile(self._algorithm.loss)
        if batch.reward_SB.shape not in self._shapes:
            self._compile_for(batch, self._compiled)
        return self._compiled(batch)

    def _compile_for(self, batch: Batch, compiled: Callable[[Batch], LossOutput]) -> None:
        shape = batch.reward_SB.shape
        log.info("compiling the loss for %d rows of %d environments ...", *shape)
        start = time.monotonic()
        # The backward pass is compiled when it is first run. Its gradients go nowhere.
        parameters = [tensor for tensor in self._algorithm.parameters() if tensor.requires_grad]
        with torch.random.fork_rng(devices=[]):
            torch.autograd.grad(compiled(batch).loss, parameters, allow_unused=True)
        self._shapes.add(shape)
        log.info("compiled the loss in %.1f s", time.monotonic() - start)

    def _give_up(self, error: Exception) -> None:
        self._has_failed, self._compiled = True, None
        log.warning(
            "learner.compile: torch.compile failed (%s: %s): training goes on without it. On a CPU it "
            "needs a C++ compiler",
            type(error).__name__,
            "".join(str(error).strip().splitlines()[:1]),
        )
