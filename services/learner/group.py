"""Several learners: `torch.distributed` behind `Peers`, over gloo on CPUs and NCCL on GPUs.

Made by `session`, used by the training threads, one group by each. Nothing that is exchanged is ever
unpickled: numbers and bytes only. A learner that dies ends all others' calls at once, a silent one after
`learner.peer_timeout_s`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from services.learner.peers import PeersLostError
from shoal.config.ranks import Ranks

log = logging.getLogger(__name__)

# For all to start, on machines of different speed. Whoever has started them sees sooner if one fails.
GATHERING_S = 300.0


class Group:
    """One learner's view of all."""

    def __init__(self, ranks: Ranks, timeout_s: float, group: dist.ProcessGroup | None = None) -> None:
        """`group`: None for the default one."""
        self.rank = ranks.rank
        self.size = ranks.size
        self._ranks = ranks
        self._timeout_s = timeout_s
        self._group = group

    def for_policies(self, number: int) -> list[Group]:
        """A group for each policy, whose calls need no order among each other. All learners call this.

        Several are over gloo on GPUs too: NCCL's kernels of several groups may wait for each other there.
        """
        if number == 1:
            return [self]
        timeout = timedelta(seconds=self._timeout_s)
        with self._lost():
            groups = [dist.new_group(timeout=timeout, backend="gloo") for _ in range(number)]
        return [Group(self._ranks, self._timeout_s, group) for group in groups]

    def sum(self, vector: Tensor) -> Tensor:
        with self._lost():
            dist.all_reduce(vector, group=self._group)
        return vector

    def gather(self, numbers: np.ndarray) -> list[np.ndarray]:
        given = torch.from_numpy(np.ascontiguousarray(numbers))
        found = [torch.empty_like(given) for _ in range(self.size)]
        with self._lost():
            dist.all_gather(found, given, group=self._group)
        return [tensor.numpy() for tensor in found]

    def from_chief(self, data: bytes) -> bytes:
        size = torch.tensor([len(data)])
        with self._lost():
            dist.broadcast(size, 0, group=self._group)
            content = (
                np.frombuffer(data, np.uint8).copy() if self.rank == 0 else np.empty(int(size), np.uint8)
            )
            dist.broadcast(torch.from_numpy(content), 0, group=self._group)
        return content.tobytes()

    def close(self) -> None:
        dist.destroy_process_group()

    @contextmanager
    def _lost(self) -> Iterator[None]:
        """Failures of a call are of one kind, whatever the transport calls them."""
        try:
            yield
        except RuntimeError as error:
            # The transport adds advice that is not for users.
            text = str(error).split(". This is", 1)[0].split("] ", 1)[-1]
            is_silent = "timed out waiting" in text.lower()
            what = (
                f"was silent for {self._timeout_s:g} s (learner.peer_timeout_s)" if is_silent else "has gone"
            )
            raise PeersLostError(
                f"another learner {what}, and rank {self.rank} of {self.size} cannot go on without it: its "
                f"own log says why; all start again from the last checkpoint ({text})"
            ) from None


def _life() -> str:
    """Which start of all learners this is. torchrun's store outlives them, with the addresses of the dead."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def gather_group(ranks: Ranks, device: torch.device, timeout_s: float) -> Group:
    """Waits until all learners are there. Blocking. Raises PeersLostError."""
    log.info("rank %d of %d learners, waiting for the others", ranks.rank, ranks.size)
    group = Group(ranks, timeout_s)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    with group._lost():
        store, _, _ = next(
            rendezvous("env://", ranks.rank, ranks.size, timeout=timedelta(seconds=GATHERING_S))
        )
        dist.init_process_group(
            backend,
            store=PrefixStore(f"shoal/{_life()}", store),
            rank=ranks.rank,
            world_size=ranks.size,
            timeout=timedelta(seconds=timeout_s),
        )
    log.info("all %d learners are there", ranks.size)
    return group
