"""The data that flows between the services, as plain dataclasses.

No gRPC, no torch. `shoal.wire` turns these into protocol buffers and back.
Shapes: T transitions per unroll, E environments per group.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field

import numpy as np

PROTOCOL_VERSION = 1

# Columns that every trajectory has, besides those of the observation and the policy's outputs.
ACTION = "action"
REWARD = "reward"
TERMINATED = "terminated"
TRUNCATED = "truncated"
FIRST = "first"
POLICY_VERSION = "policy_version"
OBSERVATION = "observation"
LOG_PROB = "log_prob"

Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class ArraySpec:
    """Name, dtype and shape of one array per environment."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_categories: int = 0

    def describe(self) -> str:
        categories = f" of {self.num_categories} categories" if self.num_categories else ""
        return f"{self.name} {self.dtype}{list(self.shape)}{categories}"


@dataclass(frozen=True)
class DiscreteAction:
    """One integer in [0, n)."""

    n: int

    def array_spec(self) -> ArraySpec:
        return ArraySpec(ACTION, "int64", (), num_categories=self.n)

    def describe(self) -> str:
        return f"Discrete({self.n})"


@dataclass(frozen=True)
class BoxAction:
    """Real numbers; `low` and `high` are flattened in C order, infinite where unbounded."""

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def array_spec(self) -> ArraySpec:
        return ArraySpec(ACTION, "float32", self.shape)

    def describe(self) -> str:
        bounds = ", ".join(f"{low:g}..{high:g}" for low, high in zip(self.low, self.high, strict=True))
        return f"Box{list(self.shape)} within {bounds}"


ActionSpec = DiscreteAction | BoxAction


@dataclass(frozen=True)
class EnvSpec:
    """What an environment shows and takes; equal for all actors of a run."""

    env_id: str
    observation: tuple[ArraySpec, ...]
    action: ActionSpec

    def hash(self) -> str:
        """Stable digest, stored in checkpoints."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def describe(self) -> str:
        """One line for error messages."""
        return (
            f"{self.env_id}: {', '.join(a.describe() for a in self.observation)} -> {self.action.describe()}"
        )


@dataclass(frozen=True)
class Episode:
    """A finished episode of one environment."""

    episode_return: float
    num_steps: int


@dataclass(frozen=True)
class Trajectory:
    """An unroll: every column is [T+1, E, ...]. See `trajectory.proto` for the meaning of rows."""

    columns: Columns
    episodes: tuple[Episode, ...] = ()

    @property
    def unroll_length(self) -> int:
        return int(self.columns[FIRST].shape[0]) - 1

    @property
    def num_envs(self) -> int:
        return int(self.columns[FIRST].shape[1])

    @property
    def num_transitions(self) -> int:
        """Steps that carry a transition: all but the autoreset steps."""
        first = self.columns[FIRST]
        return int(first[1:].size - np.count_nonzero(first[1:]))


@dataclass(frozen=True)
class Life:
    """One life of one actor process."""

    actor_id: str
    run_id: str


@dataclass(frozen=True)
class Item:
    """A stored trajectory as replay hands it out: identity and serialised `Trajectory` message."""

    key: int
    life: Life
    sequence: int
    payload: bytes


@dataclass(frozen=True)
class WeightsSnapshot:
    """One published version of the weights: a safetensors file."""

    version: int
    data: bytes
    sha256: bytes = field(repr=False)

    @staticmethod
    def of(version: int, data: bytes) -> WeightsSnapshot:
        return WeightsSnapshot(version, data, hashlib.sha256(data).digest())
