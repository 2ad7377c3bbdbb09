"""`torch.compile` for a policy's act, at the start instead of at the first batch.

Called in a thread while the first actor waits for its welcome: compiling takes from seconds to a minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np
import torch

from services.inference.batcher import Request
from services.inference.hot_swap import LoadedPolicy
from services.inference.runner import Runner
from services.inference.session import Session
from shoal.errors import UserError
from shoal.policy.network import Policy
from shoal.records import EnvSpec

log = logging.getLogger(__name__)

# The compiler treats one row as a case of its own.
_ROWS = (2, 3, 1)
# Programs for the same code: policies of a run, with and without each kind of exploration.
_MAX_PROGRAMS = 64


def compiled(policy: Policy) -> Policy:
    """Compiles when it is first called; batches have any number of rows, one program is for all of them."""
    # Takes a second to import: only for those who compile.
    from torch._dynamo import config

    config.recompile_limit = _MAX_PROGRAMS
    policy.act = torch.compile(policy.act, dynamic=True)  # type: ignore[method-assign]
    return policy


def compile_now(runner: Runner, build: Callable[[], Policy], spec: EnvSpec) -> None:
    """Runs made-up steps. Raises UserError if the compiler fails."""
    log.info("compiling the network ...")
    start = time.monotonic()
    try:
        policy = build()
        for num_envs in _ROWS:
            session = Session(spec, num_envs)
            for _ in range(2):
                observation = {
                    array.name: np.zeros((num_envs, *array.shape), array.dtype) for array in spec.observation
                }
                request = Request(session, observation, np.ones(num_envs, np.bool_), True, 0.0)
                runner.run([request], LoadedPolicy(-1, policy))
    except Exception as error:  # whatever the compiler and what it calls may raise
        reason = str(error).strip().splitlines()[:1]
        raise UserError(
            f"torch.compile failed ({type(error).__name__}: {''.join(reason)}): install what it needs (on "
            "a CPU a C++ compiler), or set inference.compile to false"
        ) from error
    log.info("compiled in %.1f s", time.monotonic() - start)
