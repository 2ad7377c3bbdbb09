"""In what precision losses are computed: autocast, and the loss scale that float16 needs. Training thread.

Weights, their gradients and Adam stay in float32: only what autocast chooses, matrix products above all, is
computed in less. Small gradients vanish in float16, so losses are multiplied before the backward pass, and
gradients divided after it, by a factor that halves when they overflow and doubles after a while without.
"""

from __future__ import annotations

import contextlib

import torch

_FIRST_SCALE = 2.0**16
_MAX_SCALE = 2.0**24
_GROWS_AFTER = 2000


class Precision:
    """One training's. `name` is that of a dtype of torch."""

    def __init__(self, name: str = "float32", device: str = "cpu") -> None:
        self._dtype: torch.dtype = getattr(torch, name)
        self._device = device
        # What losses are multiplied by, and steps since it changed.
        self.loss_scale = _FIRST_SCALE if self._dtype == torch.float16 else 1.0
        self.num_steps = 0

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Around everything that is differentiated, but not around the backward pass."""
        if self._dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self._device, self._dtype)

    def back_off(self) -> bool:
        """After gradients that are not finite: whether it is worth trying again with a smaller scale."""
        self.num_steps = 0
        if self.loss_scale <= 1.0:
            return False
        self.loss_scale /= 2.0
        return True

    def count_step(self) -> None:
        """After gradients that are finite."""
        if self._dtype != torch.float16:
            return
        self.num_steps += 1
        if self.num_steps >= _GROWS_AFTER:
            self.num_steps = 0
            self.loss_scale = min(2.0 * self.loss_scale, _MAX_SCALE)

    def load(self, loss_scale: float, num_steps: int) -> None:
        """As a checkpoint has it. Another precision than then begins anew."""
        if self._dtype == torch.float16 and loss_scale > 1.0:
            self.loss_scale, self.num_steps = loss_scale, num_steps
