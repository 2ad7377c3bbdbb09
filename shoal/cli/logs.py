"""Follows the services' log files and picks out what the user should see: warnings and errors.

Called by the monitor once per poll, on the event loop; reads only what was added since.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

# The line format of shoal.rpc.process: time, level, service, id, message. CRITICAL records come with the end
# of the process, which the supervisor tells itself.
RECORD = re.compile(r"^\S+Z (WARNING|ERROR) \S+ \S+ (.*)$")
MAX_READ_BYTES = 1 << 18
# A peer that is away makes every client warn at every try: the first few tell it all.
MAX_PER_POLL = 5
MAX_LENGTH = 300
MAX_REMEMBERED = 1000


class LogWatch:
    """New warnings in a set of logs, by process name. Starts at the ends of the files."""

    def __init__(self, logs: Mapping[str, Path]) -> None:
        self._logs = dict(logs)
        self._offsets = {name: _size(path) for name, path in logs.items()}
        self._told: set[tuple[str, str]] = set()

    def new_warnings(self, *, only_errors: bool = False) -> list[str]:
        """At most a few per call; a text is told once per process."""
        levels = ("ERROR",) if only_errors else ("WARNING", "ERROR")
        found = [f"{name}: {text}" for name in self._logs for text in self._new_lines(name, levels)]
        if len(found) > MAX_PER_POLL:
            more = len(found) - MAX_PER_POLL
            found = [*found[:MAX_PER_POLL], f"{more} more warnings; see the logs"]
        return found

    def _new_lines(self, name: str, levels: Sequence[str]) -> list[str]:
        lines = []
        for line in self._read(name).splitlines():
            record = RECORD.match(line)
            if record is None or record[1] not in levels:
                continue
            text = record[2][:MAX_LENGTH]
            # Digits differ from one repetition to the next: attempts, ports, seconds.
            key = (name, re.sub(r"\d+", "#", text))
            if key not in self._told and len(self._told) < MAX_REMEMBERED:
                self._told.add(key)
                lines.append(text)
        return lines

    def _read(self, name: str) -> str:
        """Whole lines that were added since the last call."""
        path, offset = self._logs[name], self._offsets[name]
        size = _size(path)
        if size <= offset:
            return ""
        try:
            with open(path, "rb") as file:
                file.seek(max(offset, size - MAX_READ_BYTES))
                start = file.tell()
                data = file.read(MAX_READ_BYTES)
        except OSError:
            return ""
        end = data.rfind(b"\n") + 1
        self._offsets[name] = start + end
        return data[:end].decode(errors="replace")


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
