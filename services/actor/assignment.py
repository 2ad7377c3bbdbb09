"""Which inference replica a group of environments uses.

Pure functions: every actor works it out for itself, and together they spread evenly.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def actor_number(actor_id: str) -> int:
    """The number an id ends with (`actor-3`), so that numbered actors take turns; else a stable hash."""
    digits = re.search(r"\d+$", actor_id)
    return int(digits.group()) if digits else zlib.crc32(actor_id.encode())


def assigned(replicas: Sequence[T], actor_id: str, group: int, num_groups: int, skip: int = 0) -> T:
    """The group's replica out of a sorted list, or the one `skip` places after it."""
    return replicas[(actor_number(actor_id) * num_groups + group + skip) % len(replicas)]
