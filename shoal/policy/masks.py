"""Action masks: which actions are allowed. No input of any network; they hide actions from a choice.

An environment shows its mask as the observation array `action_mask`: one number for each action of Discrete
or, one after the other, for each value of each element of MultiDiscrete; 0 forbids. Where all are 0 the
environment asks for the impossible, and all are allowed. Stateless; any thread.
"""

from __future__ import annotations

from torch import Tensor

from shoal.errors import UserError
from shoal.records import ACTION_MASK, BoxAction, DiscreteAction, EnvSpec

# Instead of minus infinity: exp of it is 0 too, and 0 times it is not NaN.
HIDDEN = -1e9


def check_mask(spec: EnvSpec) -> None:
    """Raises UserError for a mask that does not fit the actions."""
    mask = next((array for array in spec.observation if array.name == ACTION_MASK), None)
    if mask is None:
        return
    action = spec.action
    if isinstance(action, BoxAction):
        raise UserError(
            f"{spec.env_id} shows an action mask, but its actions are {action.describe()}: only Discrete and "
            "MultiDiscrete actions can be masked; set env.action_mask to 'none'"
        )
    num = action.n if isinstance(action, DiscreteAction) else sum(action.nvec)
    if mask.shape != (num,):
        raise UserError(
            f"{spec.env_id} shows an action mask of shape {list(mask.shape)}, but {action.describe()} needs "
            f"[{num}]: one number for each action"
        )


def allowed_actions(mask: Tensor) -> Tensor:
    """[..., n] of any dtype as bool, with rows of zeros all allowed."""
    allowed = mask != 0
    return allowed | allowed.any(-1, keepdim=True).logical_not()


def hide(values: Tensor, allowed: Tensor | None) -> Tensor:
    """`values` [..., n] (logits or Q values) with those of forbidden actions far below all others."""
    return values if allowed is None else values.masked_fill(allowed.logical_not(), HIDDEN)
