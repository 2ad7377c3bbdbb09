"""Takes some items out of a running shard, as a second learner would, and keeps what they say."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import SecretStr

from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.config.connections import SecuritySection
from shoal.config.tree import Config
from shoal.errors import UnavailableError
from shoal.records import OBSERVATION, POLICY_VERSION, Life
from shoal.rpc.addresses import Address
from shoal.wire import decode_trajectory


@dataclass(frozen=True)
class Seen:
    """One trajectory: who sent it, the lives that its observations name, its first and last version."""

    life: Life
    sequence: int
    observed_lives: frozenset[float]
    versions: np.ndarray


class ReplayTap:
    """Samples items in a thread of its own until it is stopped; survives restarts of the shard."""

    def __init__(self, socket: Path, token: str) -> None:
        self._address = Address(f"unix:{socket}", None)
        self._security = SecuritySection(token=SecretStr(token))
        self._stopping = threading.Event()
        self.seen: list[Seen] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    def stop(self) -> list[Seen]:
        self._stopping.set()
        self._thread.join()
        return self.seen

    async def _run(self) -> None:
        config = Config()
        client = GrpcReplayClient(self._address, self._security, config.limits, config.rpc)
        while not self._stopping.is_set():
            with contextlib.suppress(UnavailableError):
                stream = await client.open_sample("train")
                while not self._stopping.is_set():
                    await stream.request(1, 1.0)
                    for item in (await stream.receive()).items:
                        columns = decode_trajectory(item.payloads[0], config.limits).columns
                        lives = frozenset(np.unique(columns[OBSERVATION][..., -1]).tolist())
                        self.seen.append(Seen(item.life, item.sequence, lives, columns[POLICY_VERSION]))
                    # Only a taste: the learner needs the rest.
                    await asyncio.to_thread(self._stopping.wait, 0.1)
        await client.close()
