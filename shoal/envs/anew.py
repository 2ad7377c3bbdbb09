"""Starting environments again that broke: with another seed, within limits, until one begins without a fault.

The one way for environments of every kind that are stepped in this process. In the thread of the caller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from shoal.envs.faults import in_words, traceback_once
from shoal.envs.restarts import Restarts, seed_after
from shoal.errors import UserError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Breakable(Protocol):
    """An environment, or a batch of them, as far as its faults are told."""

    @property
    def name(self) -> str:
        """Which one it is and where it is: enough to get there again."""
        ...

    @property
    def seed(self) -> int: ...

    @property
    def has_begun(self) -> bool:
        """It has worked before: what is faulty from the very beginning is not started again."""
        ...


def begin_anew(
    broken: Breakable,
    index: int,
    fault: Exception,
    restarts: Restarts,
    begin: Callable[[int], T],
    what: str = "it",
) -> T:
    """What `begin(seed)` returns, which puts another one in the place of what broke by `fault`.

    If `begin` raises, that is the next fault, unless it is a UserError. `index`: of the broken one among
    those that have its seed; `what`: it, for the log. Raises UserError if it has never worked, or when faults
    are too many.
    """
    while True:
        told = f"{broken.name} {in_words(fault)}"
        if not broken.has_begun:
            raise UserError(told) from fault
        restarts.count(told)
        seed = seed_after(broken.seed, index, restarts.num_restarts)
        once = traceback_once(fault, restarts)
        log.warning("%s; starting %s again with seed %d", told, what, seed, exc_info=once)
        try:
            return begin(seed)
        except UserError:
            raise
        except Exception as error:  # whatever the environment's own code raises
            fault = error
