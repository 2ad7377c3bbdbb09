"""The optimisers that `algorithm.optimiser` names, on flat vectors of parameters, group by group.

The arithmetic is torch's own: the functions behind `torch.optim`, without its classes, whose construction
imports `torch._dynamo` (docs/adr/0023). Training thread only.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop

from services.learner.flat import FlatParameters
from shoal.algorithms.algorithm import Algorithm
from shoal.algorithms.settings import AlgorithmSection

log = logging.getLogger(__name__)

_NUM_STEPS = "num_steps"


class Optimiser(ABC):
    """Steps, learning rates and step counts of each group; vectors of the layout of the parameters' own.

    `family` stands before the names of everything that a checkpoint holds of it.
    """

    family: str

    def __init__(self, algorithm: Algorithm[Any], parameters: FlatParameters, vectors: Iterable[str]) -> None:
        groups = parameters.groups
        self.settings: AlgorithmSection = algorithm.section
        self._parameters = parameters
        self._learning_rates = {group: algorithm.learning_rate(group) for group in groups}
        self._decays = {group: algorithm.decays(group) for group in groups}
        self.vectors = {name: torch.zeros_like(parameters.data) for name in vectors}
        # Tensors, as torch's functions take and count them.
        self._num_steps = {group: torch.zeros((), device=parameters.data.device) for group in groups}

    @torch.no_grad()
    def step(self, groups: Iterable[str], factor: float = 1.0) -> None:
        """`factor` on the learning rates."""
        for group in groups:
            place = self._parameters.groups[group]
            self._step(
                self._parameters.data[place],
                self._parameters.grad[place],
                {name: vector[place] for name, vector in self.vectors.items()},
                self._num_steps[group],
                self._learning_rates[group] * factor,
                self.settings.weight_decay if self._decays[group] else 0.0,
            )

    @abstractmethod
    def _step(
        self,
        data: Tensor,
        gradient: Tensor,
        vectors: dict[str, Tensor],
        num_steps: Tensor,
        learning_rate: float,
        weight_decay: float,
    ) -> None:
        """Of one group, in place."""

    def state(self) -> dict[str, np.ndarray]:
        """A copy of all that a checkpoint holds of it. Of divided parameters a call of all learners."""
        arrays = {
            self._prefix(vector) + name: array
            for vector, values in self.vectors.items()
            for name, array in self._parameters.arrays(values).items()
        }
        counts = {group: np.array(int(num)) for group, num in self._num_steps.items()}
        return arrays | {self._prefix(_NUM_STEPS) + group: count for group, count in counts.items()}

    def layout(self) -> dict[str, np.ndarray]:
        """Names, shapes and types of what `state` gives."""
        zero = np.float32(0)
        shapes = self._parameters.shapes()
        arrays = {
            self._prefix(vector) + name: np.broadcast_to(zero, shape)
            for vector in self.vectors
            for name, shape in shapes.items()
        }
        return arrays | {self._prefix(_NUM_STEPS) + group: np.array(0) for group in self._num_steps}

    def is_in(self, state: Iterable[str]) -> bool:
        """Whether a checkpoint with these names is of this optimiser."""
        names = list(state)
        parts = [self._prefix(part) for part in (*self.vectors, _NUM_STEPS)]
        return all(any(name.startswith(part) for name in names) for part in parts)

    @torch.no_grad()
    def load(self, state: dict[str, np.ndarray]) -> None:
        """`state` has all that `layout` names."""
        names = self._parameters.shapes()
        for vector, values in self.vectors.items():
            self._parameters.load(values, {name: state[self._prefix(vector) + name] for name in names})
        for group, num in self._num_steps.items():
            num.fill_(int(state[self._prefix(_NUM_STEPS) + group]))

    @torch.no_grad()
    def begin(self) -> None:
        """As if no step had been made."""
        for tensor in (*self.vectors.values(), *self._num_steps.values()):
            tensor.zero_()

    def _prefix(self, part: str) -> str:
        return f"{self.family}/{part}/"


class Adam(Optimiser):
    """Adam (Kingma & Ba 2015), and AdamW (Loshchilov & Hutter 2019) if `decouples_decay`."""

    family = "adam"

    def __init__(
        self, algorithm: Algorithm[Any], parameters: FlatParameters, decouples_decay: bool = False
    ) -> None:
        super().__init__(algorithm, parameters, ("exp_avg", "exp_avg_sq"))
        self._decouples_decay = decouples_decay

    def _step(
        self,
        data: Tensor,
        gradient: Tensor,
        vectors: dict[str, Tensor],
        num_steps: Tensor,
        learning_rate: float,
        weight_decay: float,
    ) -> None:
        adam(
            [data],
            [gradient],
            [vectors["exp_avg"]],
            [vectors["exp_avg_sq"]],
            [],
            [num_steps],
            fused=True,
            decoupled_weight_decay=self._decouples_decay,
            amsgrad=False,
            beta1=self.settings.adam_beta_1,
            beta2=self.settings.adam_beta_2,
            lr=learning_rate,
            weight_decay=weight_decay if self._decouples_decay else 0.0,
            eps=self.settings.optimiser_epsilon,
            maximize=False,
        )


class RmsProp(Optimiser):
    """RMSProp as torch has it: epsilon is added to the root."""

    family = "rmsprop"

    def __init__(self, algorithm: Algorithm[Any], parameters: FlatParameters) -> None:
        has_momentum = algorithm.section.rms_momentum > 0
        super().__init__(
            algorithm, parameters, ("square_avg", "momentum_buffer") if has_momentum else ("square_avg",)
        )

    def _step(
        self,
        data: Tensor,
        gradient: Tensor,
        vectors: dict[str, Tensor],
        num_steps: Tensor,
        learning_rate: float,
        weight_decay: float,
    ) -> None:
        rmsprop(
            [data],
            [gradient],
            [vectors["square_avg"]],
            [],
            [buffer] if (buffer := vectors.get("momentum_buffer")) is not None else [],
            [num_steps],
            foreach=False,
            lr=learning_rate,
            alpha=self.settings.rms_decay,
            eps=self.settings.optimiser_epsilon,
            weight_decay=0.0,
            momentum=self.settings.rms_momentum,
            centered=False,
        )


def build_optimiser(algorithm: Algorithm[Any], parameters: FlatParameters) -> Optimiser:
    """The one that the algorithm's section names."""
    match algorithm.section.optimiser:
        case "adam":
            return Adam(algorithm, parameters)
        case "adamw":
            return Adam(algorithm, parameters, decouples_decay=True)
        case "rmsprop":
            return RmsProp(algorithm, parameters)


FAMILIES = tuple(f"{kind.family}/" for kind in (Adam, RmsProp))


def load_moments(optimiser: Optimiser, state: dict[str, np.ndarray]) -> None:
    """Of a checkpoint. One of another optimiser has none for this: they begin anew."""
    if optimiser.is_in(state):
        optimiser.load(state)
        return
    optimiser.begin()
    log.warning(
        "the checkpoint holds no moments of algorithm.optimiser %r: they begin at zero",
        optimiser.settings.optimiser,
    )
