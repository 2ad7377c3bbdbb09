"""`make bench`: prints P1, P3 and P10 with the machine and the settings. Speed varies: no figure fails."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks import learning, throughput
from benchmarks.machine import describe_machine


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--envs-per-message", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--seconds", type=float, default=20.0, help="measured time per setting")
    parser.add_argument("--seeds", type=int, default=3, help="runs of P3")
    arguments = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory:
        for envs in arguments.envs_per_message:
            settings = throughput.Settings(envs_per_message=envs, measure_s=arguments.seconds)
            throughput.measure(settings, Path(directory))
        learning.measure(Path(directory), arguments.seeds)


if __name__ == "__main__":
    main()
