"""Pages with a part that is made from the code: written anew, or compared. For the scripts beside it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
END = "<!-- end of the tables -->"


def renewed(text: str, begin: str, end: str, made: str) -> str:
    """`text` with what stands between the two marks made anew."""
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise SystemExit(f"error: the page lacks the line {begin!r} or {end!r}")
    return f"{before}{begin}\n{made}\n{end}{after}"


def write_or_check(description: str | None, page: str, target: str, tables: Callable[[], str]) -> None:
    """The whole program: `make <target>` writes the page, `--check` compares it with what would be."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    parser.add_argument("--page", type=Path, default=ROOT / page, help="the page")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    old = arguments.page.read_text()
    new = renewed(old, f"<!-- tables: made by `make {target}` -->", END, f"\n{tables()}\n")
    if not arguments.check:
        arguments.page.write_text(new)
    elif new != old:
        lines = [line for line in new.splitlines() if line not in old.splitlines()]
        gone = [line for line in old.splitlines() if line not in new.splitlines()]
        shown = [*(f"  missing: {line}" for line in lines), *(f"  stale: {line}" for line in gone)]
        sys.exit("\n".join([f"error: {arguments.page} is not what the code has; run: make {target}", *shown]))
