"""Multi-agent environments: every agent of every copy is a slot of the policy that plays it.

`make_multi_agent_env` is called by `shoal.envs.make`, also inside worker processes. It takes environments of
PettingZoo's parallel API, whose copies are stepped one after another. One caller at a time, from any thread.

An agent is in play from an observation that it gets while it is among `env.agents` until it terminates,
truncates or is not there any more. Then its slot shows zeros and `first` until it is back, in this episode
or the next. A copy whose agents are all gone is reset by the next step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from shoal.config.tree import EnvSection
from shoal.envs.agents import ParallelEnv, assign_agents, check_parallel, common_spaces
from shoal.envs.anew import begin_anew
from shoal.envs.batch import BatchEnv, EnvStep, Slots
from shoal.envs.faults import BadValueError
from shoal.envs.guard import GuardedEnv
from shoal.envs.parallel_copy import ParallelCopy
from shoal.envs.restarts import Restarts
from shoal.envs.spaces import SpaceAdapter
from shoal.envs.teams import Team
from shoal.errors import UserError


def make_multi_agent_env(
    section: EnvSection,
    num_envs: int,
    make_one: Callable[[], ParallelEnv],
    env_id: str,
    restarts: Restarts | None = None,
) -> BatchEnv:
    """`num_envs` copies of what `make_one` makes. Raises UserError, and what `make_one` raises.

    `restarts`: the count that these environments share with others of the same actor.
    """
    restarts = restarts or Restarts(section.max_restarts)
    envs: list[ParallelEnv] = []
    try:
        for _ in range(num_envs):
            envs.append(make_one())
            _check_copy(envs)
        return MultiAgentEnv(section, envs, make_one, env_id, restarts)
    except BaseException as error:
        for env in envs:
            with contextlib.suppress(Exception):  # it is not wanted any more, whatever it says
                env.close()
        if isinstance(error, UserError):
            raise UserError(f"environment {env_id!r}: {error}") from error
        raise


class MultiAgentEnv:
    """Copies of one environment. All show their observations in the same arrays, again and again."""

    waits = False

    def __init__(
        self,
        section: EnvSection,
        envs: Sequence[ParallelEnv],
        make: Callable[[], ParallelEnv],
        env_id: str,
        restarts: Restarts,
    ) -> None:
        """`envs` were made by `make`, which makes another one where one broke."""
        self._teams: dict[str, Team] = {}
        for policy, agents in assign_agents(envs[0].possible_agents, section.policies).items():
            spaces = common_spaces(envs[0], policy, agents)
            adapter = SpaceAdapter(*spaces, section.action_mask, len(envs) * len(agents))
            self._teams[policy] = Team(agents, adapter, len(envs))
        self.slots = {
            policy: Slots(team.spaces.spec(env_id), team.num_slots) for policy, team in self._teams.items()
        }
        self._copies = []
        for index, env in enumerate(envs):
            seats = {
                agent: seat for team in self._teams.values() for agent, seat in team.seats(index).items()
            }
            guarded = GuardedEnv(env, make, f"environment {env_id!r}, copy {index}")
            self._copies.append(ParallelCopy(guarded, seats))
        self._restarts = restarts
        self.num_restarts = 0
        # The one that is being stepped: others may ask from another thread.
        self._at = 0

    def doing(self) -> str:
        """Which copy is being stepped, and where it is. For any thread."""
        return self._copies[self._at].guarded.name

    def reset(self, seed: int) -> dict[str, EnvStep]:
        for team in self._teams.values():
            team.clear()
        for index, copy in enumerate(self._copies):
            self._at = index
            try:
                copy.begin(seed + index)
            except Exception as error:  # whatever the environment's own code raises
                self._begin_anew(index, error)
        return self._shown()

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, EnvStep]:
        for policy, team in self._teams.items():
            team.clear()
            team.actions = team.spaces.action.to_env(actions[policy])
        for index, copy in enumerate(self._copies):
            self._at = index
            try:
                if copy.is_over:
                    copy.begin_episode()
                else:
                    copy.step()
            except Exception as error:  # whatever the environment's own code raises or returns
                self._begin_anew(index, error)
        return self._shown()

    def close(self) -> None:
        for copy in self._copies:
            copy.guarded.close()

    def _shown(self) -> dict[str, EnvStep]:
        for team in self._teams.values():
            for index, fault in team.faults().items():
                self._begin_anew(index, BadValueError(fault))
        shown = {policy: team.shown for policy, team in self._teams.items()}
        for step in shown.values():
            np.logical_or(step.terminated, step.truncated, out=step.done)
        return shown

    def _begin_anew(self, index: int, fault: Exception) -> None:
        """Shows the start of another environment in the place of one that broke, one without fault.

        Raises UserError if not even the first start was without, or when faults are too many.
        """
        copy = self._copies[index]
        self._at = index

        def begin(seed: int) -> None:
            self.num_restarts += 1
            copy.begin_anew(seed)
            self._check_finite(index)

        begin_anew(copy.guarded, index, fault, self._restarts, begin)

    def _check_finite(self, index: int) -> None:
        for team in self._teams.values():
            fault = team.faults().get(index)
            if fault is not None:
                raise BadValueError(fault)


def _check_copy(envs: Sequence[ParallelEnv]) -> None:
    """The newest, against the first."""
    check_parallel(envs[-1])
    first, newest = envs[0].possible_agents, envs[-1].possible_agents
    if newest != first:
        raise UserError(f"copies differ in their possible_agents: one has {first}, another {newest}")
