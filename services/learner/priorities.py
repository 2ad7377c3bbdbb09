"""New priorities, from the training thread back to the table that the items came from.

Built by `session` where the table has priorities; `after_step` is called by the training thread and never
waits: neither for the device nor for a shard. The source gets them on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
from torch import Tensor

from shoal.clients.replay_draw import ItemRefs

Send = Callable[[ItemRefs, np.ndarray], None]


class PriorityReturn:
    """`send` is called on `loop`, in the order of the steps."""

    def __init__(self, send: Send, loop: asyncio.AbstractEventLoop) -> None:
        self._send = send
        self._loop = loop
        # Being copied from the device.
        self._copying: tuple[ItemRefs, Tensor] | None = None

    def after_step(self, refs: ItemRefs, priority_B: Tensor) -> None:
        """`refs`: of the first items of the batch; the others are not there. The step has just been made.

        On CUDA they go one step late: by then the copy is done, since every step waits once for the device.
        Those of the very last step are not sent.
        """
        if priority_B.is_cuda:
            self._hand_over(self._copying)
            self._copying = refs, priority_B.to("cpu", non_blocking=True)
        else:
            self._hand_over((refs, priority_B))

    def _hand_over(self, arrived: tuple[ItemRefs, Tensor] | None) -> None:
        if arrived is not None:
            refs, priority_B = arrived
            self._loop.call_soon_threadsafe(self._send, refs, priority_B[: len(refs)].numpy())
