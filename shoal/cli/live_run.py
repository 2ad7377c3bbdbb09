"""How another command reaches the services of a run that `shoal train` has going on this machine.

`shoal train` leaves the name of its private socket directory in the run directory, and the run's token in
that socket directory, which only its user can enter. Whoever finds no socket directory there finds no run.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.plan import replay_address
from shoal.cli.run_dir import RunDir
from shoal.config import load_config
from shoal.errors import UserError

TOKEN_FILE = "token"
# As `shoal.cli.plan` names them; beside each is one for health checks.
SHARD_SOCKET = re.compile(r"replay-\d+\.sock")


@dataclass(frozen=True)
class LiveRun:
    """Where the replay shards of a run listen. `token_file` is None for a run without a token of its own."""

    replay: tuple[str, ...]
    token_file: Path | None


@contextlib.contextmanager
def reachable(run_dir: RunDir, sockets: Path, token: str | None) -> Iterator[None]:
    """Lets `find_run` find the run while it goes on. What cannot be written does not stop the run."""
    with contextlib.suppress(OSError):
        if token is not None:
            descriptor = os.open(sockets / TOKEN_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(token)
        run_dir.sockets.write_text(str(sockets), encoding="utf-8")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            run_dir.sockets.unlink(missing_ok=True)


def find_run(root: Path) -> LiveRun:
    """Raises UserError if no run is going on in this directory."""
    run_dir = RunDir(root)
    if not run_dir.config.is_file():
        raise UserError(f"{root} is no run directory: it has no {run_dir.config.name}")
    try:
        sockets = Path(run_dir.sockets.read_text(encoding="utf-8"))
        # A run that was killed may leave a name that somebody else has taken since.
        is_ours = sockets.is_absolute() and sockets.stat().st_uid == os.getuid()
        is_up = is_ours and any(SHARD_SOCKET.fullmatch(path.name) for path in sockets.iterdir())
    except (OSError, ValueError):
        is_up = False
    if not is_up:
        raise UserError(
            f"no run is going on in {root}, or its replay is not up yet; "
            "`shoal replay dump` and `shoal replay verify` read the files of one that is over"
        )
    token_file = sockets / TOKEN_FILE
    # Those that are away for a moment too: their items are not accounted for.
    num_shards = load_config(run_dir.config).launch.replay_shards
    return LiveRun(
        tuple(replay_address(sockets, index) for index in range(num_shards)),
        token_file if token_file.is_file() else None,
    )
