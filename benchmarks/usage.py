"""What a running `shoal train` has used and done: CPU seconds of its processes, and their own metrics.

`observe` looks once; `Window` is what happened between two looks. CPU seconds come from the operating system
and count whatever a process has started itself, such as workers of asynchronous environments.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from shoal.cli.scrape import Metrics, by_label, fetch, parse, total
from shoal.errors import UnavailableError

LAUNCHER = "launcher"
OTHERS, STOLEN = "other programs", "stolen by the host"
# Cores that the run could not have had.
NOT_OURS = (OTHERS, STOLEN)
TRAINED = "shoal_learner_env_steps_total"


@dataclass(frozen=True)
class Machine:
    """CPU seconds of all cores since the machine was started."""

    total_s: float
    idle_s: float
    # Taken by the host of a virtual machine.
    stolen_s: float


@dataclass(frozen=True)
class Process:
    """One process of the run, those that it started included."""

    role: str
    pid: int
    cpu_s: float
    metrics: Metrics


@dataclass(frozen=True)
class Usage:
    """The run at one moment. `own_cpu_s` is what the benchmark itself has used."""

    time_s: float
    machine: Machine
    own_cpu_s: float
    processes: tuple[Process, ...]

    def counter(self, role: str, name: str) -> float:
        """Summed over the role's processes and all labels."""
        return sum(total(p.metrics, name) or 0.0 for p in self.processes if p.role == role)

    @property
    def trained_steps(self) -> float:
        return self.counter("learner", TRAINED)


def observe(launcher: int, sockets: Path) -> Usage:
    """`sockets`: where the processes of the run announce themselves."""
    announced = [(path.stem, json.loads(path.read_text())) for path in sorted(sockets.glob("*-*.json"))]
    texts = asyncio.run(_fetch_all(record["metrics"] for _, record in announced))
    processes = [Process(LAUNCHER, launcher, _cpu_s(launcher), {})]
    for (name, record), text in zip(announced, texts, strict=True):
        role = name.rpartition("-")[0]
        processes.append(Process(role, record["pid"], _cpu_s(record["pid"], True), parse(text)))
    return Usage(time.monotonic(), _machine(), _cpu_s(psutil.Process().pid), tuple(processes))


async def _fetch_all(addresses: Iterable[str]) -> list[str]:
    return list(await asyncio.gather(*map(_fetch, addresses)))


async def _fetch(address: str) -> str:
    """Of a service that is too busy to answer in time it is asked again."""
    for _ in range(5):
        try:
            return await fetch(address)
        except UnavailableError as error:
            reason = error
    raise reason


def _cpu_s(pid: int, and_children: bool = False) -> float:
    """Children that have ended are in the figures of whoever waited for them."""
    process = psutil.Process(pid)
    used = 0.0
    for each in [process, *(process.children(recursive=True) if and_children else ())]:
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system
    return used


def _machine() -> Machine:
    times = psutil.cpu_times()
    # Time of guests is in that of their host process already.
    counted = {name: value for name, value in times._asdict().items() if not name.startswith("guest")}
    idle_s = counted["idle"] + counted.get("iowait", 0.0)
    return Machine(sum(counted.values()), idle_s, counted.get("steal", 0.0))


@dataclass(frozen=True)
class Window:
    """From one look at a run to a later one."""

    begin: Usage
    end: Usage

    def __post_init__(self) -> None:
        if _lives(self.begin) != _lives(self.end):
            raise RuntimeError("a process of the run was restarted while it was measured: see its log")

    @property
    def seconds(self) -> float:
        return self.end.time_s - self.begin.time_s

    @property
    def trained_steps(self) -> float:
        return self.end.trained_steps - self.begin.trained_steps

    @property
    def trained_rate(self) -> float:
        """Environment steps trained on per second."""
        return self.trained_steps / self.seconds

    def grown(self, role: str, counter: str) -> float:
        return self.end.counter(role, counter) - self.begin.counter(role, counter)

    @property
    def cpu_s(self) -> dict[str, float]:
        """CPU seconds by role, the launcher included."""
        used: dict[str, float] = defaultdict(float)
        for usage, sign in ((self.begin, -1), (self.end, 1)):
            for process in usage.processes:
                used[process.role] += sign * process.cpu_s
        return dict(used)

    def phases(self, role: str) -> dict[str, float]:
        """Seconds by phase, as the services report them, summed over the role's processes."""
        spent: dict[str, float] = defaultdict(float)
        for usage, sign in ((self.begin, -1), (self.end, 1)):
            for process in usage.processes:
                if process.role == role:
                    for _, phase, seconds in by_label(process.metrics, "phase"):
                        spent[phase] += sign * seconds
        return dict(spent)


def _lives(usage: Usage) -> set[tuple[str, int]]:
    return {(process.role, process.pid) for process in usage.processes}


def cores_by_use(window: Window, parts: Mapping[str, Mapping[str, float]]) -> list[tuple[str, float]]:
    """Where all cores were, in CPU seconds that add up to cores x time.

    `parts` splits roles further: of a role that is there, what is not in its parts is `<role>, the rest`.
    """
    rows: list[tuple[str, float]] = []
    for role, used in window.cpu_s.items():
        known = parts.get(role, {})
        rows += [(f"{role}, {what}", seconds) for what, seconds in known.items()]
        rows.append((f"{role}, the rest" if known else role, used - sum(known.values())))
    begin, end = window.begin, window.end
    rows.append(("this benchmark", end.own_cpu_s - begin.own_cpu_s))
    idle_s = end.machine.idle_s - begin.machine.idle_s
    stolen_s = end.machine.stolen_s - begin.machine.stolen_s
    total_s = end.machine.total_s - begin.machine.total_s
    others_s = total_s - idle_s - stolen_s - sum(seconds for _, seconds in rows)
    rows += [(OTHERS, others_s), (STOLEN, stolen_s), ("idle", idle_s)]
    return rows
