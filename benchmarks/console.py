"""What the benchmarks print: tables, whether a target is met, and on a terminal how far long work is."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

EVERY_S = 0.2


class Progress:
    """`show` as often as you like; it is silent where the output goes to a file."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._shown_at = 0.0

    def show(self, what: str, done: float, total: float) -> None:
        now = time.monotonic()
        if self._is_terminal and now - self._shown_at >= EVERY_S:
            sys.stderr.write(f"\r\033[K{what} {min(done / max(total, 1), 1.0):4.0%}")
            sys.stderr.flush()
            self._shown_at = now

    def clear(self) -> None:
        """Before anything else is printed."""
        if self._is_terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self._shown_at = 0.0


def print_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> None:
    """The first column to the left, figures to the right, as soon as they are there."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    print(f"\n{title}")
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
        print("    " + "  ".join(cells).rstrip())
    for note in notes:
        print(f"    {note}")
    sys.stdout.flush()


def rate(value: float) -> str:
    """Three digits are all that a speed means here."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def verdict(value: float, target: float, *, at_most: bool = False) -> str:
    """`met` or `missed`, with the target."""
    met = value <= target if at_most else value >= target
    return f"{'met' if met else 'missed'}: target {'at most' if at_most else 'at least'} {target:,g}"
