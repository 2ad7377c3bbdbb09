"""Processes that live and die together: a single one, or all learners that train one policy.

Owned by `Supervisor`; everything runs on its event loop. When one of a unit ends, the others cannot go on:
they end by themselves or are killed, and then all are started again, on another port.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.child import Child, State

# For the others of a unit to end, once one has: long enough to say why, and for the last checkpoint.
GRACE_S = 4.0
FINISHING_S = 600.0


@dataclass(frozen=True)
class Unit:
    """At least one process; `children[0]` is the one that the others follow."""

    children: tuple[Child, ...]

    @property
    def name(self) -> str:
        return self.children[0].name

    @property
    def is_stopping(self) -> bool:
        return any(child.stopping.is_set() for child in self.children)

    async def start(self, config_file: Path, environment: Mapping[str, str], group: int) -> None:
        """Starts a life of all. Raises OSError."""
        own = _free_port() if len(self.children) > 1 else None
        for child in self.children:
            ranks = {} if own is None else child.spec.ranks.environment("127.0.0.1", own)
            await child.start(child.spec.command(config_file), {**environment, **ranks}, group)
        if self.is_stopping:
            for child in self.children:
                child.stop()

    async def ended(self, on_stopped: Callable[[Child, int], None]) -> tuple[Child, int] | None:
        """Waits for the end of this life, of all. The process that began it, with its exit code.

        None if they were asked to; `on_stopped` has heard of each.
        """
        ends: list[tuple[Child, int]] = []
        killed: set[Child] = set()

        async def follow(child: Child) -> None:
            code = await child.ended()
            if child.stopping.is_set():
                on_stopped(child, code)
            ends.append((child, code))

        following = {asyncio.create_task(follow(child)): child for child in self.children}
        _, left = await asyncio.wait(following, return_when=asyncio.FIRST_COMPLETED)
        # Those that are being stopped have a deadline already.
        if left and not self.is_stopping:
            _, left = await asyncio.wait(left, timeout=FINISHING_S if ends[0][1] == 0 else GRACE_S)
            if not self.is_stopping:
                killed = {following[task] for task in left}
                for child in killed:
                    child.send(signal.SIGKILL)
        await asyncio.gather(*following)
        if self.is_stopping:
            return None
        return _cause([end for end in ends if end[0] not in killed])

    async def pause(self, delay_s: float) -> None:
        """Before the next life; cut short by a stop."""
        for child in self.children:
            child.state = State.WAITING
        with contextlib.suppress(TimeoutError):
            # A stop reaches all of a unit at once.
            await asyncio.wait_for(self.children[0].stopping.wait(), delay_s)
        if not self.is_stopping:
            for child in self.children:
                child.num_restarts += 1

    def gone(self) -> None:
        for child in self.children:
            child.state = State.STOPPED
            child.gone.set()


def units_of(children: Sequence[Child]) -> tuple[Unit, ...]:
    """In order; several learners are one unit."""
    together = tuple(child for child in children if child.spec.ranks.size > 1)
    alone = tuple(Unit((child,)) for child in children if child.spec.ranks.size == 1)
    return (Unit(together), *alone) if together else alone


def _cause(ends: Sequence[tuple[Child, int]]) -> tuple[Child, int]:
    """What ended a unit: the user's mistake if there is one, which the others only suffer from; else whoever
    failed first; else whoever ended first."""
    for child, code in ends:
        if code == 2 and child.error_line():
            return child, code
    return next((end for end in ends if end[1] != 0), ends[0])


def _free_port() -> int:
    """Somebody else may take it before it is used; then the life ends, and the next has another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
