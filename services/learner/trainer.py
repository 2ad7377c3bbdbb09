"""One learner step: losses, gradients, updates, and the guard against NaN and infinity.

Owns the algorithm's parameters and the optimiser's state. Training thread only; what leaves (`weights`,
`state`) is a copy. Nothing that is not finite gets out: the run stops with the reason instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.learner.compiling import CompiledLoss
from services.learner.flat import FlatParameters
from services.learner.gradients import backward
from services.learner.optimiser import FAMILIES, build_optimiser, load_moments
from services.learner.peers import LEAST_WEIGHT, Alone, Peers
from services.learner.precision import Precision
from services.learner.sharded import ShardedParameters, weighted
from shoal.algorithms.algorithm import Algorithm, LossOutput
from shoal.algorithms.batch import Batch
from shoal.checkpoint import WEIGHTS
from shoal.errors import CheckpointError, NonFiniteError
from shoal.policy.weights import describe_differences, stack_critics

_POLICY = "policy."
_ALGORITHM = "algorithm/"
_LOSS_SCALE, _TRAINED = "loss_scale", "trained_batches"
_RNG, _RNG_CUDA = "rng/cpu", "rng/cuda"
_MAX_SHOWN = 3
_ADVICE = "Lower algorithm.learning_rate or scale the rewards"

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class StepOutcome:
    """What a step says about itself, means over what its passes count; `metrics` nobody has waited for."""

    loss: float
    grad_norm: float
    metrics: dict[str, Tensor]
    # The optimiser's, of the networks.
    learning_rate: float
    # Steps that it is a mean over.
    weight: float
    # New priorities of the batch's items, if the algorithm makes some.
    priority_B: Tensor | None = None


class Trainer:
    """Trains with an algorithm that is already on its device."""

    def __init__(
        self,
        algorithm: Algorithm[Any],
        max_grad_norm: float,
        accumulate: int = 1,
        peers: Peers | None = None,
        precision: Precision | None = None,
        compile_loss: bool = False,
        is_sharded: bool = False,
    ) -> None:
        """`accumulate`: parts whose gradients are added up before a step.

        `is_sharded`: the policy was divided among learners; `weights` and `state` are calls of all together.
        """
        self._precision = precision or Precision()
        loss: Callable[[Batch], LossOutput] = CompiledLoss(algorithm) if compile_loss else algorithm.loss
        self._loss = weighted(loss) if is_sharded else loss
        self._algorithm = algorithm
        self._peers = peers or Alone()
        algorithm.sum_over_learners = self._peers.sum
        self._max_grad_norm = max_grad_norm
        self._accumulate = accumulate
        self.is_sharded = is_sharded
        self._flat = (
            ShardedParameters(algorithm, algorithm.group_of, self._peers)
            if is_sharded
            else FlatParameters(algorithm, algorithm.group_of)
        )
        self._optimiser = build_optimiser(algorithm, self._flat)
        self.num_steps = 0

    def step(self, batch: Batch, learning_rate_factor: float = 1.0) -> StepOutcome:
        """Train on one batch, in as many passes as the algorithm asks for.

        Raises NonFiniteError before a pass that would spoil the weights touches them.
        """
        outcomes = []
        self._observe_rewards(batch)
        normaliser = self._algorithm.policy.normaliser
        moments = None
        if normaliser is not None:
            # Now, because updates wait for the device: afterwards nothing reads the batch any more.
            moments = normaliser.moments(batch.observation, batch.valid_TB * batch.counts_B)
        for part in self._passes(self._algorithm.conditioned(batch)):
            outcomes.append(self._update(part, learning_rate_factor))
            with torch.no_grad():
                self._algorithm.after_step()
        if normaliser is not None and moments is not None:
            # After the passes: a policy is trained as it acted. Else no step would be quite on-policy.
            normaliser.observe(self._peers.sum(moments))
        self.num_steps += 1
        return outcomes[0] if len(outcomes) == 1 else _mean(outcomes)

    def _passes(self, batch: Batch) -> Iterator[Batch]:
        """Those of the algorithm, which may compute with the policy between them."""
        passes = self._algorithm.passes(batch)
        while True:
            with self._precision.autocast():
                part = next(passes, None)
            if part is None:
                return
            yield part

    def _observe_rewards(self, batch: Batch) -> None:
        """Before the passes: the first rewards of all may be of any size."""
        rewards = self._algorithm.rewards
        moments = rewards.moments(batch)
        if moments is not None:
            rewards.observe(self._peers.sum(moments))

    def _update(self, batch: Batch, learning_rate_factor: float) -> StepOutcome:
        """One step of the optimiser."""
        gradient = self._flat.grad
        while True:
            output = backward(self._loss, batch, gradient, self._precision, self._accumulate)
            output = self._flat.joined(self._peers, output)
            groups = output.groups or tuple(self._flat.groups)
            norms = self._flat.norms(groups)
            # The one place where a step waits for the device.
            loss, weight, *grad_norms = torch.stack([output.loss.detach(), output.weight, *norms]).tolist()
            grad_norm = math.hypot(*grad_norms)
            if math.isfinite(loss) and math.isfinite(grad_norm):
                break
            if not (math.isfinite(loss) and self._precision.back_off()):
                raise NonFiniteError(self._diagnose(loss, grad_norm, output.metrics))
        self._precision.count_step()
        for group, norm in zip(groups, grad_norms, strict=True):
            if norm > self._max_grad_norm:
                gradient[self._flat.groups[group]].mul_(self._max_grad_norm / norm)
        learning_rate_factor *= self._algorithm.step_factor(output.metrics)
        # Where nothing counts there is nothing to learn, and Adam would still go on in its direction.
        if weight > 0:
            self._optimiser.step(groups, learning_rate_factor)
            self._flat.put_back()
        # Of the last group: what an algorithm learns besides networks, such as a temperature, comes first.
        learning_rate = self._algorithm.learning_rate(groups[-1]) * learning_rate_factor
        return StepOutcome(loss, grad_norm, output.metrics, learning_rate, weight, output.priority_B)

    def weights(self) -> Arrays:
        """A copy of the weights that the policy acts with, by name, to publish. Raises NonFiniteError."""
        policy = self._algorithm.policy
        tensors = {
            _POLICY + name: tensor for name, tensor in policy.state_dict().items() if policy.acts_with(name)
        }
        return {name.removeprefix(_POLICY): array for name, array in self._arrays(tensors).items()}

    def state(self) -> Arrays:
        """A copy of everything that training goes on from. Raises NonFiniteError."""
        arrays = self._arrays(self._algorithm.state_dict())
        return (
            {_stored_name(name): array for name, array in arrays.items()}
            | self._optimiser.state()
            | {_LOSS_SCALE: np.array([self._precision.loss_scale, self._precision.num_steps])}
            | {_TRAINED: np.array(self.num_steps), _RNG: torch.get_rng_state().numpy()}
            | self._cuda_rng()
        )

    @torch.no_grad()
    def load_state(self, state: Arrays) -> None:
        """Go on from `state`. Raises CheckpointError, and changes nothing, if it is of something else."""
        # A run may go on with a GPU that it began without, or the other way round.
        given = {name: array for name, array in state.items() if name != _RNG_CUDA}
        wanted = self._layout()
        if self._optimiser.is_in(state):
            wanted |= self._optimiser.layout()
        given = {name: np.asarray(array) for name, array in stack_critics(wanted, given).items()}
        state = state | given
        # Moments of another optimiser: whoever changes it goes on without.
        given = {name: given[name] for name in given if name in wanted or not name.startswith(FAMILIES)}
        differences = describe_differences(wanted, given)
        if differences:
            raise CheckpointError(f"another policy than the configured one: {differences}")
        names = self._flat.shapes()
        for name, tensor in self._algorithm.state_dict().items():
            if name not in names:
                tensor.copy_(torch.from_numpy(state[_stored_name(name)]))
        self._flat.load(self._flat.data, {name: state[_stored_name(name)] for name in names})
        load_moments(self._optimiser, state)
        self._flat.put_back()
        loss_scale, num_steps = state[_LOSS_SCALE].tolist()
        self._precision.load(loss_scale, int(num_steps))
        self.num_steps = int(state[_TRAINED])
        torch.set_rng_state(torch.from_numpy(state[_RNG]))
        if _RNG_CUDA in state and self._flat.data.is_cuda:
            torch.cuda.set_rng_state(torch.from_numpy(state[_RNG_CUDA]), self._flat.data.device)

    def _layout(self) -> dict[str, Tensor | np.ndarray]:
        """Names, shapes and types of what `state` gives, but for the optimiser and the GPU's generator."""
        return {_stored_name(name): tensor for name, tensor in self._algorithm.state_dict().items()} | {
            _LOSS_SCALE: np.zeros(2),
            _TRAINED: np.array(0),
            _RNG: torch.get_rng_state(),
        }

    def _cuda_rng(self) -> Arrays:
        """The state of the generator that losses on a GPU draw from."""
        if not self._flat.data.is_cuda:
            return {}
        return {_RNG_CUDA: torch.cuda.get_rng_state(self._flat.data.device).numpy()}

    def _arrays(self, tensors: dict[str, Tensor]) -> Arrays:
        """Copies of some of the algorithm's tensors. Raises NonFiniteError."""
        # All trained parameters in one copy, and one norm for them; the others are few, or copies of them.
        parameters = self._flat.arrays(self._flat.data)
        others = {
            name: tensor.cpu().numpy().copy() for name, tensor in tensors.items() if name not in parameters
        }
        self._check_finite(tensors, others)
        return {name: others[name] if name in others else parameters[name] for name in tensors}

    def _check_finite(self, tensors: dict[str, Tensor], others: Arrays) -> None:
        norm = self._flat.norm_of_data().item()
        if math.isfinite(norm) and all(np.isfinite(array).all() for array in others.values()):
            return
        tensors = tensors | self._flat.views(self._flat.data)
        bad = [name.removeprefix(_POLICY) for name, tensor in tensors.items() if not tensor.isfinite().all()]
        raise NonFiniteError(
            f"NaN or infinity in the weights after learner step {self.num_steps}: "
            f"{', '.join(bad) or 'the norm overflows'}. They are not published. {_ADVICE}"
        )

    def _diagnose(self, loss: float, grad_norm: float, metrics: dict[str, Tensor]) -> str:
        bad = [name for name, view in self._flat.views(self._flat.grad).items() if not view.isfinite().all()]
        parts = ", ".join(f"{name} {value.item():.4g}" for name, value in metrics.items())
        origin = f" (in {', '.join(name.removeprefix(_POLICY) for name in bad[:_MAX_SHOWN])})" if bad else ""
        return (
            f"NaN or infinity at learner step {self.num_steps + 1}: loss {loss:.4g} ({parts}), "
            f"gradient norm {grad_norm:.4g}{origin}. The step was not taken. {_ADVICE}"
        )


def _mean(outcomes: Sequence[StepOutcome]) -> StepOutcome:
    """Over passes. An algorithm with several makes no priorities: its passes are not the batch in order."""
    # One in which nothing counts may have metrics that are no numbers.
    outcomes = [outcome for outcome in outcomes if outcome.weight > 0] or outcomes[:1]
    whole = sum(outcome.weight for outcome in outcomes)
    shares = [outcome.weight / max(whole, LEAST_WEIGHT) for outcome in outcomes]

    def mean(values: Iterable[Any]) -> Any:
        return sum(share * value for share, value in zip(shares, values, strict=True))

    return StepOutcome(
        loss=mean(outcome.loss for outcome in outcomes),
        grad_norm=mean(outcome.grad_norm for outcome in outcomes),
        metrics={name: mean(o.metrics[name] for o in outcomes) for name in outcomes[0].metrics},
        learning_rate=outcomes[0].learning_rate,
        weight=whole,
    )


def _stored_name(name: str) -> str:
    """Of a tensor of the algorithm in a checkpoint: the policy's weights are found there by others too."""
    if name.startswith(_POLICY):
        return WEIGHTS + name.removeprefix(_POLICY)
    return _ALGORITHM + name
