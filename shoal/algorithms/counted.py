"""How much each step of a sampled batch counts in a loss. Pure, any device; nothing waits for the device.

Legend: T transitions, B environments or items.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from shoal.algorithms.batch import Batch


class Counted(NamedTuple):
    """How much each step counts: not at all if it has no transition, else as its importance weight says.

    Means are over the number of steps that count, so that the weights scale each step's own gradient.
    """

    weight_TB: Tensor
    num: Tensor

    def mean(self, values_TB: Tensor) -> Tensor:
        """Of a loss."""
        return (values_TB * self.weight_TB).sum() / self.num.clamp(min=1.0)

    def average(self, values_TB: Tensor) -> Tensor:
        """Of a metric, which weights must not make smaller."""
        return (values_TB * self.weight_TB).sum() / self.weight_TB.sum().clamp(min=1e-8)


def counted(batch: Batch) -> Counted:
    weight_TB = batch.valid_TB * batch.weight_B
    return Counted(weight_TB, weight_TB.count_nonzero().to(weight_TB.dtype))
