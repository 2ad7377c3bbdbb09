"""What the clients of a shard know for certain: what they sent, and what was acked, when.

Filled by `traffic`, read by `validate`. An append is known by its life and sequence number, its trajectories
by the CRC32C of their bytes: nothing that a shard says of itself is taken on trust. On the test's one event
loop.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from shoal.clients.replay_shard import Ack, Outcome
from shoal.records import Item, Life


@dataclass(frozen=True, slots=True, order=True)
class AppendId:
    """One append, over all its resends."""

    actor_id: str
    run_id: str
    sequence: int


@dataclass(frozen=True, slots=True)
class StoredItem:
    """What a shard handed out in a dump."""

    key: int
    append: AppendId
    crcs: tuple[int, ...]
    mass: float

    @staticmethod
    def of(item: Item) -> StoredItem:
        life = AppendId(item.life.actor_id, item.life.run_id, item.sequence)
        return StoredItem(item.key, life, tuple(map(crc32c, item.payloads)), item.mass)


@dataclass(slots=True)
class AckedLog:
    """All appends of a test and the answers to them."""

    # CRC32C of each trajectory of an append.
    sent: dict[AppendId, tuple[int, ...]] = field(default_factory=dict)
    # When an append was first acked, in the order of the acks.
    acked: dict[AppendId, float] = field(default_factory=dict)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    num_replies_lost: int = 0
    # Append streams that are open: at 0 after a kill no ack of the dead shard is still to come.
    num_open: int = 0
    # Longest time between two acks since `reset_gap`.
    longest_gap_s: float = 0.0
    _last_ack: float = 0.0

    def on_send(self, life: Life, sequence: int, payloads: Sequence[bytes]) -> None:
        crcs = tuple(map(crc32c, payloads))
        append = AppendId(life.actor_id, life.run_id, sequence)
        assert self.sent.setdefault(append, crcs) == crcs, f"{append} was sent with two contents"

    def on_ack(self, life: Life, ack: Ack) -> None:
        self.outcomes[ack.outcome] += 1
        if ack.outcome not in (Outcome.STORED, Outcome.DUPLICATE):
            return
        now = time.monotonic()
        self.acked.setdefault(AppendId(life.actor_id, life.run_id, ack.sequence), now)
        if self._last_ack:
            self.longest_gap_s = max(self.longest_gap_s, now - self._last_ack)
        self._last_ack = now

    def reset_gap(self) -> None:
        self.longest_gap_s = self._last_ack = 0.0

    @property
    def num_acked_items(self) -> int:
        return sum(len(self.sent[append]) for append in self.acked)

    def acked_since(self, moment: float, until: float) -> int:
        """Items acked between two moments of `time.monotonic`."""
        return sum(len(self.sent[append]) for append, at in self.acked.items() if moment <= at <= until)
