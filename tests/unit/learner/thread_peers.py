"""Learners of a group as threads of one process: `Peers` without sockets."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from torch import Tensor

from services.learner.peers import PeersLostError

PATIENCE_S = 20.0


class Meeting:
    """Where the threads of a group meet."""

    def __init__(self, size: int) -> None:
        self._brought: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=PATIENCE_S)

    def swap(self, rank: int, value: Any) -> list[Any]:
        """What all have brought, once all have."""
        try:
            self._brought[rank] = value
            self.barrier.wait()
            found = list(self._brought)
            # Nobody brings the next before all have looked.
            self.barrier.wait()
        except threading.BrokenBarrierError:
            raise PeersLostError("another thread has gone") from None
        return found


class ThreadPeers:
    """One learner of several."""

    def __init__(self, meeting: Meeting, rank: int, size: int) -> None:
        self._meeting = meeting
        self.rank = rank
        self.size = size

    def sum(self, vector: Tensor) -> Tensor:
        found = self._meeting.swap(self.rank, vector.clone())
        return vector.copy_(sum(found[1:], found[0]))

    def gather(self, numbers: np.ndarray) -> list[np.ndarray]:
        return self._meeting.swap(self.rank, numbers)

    def from_chief(self, data: bytes) -> bytes:
        chiefs: bytes = self._meeting.swap(self.rank, data)[0]
        return chiefs
