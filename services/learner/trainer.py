"""One learner step: loss, gradients, update, and the guard against NaN and infinity.

Owns the policy's parameters and the optimiser's state. Training thread only; what leaves (`weights`,
`state`) is a copy. Nothing that is not finite gets out: the run stops with the reason instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from services.learner.optimiser import Adam, FlatParameters
from shoal.algorithms.algorithm import Algorithm, Batch
from shoal.checkpoint import WEIGHTS
from shoal.errors import CheckpointError, NonFiniteError
from shoal.policy.network import Policy
from shoal.policy.weights import describe_differences

_EXP_AVG, _EXP_AVG_SQ = "adam/exp_avg/", "adam/exp_avg_sq/"
_NUM_STEPS, _RNG = "adam/num_steps", "rng/cpu"
_MAX_SHOWN = 3
_ADVICE = "Lower algorithm.learning_rate or scale the rewards"

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class StepOutcome:
    """What a step says about itself; `metrics` are tensors that nobody has waited for."""

    loss: float
    grad_norm: float
    metrics: dict[str, Tensor]


class Trainer:
    """Trains a policy that is already on its device."""

    def __init__(
        self, policy: Policy, algorithm: Algorithm, learning_rate: float, max_grad_norm: float
    ) -> None:
        self._policy = policy
        self._algorithm = algorithm
        self._max_grad_norm = max_grad_norm
        self._flat = FlatParameters(policy)
        self._optimiser = Adam(self._flat, learning_rate)

    @property
    def num_steps(self) -> int:
        return self._optimiser.num_steps

    def step(self, batch: Batch) -> StepOutcome:
        """Train on one batch. Raises NonFiniteError before the weights are touched."""
        gradient = self._flat.grad
        gradient.zero_()
        output = self._algorithm.loss(self._policy, batch)
        torch.autograd.backward(output.loss)

        # The one place where a step waits for the device.
        loss, grad_norm = torch.stack([output.loss.detach(), torch.linalg.vector_norm(gradient)]).tolist()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise NonFiniteError(self._diagnose(loss, grad_norm, output.metrics))
        if grad_norm > self._max_grad_norm:
            gradient.mul_(self._max_grad_norm / grad_norm)
        self._optimiser.step()
        return StepOutcome(loss, grad_norm, output.metrics)

    def weights(self) -> Arrays:
        """A copy of all weights by name, to publish. Raises NonFiniteError."""
        parameters = self._flat.arrays(self._flat.data)
        buffers = {
            name: tensor.cpu().numpy().copy()
            for name, tensor in self._policy.state_dict().items()
            if name not in parameters
        }
        self._check_finite(buffers)
        return parameters | buffers

    def state(self) -> Arrays:
        """A copy of everything that training goes on from. Raises NonFiniteError."""
        return (
            _prefixed(WEIGHTS, self.weights())
            | _prefixed(_EXP_AVG, self._flat.arrays(self._optimiser.exp_avg))
            | _prefixed(_EXP_AVG_SQ, self._flat.arrays(self._optimiser.exp_avg_sq))
            | {_NUM_STEPS: np.array(self._optimiser.num_steps), _RNG: torch.get_rng_state().numpy()}
        )

    @torch.no_grad()
    def load_state(self, state: Arrays) -> None:
        """Go on from `state`. Raises CheckpointError, and changes nothing, if it is of another policy."""
        differences = describe_differences(self.state(), state)
        if differences:
            raise CheckpointError(f"another policy than the configured one: {differences}")
        _load(WEIGHTS, self._policy.state_dict(), state)
        _load(_EXP_AVG, self._flat.views(self._optimiser.exp_avg), state)
        _load(_EXP_AVG_SQ, self._flat.views(self._optimiser.exp_avg_sq), state)
        self._optimiser.num_steps = int(state[_NUM_STEPS])
        torch.set_rng_state(torch.from_numpy(state[_RNG]))

    def _check_finite(self, buffers: Arrays) -> None:
        # One norm for all parameters; buffers are few and small.
        norm = torch.linalg.vector_norm(self._flat.data).item()
        if math.isfinite(norm) and all(np.isfinite(array).all() for array in buffers.values()):
            return
        bad = [name for name, tensor in self._policy.state_dict().items() if not tensor.isfinite().all()]
        raise NonFiniteError(
            f"NaN or infinity in the weights after learner step {self.num_steps}: "
            f"{', '.join(bad) or 'the norm overflows'}. They are not published. {_ADVICE}"
        )

    def _diagnose(self, loss: float, grad_norm: float, metrics: dict[str, Tensor]) -> str:
        bad = [name for name, view in self._flat.views(self._flat.grad).items() if not view.isfinite().all()]
        parts = ", ".join(f"{name} {value.item():.4g}" for name, value in metrics.items())
        origin = f" (in {', '.join(bad[:_MAX_SHOWN])})" if bad else ""
        return (
            f"NaN or infinity at learner step {self.num_steps + 1}: loss {loss:.4g} ({parts}), "
            f"gradient norm {grad_norm:.4g}{origin}. The step was not taken. {_ADVICE}"
        )


def _prefixed(prefix: str, arrays: Arrays) -> Arrays:
    return {prefix + name: array for name, array in arrays.items()}


def _load(prefix: str, tensors: dict[str, Tensor], state: Arrays) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(torch.from_numpy(state[prefix + name]))
