"""New priorities go from the training thread to the event loop, for the items that there were."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import torch

from services.learner.priorities import PriorityReturn
from shoal.clients.replay_draw import ItemRefs


def refs_of(*keys: int) -> ItemRefs:
    return ItemRefs((), np.zeros(len(keys), np.int64), np.array(keys, np.uint64))


def test_they_arrive_on_the_loop_in_order_and_without_what_was_not_there() -> None:
    sent: list[tuple[list[int], list[float], int]] = []

    async def run() -> None:
        done = asyncio.Event()

        def send(refs: ItemRefs, priorities: np.ndarray) -> None:
            sent.append((refs.keys.tolist(), priorities.tolist(), threading.get_ident()))
            if len(sent) == 2:
                done.set()

        back = PriorityReturn(send, asyncio.get_running_loop())

        def train() -> None:
            back.after_step(refs_of(1, 2, 3), torch.tensor([0.5, 1.0, 2.0]))
            back.after_step(refs_of(4), torch.tensor([3.0, 4.0, 5.0]))

        await asyncio.to_thread(train)
        await asyncio.wait_for(done.wait(), 10.0)

    asyncio.run(run())
    here = threading.get_ident()
    assert sent == [([1, 2, 3], [0.5, 1.0, 2.0], here), ([4], [3.0], here)]
