"""A game of two sides as a user writes one (PettingZoo's parallel API); tests copy this file."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete


class Signals:
    """Every agent is paid for pressing the button of the lamp that is lit. Red sees one number more."""

    def __init__(self, length: int = 10) -> None:
        self.possible_agents = ["red_0", "blue_0"]
        self.agents: list[str] = []
        self._length = length
        self._rng = np.random.default_rng()

    def observation_space(self, agent: str) -> Space[Any]:
        return Box(-1, 1, (3 if agent.startswith("red") else 2,), np.float32)

    def action_space(self, agent: str) -> Space[Any]:
        return Discrete(2)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._time = list(self.possible_agents), 0
        return self._shown(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        rewards = {agent: float(action == self._lit[agent]) for agent, action in actions.items()}
        self._time += 1
        over = self._time == self._length
        shown = self._shown()
        ended = dict.fromkeys(self.agents, False)
        cut = dict.fromkeys(self.agents, over)
        infos: dict[str, Any] = {agent: {} for agent in self.agents}
        if over:
            self.agents = []
        return shown, rewards, ended, cut, infos

    def _shown(self) -> dict[str, Any]:
        self._lit = {agent: int(self._rng.integers(2)) for agent in self.agents}
        shown = {agent: np.zeros(self.observation_space(agent).shape, np.float32) for agent in self.agents}
        for agent, lit in self._lit.items():
            shown[agent][lit] = 1.0
        return shown

    def close(self) -> None:
        """Nothing is open."""
