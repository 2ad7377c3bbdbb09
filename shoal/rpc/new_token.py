"""Makes a run's token: `python -m shoal.rpc.new_token FILE`. A file that is there already is left as it is.

The first container of a compose project runs it, so that nobody has to think of a token and none is
committed.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

NUM_BYTES = 32


def make_token(path: Path) -> bool:
    """Writes a new token, readable by its owner only; False if there is one. Raises OSError."""
    if path.exists():
        return False
    # Under another name first: a writer that is killed leaves no half token, and of two only one counts.
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secrets.token_hex(NUM_BYTES)}\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def main(argv: Sequence[str]) -> int:
    if len(argv) != 1:
        print("usage: python -m shoal.rpc.new_token FILE", file=sys.stderr)
        return 2
    try:
        made = make_token(Path(argv[0]))
    except OSError as error:
        print(f"error: cannot write the token to {argv[0]}: {error.strerror}", file=sys.stderr)
        return 2
    print(f"{'made' if made else 'kept'} the token in {argv[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
