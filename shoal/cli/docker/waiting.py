"""Waits until all containers of a project run, and are healthy where they say so.

Called by `shoal up` and `shoal scale`. Pure but for the clock and the listing, which are given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from shoal.cli.docker.containers import Container, names
from shoal.cli.docker.progress import Progress
from shoal.errors import ShoalError

POLL_S = 0.5
MAX_NAMED = 4


class NotUpError(ShoalError):
    """The project was started and did not come up."""


def wait_until_up(
    listing: Callable[[], Sequence[Container]],
    progress: Progress,
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Sequence[Container]:
    """The containers when all are up. Raises NotUpError if one has failed, or when time is up."""
    deadline = clock() + timeout_s
    while True:
        containers = listing()
        called = names(containers)
        failed = [each for each in containers if each.has_failed]
        if failed:
            raise NotUpError(
                f"{called[failed[0].id]} ended with exit code {failed[0].exit_code}: "
                f"`shoal logs {failed[0].service}` shows why"
            )
        missing = [each for each in containers if not each.is_up]
        if not missing:
            return containers
        progress.show(state_of(containers))
        if clock() >= deadline:
            raise NotUpError(
                f"not up after {timeout_s:g} s: {state_of(containers)}; "
                f"`shoal logs {missing[0].service}` shows why"
            )
        sleep(POLL_S)


def state_of(containers: Sequence[Container]) -> str:
    """`5 of 7 up, waiting for learner (running, starting)`."""
    called = names(containers)
    missing = [f"{called[each.id]} ({each.condition})" for each in containers if not each.is_up]
    text = f"{len(containers) - len(missing)} of {len(containers)} up"
    if not missing:
        return text
    more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
    return f"{text}, waiting for {', '.join(missing[:MAX_NAMED])}{more}"
