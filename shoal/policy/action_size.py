"""How many numbers an action takes at the end of a network. Stateless."""

from __future__ import annotations

from shoal.errors import UserError
from shoal.records import BoxAction, DiscreteAction, EnvSpec

# A spec comes off a socket: it must not be able to ask for a layer of any size.
MAX_ACTIONS = 1 << 16


def num_actions(spec: EnvSpec) -> int:
    """Actions of Discrete, values of all MultiDiscrete elements, elements of Box; UserError if too many."""
    action = spec.action
    if isinstance(action, BoxAction):
        return _checked(len(action.low), "elements of the action", spec)
    if isinstance(action, DiscreteAction):
        return _checked(action.n, "actions", spec)
    least = min(action.nvec, default=0)
    if least < 1:
        raise UserError(
            f"{spec.env_id} has {action.describe()} actions: each element needs at least one value"
        )
    # Distributions give every element as many values as the largest has.
    _checked(len(action.nvec) * max(action.nvec), "values of the elements of the action", spec)
    return sum(action.nvec)


def _checked(num: int, what: str, spec: EnvSpec) -> int:
    if not 1 <= num <= MAX_ACTIONS:
        raise UserError(f"{spec.env_id} has {num} {what} (limits 1 and {MAX_ACTIONS}): wrap the action space")
    return num
