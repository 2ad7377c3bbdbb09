"""Generates `shoal/v1` from `proto/`; `--check` only compares and fails on a difference.

Run by `make proto`, `make proto-check` and tests/unit/test_proto.py.
"""

from __future__ import annotations

import argparse
import filecmp
import shutil
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("shoal/v1")
WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"


def generate(proto_root: Path, out: Path) -> None:
    """Writes the modules of every proto file, and gRPC stubs for those that hold a service."""
    out.mkdir(parents=True, exist_ok=True)
    files = sorted(path.relative_to(proto_root).as_posix() for path in (proto_root / PACKAGE).glob("*.proto"))
    services = [name for name in files if name.endswith("_service.proto")]
    include = [f"-I{proto_root}", f"-I{WELL_KNOWN}"]
    for options in (
        [f"--python_out={out}", f"--pyi_out={out}", *files],
        [f"--grpc_python_out={out}", *services],
    ):
        if protoc.main(["protoc", *include, *options]) != 0:
            raise SystemExit("error: protoc failed; its message is above")


def differences(fresh: Path, committed: Path) -> list[str]:
    """Generated files that are missing, stale or left over in `committed`."""
    expected = {path.name for path in fresh.glob("*_pb2*")}
    present = {path.name for path in committed.glob("*_pb2*")}
    stale = [
        name
        for name in sorted(expected & present)
        if not filecmp.cmp(fresh / name, committed / name, shallow=False)
    ]
    return [
        *(f"missing: {name}" for name in sorted(expected - present)),
        *(f"stale: {name}" for name in stale),
        *(f"left over: {name}" for name in sorted(present - expected)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    arguments = parser.parse_args()
    root: Path = arguments.root.resolve()
    committed = root / PACKAGE
    with tempfile.TemporaryDirectory() as scratch:
        generate(root / "proto", Path(scratch))
        fresh = Path(scratch) / PACKAGE
        if not arguments.check:
            for path in committed.glob("*_pb2*"):
                if not (fresh / path.name).exists():
                    path.unlink()
            for path in fresh.glob("*_pb2*"):
                shutil.copyfile(path, committed / path.name)
            return
        found = differences(fresh, committed)
    if found:
        sys.exit("error: shoal/v1 is not what proto/ generates; run: make proto\n  " + "\n  ".join(found))


if __name__ == "__main__":
    main()
