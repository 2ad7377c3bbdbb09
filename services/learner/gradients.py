"""From batches to gradients: the loss in its precision, in one go or in parts. Training thread only.

Gradients land in the vector of `services.learner.flat`; the trainer decides what becomes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from services.learner.peers import LEAST_WEIGHT
from services.learner.precision import Precision
from shoal.algorithms.algorithm import LossOutput
from shoal.algorithms.batch import Batch


def backward(
    loss: Callable[[Batch], LossOutput], batch: Batch, gradient: Tensor, precision: Precision, num_parts: int
) -> LossOutput:
    """The loss of a batch; its gradient is in `gradient`, which parameters' gradients are views of.

    With several parts that of the whole is put together from theirs, which need less memory at a time.
    """
    gradient.zero_()
    scale = precision.loss_scale
    if num_parts == 1:
        with precision.autocast():
            output = loss(batch)
        torch.autograd.backward(output.loss if scale == 1.0 else output.loss * scale)
        if scale != 1.0:
            gradient.div_(scale)
        return output
    outputs = []
    for part in _parts(batch, num_parts):
        with precision.autocast():
            output = loss(part)
        torch.autograd.backward(output.loss * (output.weight * scale))
        outputs.append(output)
    whole = _joined(outputs)
    gradient.div_(whole.weight.clamp(min=LEAST_WEIGHT) * scale)
    return whole


def _parts(batch: Batch, number: int) -> Iterator[Batch]:
    """As equal as they can be; fewer if there are fewer environments."""
    bounds = np.linspace(0, batch.num_items, min(number, batch.num_items) + 1).astype(int).tolist()
    for start, end in pairwise(bounds):
        yield batch.take(slice(start, end))


def _joined(outputs: Sequence[LossOutput]) -> LossOutput:
    """The output of the whole batch, from those of its parts; detached."""
    weights = torch.stack([output.weight for output in outputs])
    whole = weights.sum()

    def mean(values: list[Tensor]) -> Tensor:
        return (torch.stack(values) * weights).sum() / whole.clamp(min=LEAST_WEIGHT)

    priorities = [output.priority_B for output in outputs if output.priority_B is not None]
    return LossOutput(
        loss=mean([output.loss.detach() for output in outputs]),
        metrics={name: mean([output.metrics[name] for output in outputs]) for name in outputs[0].metrics},
        weight=whole,
        priority_B=torch.cat(priorities) if priorities else None,
        groups=outputs[0].groups,
    )
