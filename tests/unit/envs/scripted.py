"""A multi-agent environment that follows a script: who is there, who sees something, whose life ends.

What an agent sees is [its number, episode, step]; what it earns is 100 * step + its action. It keeps the
actions that it was given, by agent, and the moments that it went through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

NUM_ACTIONS = 10
AGENTS = ("a", "b", "c")


@dataclass(frozen=True)
class Moment:
    """After a reset or a step. Agents are letters of strings."""

    # Who is on the list `agents`.
    there: str
    # Who gets an observation; if None, whoever is there or comes to an end.
    sees: str | None = None
    terminated: str = ""
    truncated: str = ""

    @property
    def seen(self) -> str:
        return self.there + self.terminated + self.truncated if self.sees is None else self.sees


Script = Sequence[Sequence[Moment]]


class ScriptedEnv:
    """Plays the episodes of the script over and over."""

    def __init__(self, script: Script, possible_agents: Sequence[str] = AGENTS) -> None:
        self.possible_agents = list(possible_agents)
        self.agents: list[str] = []
        self.seeds: list[int | None] = []
        self.taken: dict[str, list[int]] = {agent: [] for agent in possible_agents}
        # With the step of the episode; 0 is a reset.
        self.moments: list[tuple[int, Moment]] = []
        self.is_closed = False
        self._script = script
        self._episode = -1
        self._step = 0

    def observation_space(self, agent: str) -> Space[Any]:
        return Box(-np.inf, np.inf, (3,), np.float32)

    def action_space(self, agent: str) -> Space[Any]:
        return Discrete(NUM_ACTIONS)

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.seeds.append(seed)
        self._episode += 1
        self._step = 0
        moment = self._begin_moment()
        return self._observations(moment), {agent: {} for agent in moment.there}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        assert set(actions) == set(self.agents)
        for agent, action in actions.items():
            assert action in self.action_space(agent)
            self.taken[agent].append(int(action))
        self._step += 1
        moment = self._begin_moment()
        rewards = {agent: 100.0 * self._step + int(action) for agent, action in actions.items()}
        terminated = dict.fromkeys(moment.seen, False) | dict.fromkeys(moment.terminated, True)
        truncated = dict.fromkeys(moment.seen, False) | dict.fromkeys(moment.truncated, True)
        return (
            self._observations(moment),
            rewards,
            terminated,
            truncated,
            {agent: {} for agent in moment.seen},
        )

    def close(self) -> None:
        self.is_closed = True

    @property
    def _moment(self) -> Moment:
        return self._script[self._episode % len(self._script)][self._step]

    def _begin_moment(self) -> Moment:
        self.agents = list(self._moment.there)
        self.moments.append((self._step, self._moment))
        return self._moment

    def _observations(self, moment: Moment) -> dict[str, Any]:
        return {agent: self._observe(agent) for agent in moment.seen}

    def _observe(self, agent: str) -> Any:
        return np.array([self.possible_agents.index(agent), self._episode, self._step], np.float32)
