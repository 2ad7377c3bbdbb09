"""Which inference replica a group of environments uses.

Pure: every actor works it out for itself, and together they spread evenly.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


def actor_number(actor_id: str) -> int:
    """The number an id ends with (`actor-3`), so that numbered actors take turns; else a stable hash."""
    digits = re.search(r"\d+$", actor_id)
    return int(digits.group()) if digits else zlib.crc32(actor_id.encode())


@dataclass(frozen=True)
class Seat:
    """Which group of which actor this is."""

    actor_id: str
    group: int
    num_groups: int

    def replica(self, replicas: Sequence[T], skip: int = 0) -> T:
        """The group's own one out of a sorted list, or the one `skip` places after it."""
        place = actor_number(self.actor_id) * self.num_groups + self.group
        return replicas[(place + skip) % len(replicas)]
