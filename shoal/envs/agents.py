"""Which policy plays which agent of a multi-agent environment, and what those agents show and take.

Owns what `env.policies` means and the part of PettingZoo's parallel API that is used. Called once per
environment by `shoal.envs.multi_agent`; no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol

from gymnasium import Space

from shoal.errors import UserError
from shoal.records import DEFAULT_POLICY

# Mostly a string; PettingZoo allows whatever can be the key of a dict.
Agent = Any


class ParallelEnv(Protocol):
    """PettingZoo's parallel API: all agents that are there act at once."""

    possible_agents: list[Agent]
    agents: list[Agent]

    def observation_space(self, agent: Agent) -> Space[Any]: ...

    def action_space(self, agent: Agent) -> Space[Any]: ...

    def reset(self, seed: int | None = None) -> tuple[dict[Agent, Any], dict[Agent, dict[str, Any]]]: ...

    def step(
        self, actions: dict[Agent, Any]
    ) -> tuple[
        dict[Agent, Any],
        dict[Agent, float],
        dict[Agent, bool],
        dict[Agent, bool],
        dict[Agent, dict[str, Any]],
    ]: ...

    def close(self) -> None: ...


def check_parallel(env: object) -> None:
    """Raises UserError for environments of another kind."""
    if callable(getattr(env, "agent_iter", None)):
        raise UserError(
            "it is an AEC environment, whose agents act one after another, and shoal steps all at once: make "
            "it a parallel one with pettingzoo.utils.aec_to_parallel, or, if they take turns, with "
            "pettingzoo.utils.turn_based_aec_to_parallel"
        )
    if not getattr(env, "possible_agents", None):
        raise UserError("it names no possible_agents: shoal needs to know all agents before they come")


def assign_agents(
    possible_agents: Sequence[Agent], policies: Mapping[str, Sequence[str]]
) -> dict[str, tuple[Agent, ...]]:
    """The agents of each policy, in the order of the environment. Raises UserError.

    `policies` is `env.policies`: the first policy with a name or pattern that fits plays the agent.
    """
    if not policies:
        return {DEFAULT_POLICY: tuple(possible_agents)}
    assigned: dict[str, list[Agent]] = {policy: [] for policy in policies}
    uncovered = []
    for agent in possible_agents:
        fitting = (name for name, patterns in policies.items() if any(_fits(agent, p) for p in patterns))
        policy = next(fitting, None)
        if policy is None:
            uncovered.append(agent)
        else:
            assigned[policy].append(agent)
    agents = _list(possible_agents)
    if uncovered:
        raise UserError(f"no policy of env.policies plays {_list(uncovered)}; the agents are {agents}")
    idle = [
        pattern
        for patterns in policies.values()
        for pattern in patterns
        if not any(_fits(agent, pattern) for agent in possible_agents)
    ]
    if idle:
        raise UserError(f"no agent fits {_list(idle)} of env.policies; the agents are {agents}")
    for policy, players in assigned.items():
        if not players:
            raise UserError(f"env.policies: {policy!r} plays no agent, those before it play all that fit")
    return {policy: tuple(players) for policy, players in assigned.items()}


def common_spaces(env: ParallelEnv, policy: str, agents: Sequence[Agent]) -> tuple[Space[Any], Space[Any]]:
    """What all agents of a policy show and take. Raises UserError if they differ."""
    first = agents[0]
    observation, action = env.observation_space(first), env.action_space(first)
    for agent in agents[1:]:
        for kind, mine, others in (
            ("observation", observation, env.observation_space(agent)),
            ("action", action, env.action_space(agent)),
        ):
            if mine != others:
                raise UserError(
                    f"policy {policy!r} plays {first!r} and {agent!r}, whose {kind} spaces differ: {mine} "
                    f"and {others}; give them policies of their own in env.policies"
                )
    return observation, action


def _fits(agent: Agent, pattern: str) -> bool:
    # A name may hold characters that mean something in patterns.
    return str(agent) == pattern or fnmatchcase(str(agent), pattern)


def _list(names: Sequence[Agent]) -> str:
    return ", ".join(map(repr, names))
