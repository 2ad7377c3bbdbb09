"""New weights between two batches: loaded aside, handed over by reference, never mixed.

`load` is called by one loader at a time, off the hot path. `newest` is called by the model thread before
each batch. A policy is written to only while it is a spare, and becomes a spare only when the model thread
has moved on, so a batch never sees half of one version and half of another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from shoal.policy.device import products_per_row
from shoal.policy.network import Policy
from shoal.policy.weights import load_policy_bytes


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy with the version of its weights."""

    version: int
    policy: Policy
    # Nothing was learnt yet: whoever explores acts at random.
    untrained: bool = False


class HotSwap:
    """The policy in use, the one offered to follow it, and spares to load the next one into."""

    def __init__(self, build: Callable[[], Policy], device: torch.device) -> None:
        self._build = build
        self._device = device
        self._lock = threading.Lock()
        spare = self._fresh()
        self.outputs = spare.outputs
        self.state = spare.state
        self.check_exploration = spare.check_exploration
        self.products_per_row = products_per_row(spare)
        self._spares = [spare]
        self._in_use: LoadedPolicy | None = None
        self._offered: LoadedPolicy | None = None

    def load(self, version: int, data: bytes, untrained: bool = False) -> None:
        """Offer these weights to the model thread. Raises UserError, changing nothing, if they do not fit."""
        if untrained:
            self.check_exploration(True, False)
        with self._lock:
            policy = self._spares.pop() if self._spares else None
        if policy is None:
            policy = self._fresh()
        try:
            load_policy_bytes(policy, data)
        except BaseException:
            with self._lock:
                self._spares.append(policy)
            raise
        if self._device.type == "cuda":
            # The copies must be complete before another stream computes with them.
            torch.cuda.current_stream(self._device).synchronize()
        with self._lock:
            overtaken, self._offered = self._offered, LoadedPolicy(version, policy, untrained)
            if overtaken is not None:
                self._spares.append(overtaken.policy)

    def newest(self) -> LoadedPolicy:
        """The policy for the next batch; the one before it is free from now on."""
        with self._lock:
            if self._offered is not None:
                if self._in_use is not None:
                    self._spares.append(self._in_use.policy)
                self._in_use, self._offered = self._offered, None
            if self._in_use is None:
                raise RuntimeError("a batch before the first weights")
            return self._in_use

    def _fresh(self) -> Policy:
        return self._build().to(self._device).requires_grad_(False).eval()
