"""`scripts/tools.py`: uses what is on the PATH, and says in one line what to do where there is nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.tools import DIRECTORY, ROOT


def make_available(into: Path, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts/tools.py"), "--into", str(into)],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_tools_on_the_path_are_used(tmp_path: Path) -> None:
    done = make_available(tmp_path, f"{DIRECTORY}{os.pathsep}{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    for name in ("prometheus", "promtool"):
        version = subprocess.run([tmp_path / "bin" / name, "--version"], capture_output=True, check=True)
        assert b"version" in version.stdout + version.stderr
    again = make_available(tmp_path, str(tmp_path / "nothing"))
    assert (again.returncode, again.stdout) == (0, ""), "what is there already is kept"


def test_a_machine_without_apt_gets_one_clear_line(tmp_path: Path) -> None:
    done = make_available(tmp_path, str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(
        "error: there is no apt here to download prometheus with: install Prometheus"
    )
