"""Files of a run that are there as a whole or not at all. Called by whatever writes them; blocking."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Beside it first, then in its place: a full disk leaves the file that was there. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
