"""Where the programs are that tests of deployment run: those of `scripts/tools.py`, or on the PATH."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIRECTORY = ROOT / ".venv/tools/bin"


def tool(name: str) -> str:
    """The program's path. Fails, never skips: a missing tool must not hide a broken file."""
    found = shutil.which(name, path=str(DIRECTORY)) or shutil.which(name)
    assert found, f"{name} is neither in {DIRECTORY} nor on the PATH; run: python scripts/tools.py"
    return found
