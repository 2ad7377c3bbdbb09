"""Unrolls that are too old to learn from (`learner.max_policy_lag`): their environments get weight 0.

Whether one is too old is decided when it is trained on: it ages while it waits. Training thread only.

Legend: T transitions, S = T + 1 rows, B environments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from services.learner.batches import BatchSlot
from shoal.algorithms.batch import Batch
from shoal.records import FIRST, POLICY_VERSION


@dataclass(frozen=True)
class Fresh:
    """What is left of a batch."""

    batch: Batch
    # Policy version of every transition that counts.
    versions: np.ndarray
    # Transitions that count for nothing.
    num_stale: int = 0


def leave_out_stale(slot: BatchSlot, newest_version: int, max_lag: int | None) -> Fresh:
    """The slot's batch without the environments that hold a transition older than `max_lag` versions."""
    batch = slot.on_device()
    if max_lag is None:
        return Fresh(batch, slot.versions())
    # A batch of which some items could not be used has columns of an older one at its end.
    filled = slice(slot.num_filled)
    valid_TB = ~slot.arrays[FIRST][1:, filled]
    old_TB = valid_TB & (slot.arrays[POLICY_VERSION][:-1, filled] < newest_version - max_lag)
    stale_B = old_TB.any(0)
    if not stale_B.any():
        return Fresh(batch, slot.versions())
    num_stale = int(np.count_nonzero(valid_TB[:, stale_B]))
    keep_B = torch.ones_like(batch.weight_B)
    keep_B[filled] = torch.from_numpy(~stale_B).to(keep_B)
    versions = slot.arrays[POLICY_VERSION][:-1, filled][valid_TB & ~stale_B]
    return Fresh(replace(batch, weight_B=batch.weight_B * keep_B), versions, num_stale)
