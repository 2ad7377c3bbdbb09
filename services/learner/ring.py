"""The ring of batch buffers between decoding and training, and the packer that fills them.

Each slot has one owner at a time and goes round: free -> the packer (decode pool) -> ready -> the trainer
(training thread) -> free. The number of slots bounds how far decoding runs ahead.
"""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue

from services.learner.batches import BatchSlot
from shoal.metrics import Phases
from shoal.records import Trajectory


class RingClosed(Exception):
    """The learner is stopping: no more batches."""


class BatchRing:
    """Hands slots round. Every method may be called by any thread."""

    def __init__(self, slots: list[BatchSlot]) -> None:
        self._free: SimpleQueue[BatchSlot | None] = SimpleQueue()
        self._ready: SimpleQueue[BatchSlot | None] = SimpleQueue()
        self._closed = False
        for slot in slots:
            self._free.put(slot)

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def num_ready(self) -> int:
        return self._ready.qsize()

    def take_free(self) -> BatchSlot:
        """Waits until training is done with one. Raises RingClosed."""
        slot = self._free.get()
        if slot is None or self._closed:
            self._free.put(None)
            raise RingClosed
        slot.clear()
        return slot

    def put_ready(self, slot: BatchSlot) -> None:
        slot.upload()
        self._ready.put(slot)

    def take_ready(self, timeout_s: float) -> BatchSlot | None:
        """The batch filled first, or None if none is there in time. Once closed, RingClosed."""
        try:
            slot = self._ready.get(timeout=timeout_s)
        except Empty:
            return None
        if slot is None or self._closed:
            self._ready.put(None)
            raise RingClosed
        return slot

    def release(self, slot: BatchSlot) -> None:
        """Training on the slot has finished, on the device too."""
        self._free.put(slot)

    def close(self) -> None:
        """Wakes everybody who waits."""
        self._closed = True
        self._free.put(None)
        self._ready.put(None)


class Packer:
    """Packs trajectories of any number of environments into batches: split over several or side by side.

    Threads of the decode pool call it; a lock lets one in at a time, so that one batch is filled at a time.
    """

    def __init__(self, ring: BatchRing, phases: Phases) -> None:
        self._ring = ring
        self._phases = phases
        self._lock = threading.Lock()
        self._slot: BatchSlot | None = None

    def add(self, trajectory: Trajectory) -> None:
        """Returns when all of it is packed; waits for free slots. Raises RingClosed."""
        with self._lock:
            done = 0
            while done < trajectory.num_envs:
                if self._slot is None:
                    self._slot = self._ring.take_free()
                start = time.perf_counter()
                done += self._fill(self._slot, trajectory, done)
                self._phases.add("copy", time.perf_counter() - start)

    def _fill(self, slot: BatchSlot, trajectory: Trajectory, start: int) -> int:
        count = min(slot.room, trajectory.num_envs - start)
        slot.fill(trajectory, start, count)
        if start + count == trajectory.num_envs:
            # Episodes count once the whole trajectory is trained on.
            slot.episodes.extend(trajectory.episodes)
        if slot.room == 0:
            self._ring.put_ready(slot)
            self._slot = None
        return count
