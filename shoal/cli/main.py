"""Entry point of the console script: small, so that Ctrl-C ends it quietly while the rest is imported."""

from __future__ import annotations

import sys


def main() -> None:
    # Users keep environments and networks in the working directory, which comes last: nothing there hides
    # what we import.
    sys.path.append("")
    try:
        from shoal.cli.app import run
        from shoal.cli.say import open_missing_streams

        open_missing_streams()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
