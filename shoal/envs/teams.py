"""The slots of one policy in a multi-agent environment: what its agents show, in one array per column.

Filled by `shoal.envs.parallel_copy`, one seat per agent of each copy; `shoal.envs.multi_agent` shows the
arrays. One caller at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.envs.agents import Agent
from shoal.envs.batch import EnvStep
from shoal.envs.faults import is_finite, non_finite
from shoal.envs.spaces import SpaceAdapter
from shoal.records import ACTION_MASK


class Team:
    """The agents that one policy plays, in all copies: row `copy * len(agents) + place` is one of them."""

    def __init__(self, agents: Sequence[Agent], spaces: SpaceAdapter, num_copies: int) -> None:
        """`spaces` has room for all rows."""
        self.agents = tuple(agents)
        self.spaces = spaces
        self.num_slots = num = num_copies * len(agents)
        # Rewritten in place, step by step.
        self.shown = EnvStep(
            spaces.empty(), np.zeros(num, np.float32), *(np.zeros(num, np.bool_) for _ in range(4))
        )
        # As the environment takes them.
        self.actions = np.empty(0)

    def seats(self, copy: int) -> dict[Agent, Seat]:
        start = copy * len(self.agents)
        return {agent: Seat(self, start + place) for place, agent in enumerate(self.agents)}

    def clear(self) -> None:
        """Before a step: unless something else is said, no slot makes a transition."""
        shown = self.shown
        shown.reward.fill(0)
        shown.terminated.fill(False)
        shown.truncated.fill(False)
        shown.first.fill(True)

    def faults(self) -> dict[int, str]:
        """Copies that show NaN or infinity, and what to say of each."""
        shown = self.shown
        # The quick question, asked at every step.
        if is_finite(shown.observation, shown.reward):
            return {}
        found: dict[int, str] = {}
        for row, fault in non_finite(shown.observation, shown.reward).items():
            copy, place = divmod(row, len(self.agents))
            found.setdefault(copy, f"{fault} to agent {self.agents[place]!r}")
        return found


class Seat:
    """The slot of one agent of one copy."""

    __slots__ = ("_is_blank", "_row", "_team", "in_play")

    def __init__(self, team: Team, row: int) -> None:
        self._team = team
        self._row = row
        self._is_blank = True
        # Showed an observation that its next step goes on from.
        self.in_play = False

    @property
    def action(self) -> Any:
        return self._team.actions[self._row]

    def begin(self, observation: Any, info: Mapping[str, Any]) -> None:
        """The agent came. Raises BadValueError."""
        self._write(observation, info)
        self.in_play = True

    def go_on(self, observation: Any, info: Mapping[str, Any]) -> None:
        """What the agent's step led to; None: it sees nothing new. Raises BadValueError."""
        if observation is not None:
            self._write(observation, info)
        self._team.shown.first[self._row] = False

    def earn(self, reward: Any, terminated: bool, truncated: bool) -> None:
        """What the agent's step brought."""
        shown, row = self._team.shown, self._row
        shown.reward[row] = reward
        if terminated or truncated:
            shown.terminated[row] = terminated
            shown.truncated[row] = truncated
            self.in_play = False

    def stay_away(self) -> None:
        """The agent is not there."""
        if not self._is_blank:
            for name, column in self._team.shown.observation.items():
                column[self._row] = name == ACTION_MASK
            self._is_blank = True

    def clear(self) -> None:
        """Takes back what was shown of a step that came to nothing."""
        shown, row = self._team.shown, self._row
        shown.reward[row] = 0
        shown.terminated[row] = shown.truncated[row] = False
        shown.first[row] = True
        self.in_play = False

    def _write(self, observation: Any, info: Mapping[str, Any]) -> None:
        self._is_blank = False
        self._team.spaces.write(self._team.shown.observation, self._row, observation, info)
