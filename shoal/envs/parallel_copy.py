"""One copy of a multi-agent environment: who is there, who comes and goes, and where it is when it breaks.

Used by `shoal.envs.multi_agent`. The environment's own code runs only in here, in the thread of the caller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from shoal.envs.agents import Agent, ParallelEnv
from shoal.envs.faults import BadValueError
from shoal.envs.teams import Seat

_NO_INFO: Mapping[str, Any] = {}


class ParallelCopy:
    """An environment with its seed, episode and step, that shows its agents in their seats."""

    def __init__(
        self,
        env: ParallelEnv,
        make: Callable[[], ParallelEnv],
        env_id: str,
        index: int,
        seats: Mapping[Agent, Seat],
    ) -> None:
        """`env` was made by `make`, which makes another one if it breaks."""
        self._env = env
        self._make = make
        self._env_id = env_id
        self._index = index
        self._seats = seats
        # All agents are gone: the next step is to begin an episode.
        self.is_over = False
        self.has_begun = False
        self.seed = self.episode = self.step_of_episode = 0

    @property
    def name(self) -> str:
        """Which one it is and where it is: enough to get there again."""
        where = f"seed {self.seed}, episode {self.episode}, step {self.step_of_episode}"
        return f"environment {self._env_id!r}, copy {self._index} ({where})"

    def begin(self, seed: int) -> None:
        """Shows the start of the first episode with this seed."""
        self.seed, self.episode, self.step_of_episode = seed, 1, 0
        self._show_start(*self._env.reset(seed=seed))

    def begin_episode(self) -> None:
        """Shows the start of the next episode."""
        self.has_begun = True
        self.episode += 1
        self.step_of_episode = 0
        self._show_start(*self._env.reset())

    def begin_anew(self, seed: int) -> None:
        """Shows the start of another environment, as this one broke."""
        self.close()
        self._env = self._make()
        self.begin(seed)

    def step(self) -> None:
        """Takes the actions of those who are there, and shows what came of it."""
        self.has_begun = True
        self.step_of_episode += 1
        env, seats = self._env, self._seats
        observations, rewards, terminated, truncated, infos = env.step(
            {agent: seats[agent].action for agent in env.agents}
        )
        there = self._agents_there()
        try:
            for agent, seat in seats.items():
                observation = observations.get(agent)
                dies, is_cut = bool(terminated.get(agent)), bool(truncated.get(agent))
                is_there = observation is not None and agent in there
                if seat.in_play:
                    seat.go_on(observation, infos.get(agent) or _NO_INFO)
                    # Who vanishes without a word did not come to an end of its own.
                    seat.earn(rewards.get(agent, 0.0), dies, is_cut or not (is_there or dies))
                elif is_there and not (dies or is_cut):
                    seat.begin(observation, infos.get(agent) or _NO_INFO)
                else:
                    seat.stay_away()
        except BadValueError as error:
            raise BadValueError(f"{error} to agent {agent!r}") from None
        # Some environments keep agents on their list that are at their end.
        self.is_over = all(terminated.get(agent) or truncated.get(agent) for agent in there)

    def close(self) -> None:
        with contextlib.suppress(Exception):  # it may be what broke
            self._env.close()

    def _show_start(self, observations: Mapping[Agent, Any], infos: Mapping[Agent, Any]) -> None:
        there = self._agents_there()
        try:
            for agent, seat in self._seats.items():
                seat.clear()
                observation = observations.get(agent)
                if observation is not None and agent in there:
                    seat.begin(observation, infos.get(agent) or _NO_INFO)
                else:
                    seat.stay_away()
        except BadValueError as error:
            raise BadValueError(f"{error} to agent {agent!r}") from None
        self.is_over = not there

    def _agents_there(self) -> set[Agent]:
        there = set(self._env.agents)
        if not there <= self._seats.keys():
            strangers = ", ".join(repr(agent) for agent in there - self._seats.keys())
            raise BadValueError(f"has agents that are not among its possible_agents: {strangers}")
        return there
