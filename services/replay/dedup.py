"""Which items of which life a table has stored before, so that a resend is stored once.

Called by `Shard` on the event loop. Per life it keeps the highest sequence stored and one bit for each of
the `window` sequences up to it. The writer never has an unacked item `window` or more below its newest one,
so whatever lies below the window was acked and is rightly called a repeat. Gaps are fine: other shards have
those.

The insert of a broken stream may still wait for room while its resend arrives on a new stream. The resend
then waits for the outcome of the first: `claim` gives a sequence to one caller at a time, who must `settle`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from enum import Enum

from shoal.clients.replay import SEQUENCE_WINDOW
from shoal.records import Life


class Claim(Enum):
    """Answer to somebody who wants to insert."""

    GRANTED = "granted"
    DUPLICATE = "duplicate"
    BUSY = "busy"


class _Seen:
    """The sequences of one life: bit i of `bits` stands for `highest - i`."""

    __slots__ = ("bits", "highest")

    def __init__(self) -> None:
        self.highest = -1
        self.bits = 0

    def contains(self, sequence: int, window: int) -> bool:
        age = self.highest - sequence
        return age >= window or (age >= 0 and bool(self.bits >> age & 1))

    def add(self, sequence: int, window: int) -> None:
        age = self.highest - sequence
        # Never shift by more than the window: the sequence is whatever a stranger sent.
        if age >= 0:
            if age < window:
                self.bits |= 1 << age
            return
        kept = self.bits << -age if -age < window else 0
        self.bits = (kept | 1) & ((1 << window) - 1)
        self.highest = sequence


class Dedup:
    """Remembers the newest `max_lives` lives; the one that was silent for longest is forgotten first."""

    def __init__(self, max_lives: int, window: int = SEQUENCE_WINDOW) -> None:
        self._max_lives = max_lives
        self._window = window
        self._lives: OrderedDict[Life, _Seen] = OrderedDict()
        # Claimed and not settled yet, with a future once somebody waits for that.
        self._claims: dict[tuple[Life, int], asyncio.Future[None] | None] = {}

    async def claim(self, life: Life, sequence: int, timeout_s: float) -> Claim:
        """GRANTED: the caller may insert and must settle. BUSY: another held it until time was up."""
        key = (life, sequence)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            if self._has(life, sequence):
                return Claim.DUPLICATE
            if key not in self._claims:
                self._claims[key] = None
                return Claim.GRANTED
            remaining = deadline - loop.time()
            if remaining <= 0:
                return Claim.BUSY
            settled = self._claims[key]
            if settled is None:
                settled = self._claims[key] = loop.create_future()
            await asyncio.wait((settled,), timeout=remaining)

    def settle(self, life: Life, sequence: int, *, stored: bool) -> None:
        """End a claim; `stored` says whether the item is in the table now."""
        settled = self._claims.pop((life, sequence))
        if stored:
            seen = self._lives.get(life)
            if seen is None:
                seen = self._lives[life] = _Seen()
                if len(self._lives) > self._max_lives:
                    self._lives.popitem(last=False)
            seen.add(sequence, self._window)
        if settled is not None:
            settled.set_result(None)

    @property
    def num_lives(self) -> int:
        return len(self._lives)

    def _has(self, life: Life, sequence: int) -> bool:
        seen = self._lives.get(life)
        if seen is None:
            return False
        self._lives.move_to_end(life)
        return seen.contains(sequence, self._window)
