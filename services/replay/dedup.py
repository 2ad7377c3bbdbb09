"""Which appends of which life a table has stored before, so that a resend is stored once.

Called by `Shard` on the event loop, and by recovery before anybody else. Per life it keeps the highest
sequence stored and one bit for each of the `window` sequences up to it. The writer never has an unacked
append `window` or more below its newest one, so whatever lies below the window was acked and is rightly
called a repeat. Gaps are fine: other shards have those.

The append of a broken stream may still wait for room, or for the disk, while its resend arrives on a new one.
The resend then waits for the outcome of the first: `claim` gives a sequence to one caller at a time, who must
`settle`. What was stored is remembered from `add` on; it is called a repeat once the claim has been settled:
only then is it as safe as an ack promises.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum

from shoal.clients.replay_shard import SEQUENCE_WINDOW
from shoal.journal.events import SeenLife
from shoal.records import Life


class Claim(Enum):
    """Answer to somebody who wants to insert."""

    GRANTED = "granted"
    DUPLICATE = "duplicate"
    BUSY = "busy"


class _Seen:
    """The sequences of one life: bit i of `bits` stands for `highest - i`."""

    __slots__ = ("bits", "highest")

    def __init__(self, highest: int = -1, bits: int = 0) -> None:
        self.highest = highest
        self.bits = bits

    def contains(self, sequence: int, window: int) -> bool:
        age = self.highest - sequence
        return age >= window or (age >= 0 and bool(self.bits >> age & 1))

    def add(self, sequence: int, window: int, mask: int) -> None:
        age = self.highest - sequence
        # Never shift by more than the window: the sequence is whatever a stranger sent.
        if age >= 0:
            if age < window:
                self.bits |= 1 << age
            return
        kept = self.bits << -age if -age < window else 0
        self.bits = (kept | 1) & mask
        self.highest = sequence


class Dedup:
    """Remembers the newest `max_lives` lives; the one that was silent for longest is forgotten first."""

    def __init__(self, max_lives: int, window: int = SEQUENCE_WINDOW) -> None:
        self._max_lives = max_lives
        self._window = window
        self._mask = (1 << window) - 1
        self._lives: OrderedDict[Life, _Seen] = OrderedDict()
        # Claimed and not settled yet, with a future once somebody waits for that.
        self._claims: dict[tuple[Life, int], asyncio.Future[None] | None] = {}

    async def claim(self, life: Life, sequence: int, timeout_s: float) -> Claim:
        """GRANTED: the caller may insert and must settle. BUSY: another held it until time was up."""
        key = (life, sequence)
        if key in self._claims and not await self._settled(key, timeout_s):
            return Claim.BUSY
        if self._has(life, sequence):
            return Claim.DUPLICATE
        self._claims[key] = None
        return Claim.GRANTED

    def settle(self, life: Life, sequence: int) -> None:
        """End a claim. Whether the append was stored, `add` has said."""
        settled = self._claims.pop((life, sequence))
        if settled is not None:
            settled.set_result(None)

    def add(self, life: Life, sequence: int) -> None:
        """The append is in the table now."""
        seen = self._lives.get(life)
        if seen is None:
            seen = self._lives[life] = _Seen()
            self._forget_oldest()
        else:
            self._lives.move_to_end(life)
        seen.add(sequence, self._window, self._mask)

    def save(self) -> tuple[SeenLife, ...]:
        """The longest silent life first."""
        return tuple(SeenLife(life, seen.highest, seen.bits) for life, seen in self._lives.items())

    def restore(self, lives: Iterable[SeenLife]) -> None:
        """Begin anew with what `save` returned once."""
        self._lives = OrderedDict((seen.life, _Seen(seen.highest, seen.bits & self._mask)) for seen in lives)
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._lives) > self._max_lives:
            self._lives.popitem(last=False)

    async def _settled(self, key: tuple[Life, int], timeout_s: float) -> bool:
        """Wait until nobody holds the claim; False if time was up first."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while key in self._claims:
            remaining = deadline - loop.time()
            if remaining <= 0:
                return False
            settled = self._claims[key]
            if settled is None:
                settled = self._claims[key] = loop.create_future()
            await asyncio.wait((settled,), timeout=remaining)
        return True

    def _has(self, life: Life, sequence: int) -> bool:
        seen = self._lives.get(life)
        if seen is None:
            return False
        self._lives.move_to_end(life)
        return seen.contains(sequence, self._window)
