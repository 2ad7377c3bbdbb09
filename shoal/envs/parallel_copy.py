"""One copy of a multi-agent environment: who is there, and who comes and goes.

Used by `shoal.envs.multi_agent`, in the thread of the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.envs.agents import Agent
from shoal.envs.faults import BadValueError
from shoal.envs.guard import GuardedEnv
from shoal.envs.teams import Seat

_NO_INFO: Mapping[str, Any] = {}


class ParallelCopy:
    """An environment that shows its agents in their seats."""

    def __init__(self, guarded: GuardedEnv, seats: Mapping[Agent, Seat]) -> None:
        self.guarded = guarded
        self._seats = seats
        # All agents are gone: the next step is to begin an episode.
        self.is_over = False

    def begin(self, seed: int) -> None:
        """Shows the start of the first episode with this seed."""
        self._show_start(*self.guarded.begin(seed))

    def begin_episode(self) -> None:
        """Shows the start of the next episode."""
        self._show_start(*self.guarded.begin_episode())

    def begin_anew(self, seed: int) -> None:
        """Shows the start of another environment, as this one broke."""
        self._show_start(*self.guarded.begin_anew(seed))

    def step(self) -> None:
        """Takes the actions of those who are there, and shows what came of it."""
        seats = self._seats
        observations, rewards, terminated, truncated, infos = self.guarded.step(
            {agent: seats[agent].action for agent in self.guarded.env.agents}
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
        there = set(self.guarded.env.agents)
        if not there <= self._seats.keys():
            strangers = ", ".join(repr(agent) for agent in there - self._seats.keys())
            raise BadValueError(f"has agents that are not among its possible_agents: {strangers}")
        return there
