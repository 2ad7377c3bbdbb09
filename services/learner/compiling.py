"""`torch.compile` for the loss of an algorithm. Training thread only.

The first batch pays: forward and backward pass are compiled, which takes from seconds to minutes and is told
in the log. What cannot be compiled, or a machine without a compiler, trains as without: slower, not wrong.
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
    """The loss of an algorithm, compiled when it is first called."""

    def __init__(self, algorithm: Algorithm[Any]) -> None:
        self._algorithm = algorithm
        self._loss: Callable[[Batch], LossOutput] | None = None

    def __call__(self, batch: Batch) -> LossOutput:
        if self._loss is None:
            self._loss = self._compiled(batch)
        return self._loss(batch)

    def _compiled(self, batch: Batch) -> Callable[[Batch], LossOutput]:
        log.info("compiling the loss ...")
        start = time.monotonic()
        try:
            compiled = torch.compile(self._algorithm.loss)
            # The backward pass is compiled when it is first run. Its gradients go nowhere.
            parameters = [tensor for tensor in self._algorithm.parameters() if tensor.requires_grad]
            with torch.random.fork_rng(devices=[]):
                torch.autograd.grad(compiled(batch).loss, parameters, allow_unused=True)
        except Exception as error:  # whatever the compiler and what it calls may raise
            reason = "".join(str(error).strip().splitlines()[:1])
            log.warning(
                "learner.compile: torch.compile failed (%s: %s): training goes on without it. On a CPU it "
                "needs a C++ compiler",
                type(error).__name__,
                reason,
            )
            return self._algorithm.loss
        log.info("compiled the loss in %.1f s", time.monotonic() - start)
        return compiled
