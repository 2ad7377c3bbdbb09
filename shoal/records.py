"""The data that flows between the services, as plain dataclasses.

No gRPC, no torch. `shoal.wire` turns these into protocol buffers and back.
Shapes: T transitions per unroll, E environments per group.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from shoal.config.policies import DEFAULT_POLICY as DEFAULT_POLICY

PROTOCOL_VERSION = 4

# Columns that every trajectory has, besides those of the observation and the policy's outputs.
ACTION = "action"
REWARD = "reward"
TERMINATED = "terminated"
TRUNCATED = "truncated"
FIRST = "first"
POLICY_VERSION = "policy_version"
OBSERVATION = "observation"
LOG_PROB = "log_prob"
# Of a `q` policy: the value of the action taken, and that of the best one allowed.
Q_VALUE = "q_value"
Q_MAX = "q_max"
# An observation that says which actions are allowed: it is no input of the network.
ACTION_MASK = "action_mask"
# Observations that are no environment's own: what was done and what came of it, for recurrent cores.
PREVIOUS = "previous."
PREVIOUS_ACTION = f"{PREVIOUS}action"
PREVIOUS_REWARD = f"{PREVIOUS}reward"

# Columns [1, E, ...] of a trajectory: the policy's state before its first row, by the name that state has.
INITIAL = "initial."
# States that are the frames before the newest one, [E, frames, ...]: whoever shows the frames knows them.
FRAMES = "frames."

# Columns of n-step transitions that no trajectory has; NEXT stands before the name of an observation.
DISCOUNT = "discount"
NUM_STEPS = "num_steps"
NEXT = "next_"

Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class ArraySpec:
    """Name, dtype and shape of one array per environment."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_categories: int = 0
    # Bounds of all elements, the widest of any; infinite where there is none or none is known.
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        # Never true of NaN.
        if not (self.low <= self.high and self.low < math.inf and self.high > -math.inf):
            raise ValueError(
                f"{self.name} has the bounds {self.low:g}..{self.high:g}: low must not exceed high"
            )

    @property
    def is_bounded(self) -> bool:
        """On both sides."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def describe(self) -> str:
        categories = f" of {self.num_categories} categories" if self.num_categories else ""
        bounds = "" if self._has_no_bound else f" within {self.low:g}..{self.high:g}"
        return f"{self.name} {self.dtype}{list(self.shape)}{categories}{bounds}"

    def without_bounds(self) -> ArraySpec:
        return replace(self, low=-math.inf, high=math.inf)

    @property
    def _has_no_bound(self) -> bool:
        return math.isinf(self.low) and math.isinf(self.high)


@dataclass(frozen=True)
class DiscreteAction:
    """One integer in [0, n)."""

    n: int

    def array_spec(self) -> ArraySpec:
        return ArraySpec(ACTION, "int64", (), num_categories=self.n)

    def describe(self) -> str:
        return f"Discrete({self.n})"


@dataclass(frozen=True)
class MultiDiscreteAction:
    """One integer in [0, n) for each n of `nvec`."""

    nvec: tuple[int, ...]

    def array_spec(self) -> ArraySpec:
        # One number of categories for all elements: the largest covers the others.
        return ArraySpec(ACTION, "int64", (len(self.nvec),), num_categories=max(self.nvec))

    def describe(self) -> str:
        return f"MultiDiscrete({list(self.nvec)})"


# What float32 has room for: bounds, and widths that can be divided by.
_MAX_BOUND = 1e30
_MIN_WIDTH = 1e-30


def has_width(low: float, high: float) -> bool:
    """Two finite bounds, with room between them."""
    return -_MAX_BOUND <= low < high <= _MAX_BOUND and high - low >= _MIN_WIDTH


@dataclass(frozen=True)
class BoxAction:
    """Real numbers; `low` and `high` are flattened in C order, infinite where unbounded."""

    shape: tuple[int, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def array_spec(self) -> ArraySpec:
        return ArraySpec(ACTION, "float32", self.shape)

    @property
    def num_unbounded(self) -> int:
        """Elements that have no two finite bounds with room between them."""
        return sum(not has_width(low, high) for low, high in zip(self.low, self.high, strict=True))

    def describe(self) -> str:
        bounds = ", ".join(f"{low:g}..{high:g}" for low, high in zip(self.low, self.high, strict=True))
        return f"Box{list(self.shape)} within {bounds}"


ActionSpec = DiscreteAction | MultiDiscreteAction | BoxAction


@dataclass(frozen=True)
class EnvSpec:
    """What an environment shows and takes; equal for all actors of a run."""

    env_id: str
    observation: tuple[ArraySpec, ...]
    action: ActionSpec

    def hash(self) -> str:
        """Stable digest, stored in checkpoints."""
        tree = asdict(self)
        for array in tree["observation"]:
            # Left out where there is none, as before specs had bounds: the digests of then stay valid.
            for bound in ("low", "high"):
                if math.isinf(array[bound]):
                    del array[bound]
        text = json.dumps(tree, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def shows_previous(self) -> bool:
        """The previous action and reward are among its observations."""
        return any(array.name.startswith(PREVIOUS) for array in self.observation)

    def without_bounds(self) -> EnvSpec:
        """As releases wrote it that did not know the bounds of observations."""
        return replace(self, observation=tuple(array.without_bounds() for array in self.observation))

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
    # The policy version that chose its first action; -1: not known.
    first_version: int = -1


@dataclass(frozen=True)
class Trajectory:
    """An unroll: every column is [T+1, E, ...]. See `trajectory.proto` for the meaning of rows.

    Columns named `initial.` and more are [1, E, ...].
    """

    columns: Columns
    episodes: tuple[Episode, ...] = ()
    # Which of its sender's environments this is, if it is one alone, and its steps before row 0.
    stream: int = 0
    first_step: int = 0

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
    """What a queue or sequence table hands out: identity and serialised `Trajectory` messages.

    One message, or the consecutive unrolls of a longer sequence. `mass` is its part of the priority mass.
    """

    key: int
    life: Life
    sequence: int
    payloads: tuple[bytes, ...]
    mass: float = 1.0

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.payloads))


@dataclass(frozen=True)
class Transitions:
    """What a transition table hands out: row i of every column is one transition.

    Columns: `observation...` and `next_observation...` (the names of the trajectory's columns, the latter
    with `next_` in front; of `action_mask`, if there is one, too), `action`, `reward` (n-step sum),
    `discount` (gamma ^ steps; 0 after a terminal step), `num_steps`, `policy_version`, and whatever else the
    trajectory had, as of its first step. `terminated`, `truncated` and `first` are left out: `discount` says
    it for all steps of the row.
    """

    keys: np.ndarray
    masses: np.ndarray
    columns: Columns

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, index: slice) -> Transitions:
        """Some of the rows."""
        columns = {name: column[index] for name, column in self.columns.items()}
        return Transitions(self.keys[index], self.masses[index], columns)


@dataclass(frozen=True)
class WeightsSnapshot:
    """One published version of the weights: a safetensors file."""

    version: int
    data: bytes
    sha256: bytes = field(repr=False)
    # Nothing was learnt yet: whoever explores acts at random.
    untrained: bool = False

    @staticmethod
    def of(version: int, data: bytes, untrained: bool = False) -> WeightsSnapshot:
        return WeightsSnapshot(version, data, hashlib.sha256(data).digest(), untrained)
