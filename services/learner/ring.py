"""The ring of batch buffers between decoding and training, and the packer that fills them.

Each slot has one owner at a time and goes round: free -> the packer (decode pool) -> ready -> the trainer
(training thread) -> free. The number of slots bounds how far decoding runs ahead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

import numpy as np

from services.learner.batches import BatchSlot
from shoal.metrics import Phases
from shoal.records import FIRST, POLICY_VERSION, Trajectory


class RingClosed(Exception):
    """The learner is stopping: no more batches."""


class BatchRing:
    """Hands slots round. Every method may be called by any thread."""

    def __init__(
        self, slots: list[BatchSlot], count_outdated: Callable[[int], object] = lambda num_steps: None
    ) -> None:
        """`count_outdated` is told of steps that are left out because of `refuse_older_than`."""
        self.min_version = 0
        self.count_outdated = count_outdated
        self._free: SimpleQueue[BatchSlot | None] = SimpleQueue()
        self._ready: SimpleQueue[BatchSlot | None] = SimpleQueue()
        self._closed = False
        # T of the items of its batches.
        self.length = slots[0].length
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
        if self.min_version > 0 and slot.oldest_version < self.min_version:
            self.count_outdated(slot.num_transitions)
            self.release(slot)
            return None
        return slot

    def refuse_older_than(self, version: int) -> None:
        """No batch with a step of an older version is handed out any more.

        For synchronous training: without this, one unroll too many, of an actor that was restarted, would put
        every batch from then on out of step with the versions.
        """
        self.min_version = version

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
            if self._ring.min_version > 0 and self._is_outdated(trajectory):
                return
            done = 0
            while done < trajectory.num_envs:
                if self._slot is None:
                    self._slot = self._ring.take_free()
                start = time.perf_counter()
                done += self._fill(self._slot, trajectory, done)
                self._phases.add("copy", time.perf_counter() - start)

    def _is_outdated(self, trajectory: Trajectory) -> bool:
        """Whether there is a newer version already. What the open slot holds of older ones is thrown out."""
        ring, slot = self._ring, self._slot
        if slot is not None and slot.num_filled and slot.oldest_version < ring.min_version:
            ring.count_outdated(slot.num_transitions)
            slot.clear()
        if trajectory.columns[POLICY_VERSION][:-1].min() >= ring.min_version:
            return False
        first = trajectory.columns[FIRST][1:]
        ring.count_outdated(first.size - int(np.count_nonzero(first)))
        return True

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
