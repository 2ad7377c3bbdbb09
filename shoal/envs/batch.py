"""What an actor steps: many environments at once, their slots sorted by the policy that plays them.

`BatchEnv` is the one seam between environments of every kind and the actor; `shoal.envs.make` builds one from
the configuration. One caller at a time, from any thread.

Every environment restarts by itself on the step after its episode ended (Gymnasium's NEXT_STEP): the step
that ends an episode still shows its final observation, the next one ignores the action, earns nothing
and shows the first observation of the new episode.

A slot is one environment, or one agent of one. While its agent is away, and when its environment broke and
was started again, the slot shows `first` as well: a step that leads to `first` is no transition and is never
trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shoal.records import Columns, EnvSpec


@dataclass(frozen=True, slots=True)
class EnvStep:
    """What E slots showed, each array [E, ...]; to be read before the next step."""

    observation: Columns
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    # The observation starts an episode, so the step that led to it was no transition.
    first: np.ndarray
    # Terminated or truncated: the next step starts an episode.
    done: np.ndarray


@dataclass(frozen=True)
class Slots:
    """The slots of one policy: what each shows and takes, and how many there are."""

    spec: EnvSpec
    num: int


class BatchEnv(Protocol):
    """Environments that are stepped together."""

    @property
    def slots(self) -> Mapping[str, Slots]:
        """By name of the policy; always the same."""
        ...

    @property
    def waits(self) -> bool:
        """Stepping waits for other processes: an event loop better waits for it in a thread."""
        ...

    @property
    def num_restarts(self) -> int:
        """Environments that broke or hung and were started again so far."""
        ...

    def reset(self, seed: int) -> dict[str, EnvStep]:
        """Starts an episode everywhere; environments get different seeds made from this one."""
        ...

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, EnvStep]:
        """Takes one action for each slot of each policy, as its spec says: categories from 0, or floats
        (clipped to the bounds). Raises UserError when environments break more often than allowed."""
        ...

    def close(self) -> None:
        """Ends the environments and their processes, in a few seconds whatever they do."""
        ...
