"""Which processes a local run consists of, and what each is told on its command line.

Pure: config in, commands out. All services talk over unix sockets in one private directory, so `addresses.*`
and the `listen.grpc` and `listen.health` of a config file do not count here; `listen.metrics` does.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import shoal
from shoal.config import Config
from shoal.config.connections import ListenSection
from shoal.config.ranks import RANK_VARIABLES, Ranks, listen_of

# Slow starters first: learner and inference import torch while the others come up.
START_ORDER = ("learner", "inference", "replay", "actor", "evaluator")

# Longest drain of each role (s): a service then ends by itself before the supervisor has to kill it.
MAX_DRAIN_S = {"actor": 2.0, "evaluator": 2.0, "learner": 4.0, "inference": 1.0, "replay": 1.0}

# Who dials whom.
PEERS = {"actor": ("inference", "replay"), "inference": ("learner",), "learner": ("replay",), "replay": ()}

TOKEN_VARIABLE = "SHOAL__SECURITY__TOKEN"


@dataclass(frozen=True)
class ProcessSpec:
    """One process of the run. `role` is the service's name, or `evaluator` for an actor that evaluates."""

    role: str
    index: int
    announce: Path
    overrides: tuple[str, ...]
    # Of several learners: they live and die together.
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def service(self) -> str:
        return "actor" if self.role == "evaluator" else self.role

    def command(self, config_file: Path) -> list[str]:
        command = [sys.executable, *interpreter_flags(), "-m", f"services.{self.service}"]
        command += ["--config", str(config_file)]
        for override in self.overrides:
            command += ["--set", override]
        return command


def plan_processes(config: Config, sockets: Path) -> tuple[ProcessSpec, ...]:
    """Every process of a run, in the order to start them."""
    launch = config.launch
    counts = {
        "learner": launch.learners,
        "inference": launch.inference,
        "replay": launch.replay_shards,
        "actor": launch.actors,
        "evaluator": launch.evaluators,
    }
    addresses = {
        "addresses.learner": _socket(sockets, "learner-0"),
        "addresses.inference": [_socket(sockets, f"inference-{i}") for i in range(launch.inference)],
        "addresses.replay": [replay_address(sockets, i) for i in range(launch.replay_shards)],
    }
    drain_s = {role: min(config.rpc.drain_s, limit_s) for role, limit_s in MAX_DRAIN_S.items()}
    processes = [
        _process(role, index, sockets, {"rpc.drain_s": drain_s[role]}, addresses)
        for role in START_ORDER
        for index in range(counts[role])
        if role != "learner" or index == 0
    ]
    return (*_learners(processes[0], launch.learners), *processes[1:])


def _learners(chief: ProcessSpec, number: int) -> tuple[ProcessSpec, ...]:
    """All are told the same, as by torchrun; each makes its own of it, by its rank."""
    return tuple(
        replace(
            chief,
            index=rank,
            announce=listen_of(ListenSection(announce=chief.announce), ranks).announce or chief.announce,
            ranks=ranks,
        )
        for rank in range(number)
        for ranks in (Ranks(rank, number, rank, number),)
    )


def _process(
    role: str, index: int, sockets: Path, common: Mapping[str, object], addresses: Mapping[str, object]
) -> ProcessSpec:
    name = f"{role}-{index}"
    section = "actor" if role == "evaluator" else role
    announce = sockets / f"{name}.json"
    values: dict[str, object] = {
        **common,
        f"{section}.listen.health": _socket(sockets, f"{name}.health"),
        f"{section}.listen.announce": str(announce),
    }
    if section != "learner":
        values[f"{section}.id"] = name
    if section != "actor":
        values[f"{section}.listen.grpc"] = _socket(sockets, name)
    if role == "evaluator":
        values["actor.mode"] = "evaluate"
    for peer in PEERS[section]:
        values[f"addresses.{peer}"] = addresses[f"addresses.{peer}"]
    # JSON is YAML: paths with odd characters survive `--set`.
    overrides = tuple(f"{key}={json.dumps(value)}" for key, value in values.items())
    return ProcessSpec(role, index, announce, overrides)


def child_environment(
    config: Config, token: str, environ: Mapping[str, str], sockets: Path
) -> dict[str, str]:
    """The environment of every service. The token travels here: command lines are public."""
    # The config file already holds what SHOAL__ variables said, with the command line's flags over them.
    environment = {
        key: value
        for key, value in environ.items()
        if not key.startswith(("SHOAL__", "TORCHELASTIC_")) and key not in RANK_VARIABLES
    }
    if config.launch.learners > 1:
        # They are on this machine: whatever its name resolves to.
        environment.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    if config.security.token_file is None:
        given = config.security.token
        environment[TOKEN_VARIABLE] = given.get_secret_value() if given else token
    # Several thread pools on few cores get in each other's way: one thread each unless asked otherwise.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment.setdefault(variable, "1")
    # Threads that wait for each other must not keep a core from the other services. Sleeping at once
    # costs more than most waits last (services/learner/README.md): they spin for some 20 us first.
    environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environment.setdefault("GOMP_SPINCOUNT", "10000")
    environment["PYTHONUNBUFFERED"] = "1"
    # Worker processes of environments leave files there if they are killed; this directory is removed.
    environment["TMPDIR"] = str(sockets)
    return environment


def _loopback() -> str:
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


def replay_address(sockets: Path, index: int) -> str:
    return _socket(sockets, f"replay-{index}")


def _socket(sockets: Path, name: str) -> str:
    return f"unix:{sockets / name}.sock"


def interpreter_flags() -> tuple[str, ...]:
    """`-m` puts the working directory first on the path, where files of the user's, such as `yaml.py`, would
    hide what services import; actors look there last. In a checkout the services are found by it."""
    return () if Path.cwd() == Path(shoal.__file__).resolve().parents[1] else ("-P",)
