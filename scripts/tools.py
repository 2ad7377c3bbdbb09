"""Makes `prometheus` and `promtool` available in `.venv/tools/bin`, for the tests of rules and dashboards.

Those on the PATH are used if they are there. Otherwise Debian's package is downloaded and unpacked into
`.venv/tools`: no root, nothing is installed and no service is started. apt keeps its lists in there, too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE, TOOLS = "prometheus", ("prometheus", "promtool")
HELP = (
    "install Prometheus (https://prometheus.io/download/) so that `prometheus` and `promtool` are on the PATH"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT / ".venv/tools", help="where they go")
    into: Path = parser.parse_args().into.absolute()
    bin_directory = into / "bin"
    bin_directory.mkdir(parents=True, exist_ok=True)
    found = {tool: shutil.which(tool) for tool in TOOLS}
    if all(found.values()):
        paths = {tool: Path(path) for tool, path in found.items() if path}
    elif all(works(bin_directory / tool) for tool in TOOLS):
        return
    else:
        paths = {tool: unpacked(into) / "usr/bin" / tool for tool in TOOLS}
    for tool, path in paths.items():
        link = bin_directory / tool
        link.unlink(missing_ok=True)
        link.symlink_to(path)
        if not works(link):
            sys.exit(f"error: {path} does not run here; {HELP}")
        print(f"{link} -> {path}")


def works(path: Path) -> bool:
    try:
        return subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def unpacked(into: Path) -> Path:
    """Debian's package, unpacked into a directory of its own."""
    target = into / PACKAGE
    if works(target / "usr/bin" / TOOLS[0]):
        return target
    if not all(shutil.which(program) for program in ("apt-get", "dpkg-deb")):
        sys.exit(f"error: there is no apt here to download {PACKAGE} with: {HELP}")
    work = into / "apt"
    for part in ("state/lists/partial", "cache/archives/partial", "packages"):
        (work / part).mkdir(parents=True, exist_ok=True)
    print(f"tools: downloading {PACKAGE} ...")
    apt(work, "update")
    apt(work, "download", PACKAGE)
    package = next((work / "packages").glob("*.deb"))
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["dpkg-deb", "-x", package, target], check=True)
    shutil.rmtree(work)
    return target


def apt(work: Path, *arguments: str) -> None:
    """With its state in `work`, so that neither root nor an earlier `apt-get update` is needed."""
    options = {
        "Dir::State": work / "state",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "1",
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items()), *arguments]
    done = subprocess.run(command, cwd=work / "packages", capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["apt-get failed"]
        sys.exit(f"error: cannot download {PACKAGE}: {lines[-1]}; {HELP}")


if __name__ == "__main__":
    main()
