"""`make bench`: prints the performance figures, with the machine and the settings.

Speed varies: what is missed is printed as missed and fails nothing. P5, P6 and P9 are the replay's:
`make bench-replay`. No torch at import: the clients that P4 starts import this module again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import (
    actor_rates,
    atari_shaped,
    inference_latency,
    learning,
    off_policy,
    scaling,
    throughput,
    weight_latency,
)
from benchmarks.machine import describe_machine


@dataclass(frozen=True)
class Scale:
    """How much of everything."""

    envs_per_message: tuple[int, ...] = (256, 512, 1024)
    throughput_s: float = 20.0
    atari: atari_shaped.Settings = field(default_factory=atari_shaped.Settings)
    num_seeds: int = 3
    inference: inference_latency.Settings = field(default_factory=inference_latency.Settings)
    scaling: scaling.Settings = field(default_factory=scaling.Settings)
    weights: weight_latency.Settings = field(default_factory=weight_latency.Settings)
    actors: actor_rates.Settings = field(default_factory=actor_rates.Settings)
    off_policy: off_policy.Settings = field(default_factory=off_policy.Settings)


FULL = Scale()
QUICK = Scale(
    envs_per_message=(256,),
    throughput_s=2.0,
    atari=atari_shaped.Settings(num_rounds=1, warm_up_s=2.0, measure_s=4.0, limit_s=0.2),
    num_seeds=1,
    inference=inference_latency.Settings(num_rounds=1, seconds=1.0, forward_s=0.5),
    scaling=scaling.Settings(num_actors=(1, 2), warm_up_s=1.0, measure_s=2.0),
    weights=weight_latency.Settings(warm_up_s=2.0, measure_s=5.0),
    actors=actor_rates.Settings(kinds=actor_rates.KINDS[:3], bare_s=0.5, warm_up_s=1.0, measure_s=2.0),
    off_policy=off_policy.Settings(num_rounds=1, warm_up_s=2.0, measure_s=4.0, limit_s=1.0, sb3_s=3.0),
)


def _throughput(scale: Scale, directory: Path) -> None:
    for envs in scale.envs_per_message:
        settings = throughput.Settings(envs_per_message=envs, measure_s=scale.throughput_s)
        throughput.measure(settings, directory)


PARTS: dict[str, Callable[[Scale, Path], object]] = {
    "p1": _throughput,
    "p2": lambda scale, directory: atari_shaped.measure(scale.atari, directory),
    # And P10, which is the beginning of the same runs.
    "p3": lambda scale, directory: learning.measure(directory, scale.num_seeds),
    "p4": lambda scale, directory: inference_latency.measure(scale.inference, directory),
    "p7": lambda scale, directory: scaling.measure(scale.scaling, directory),
    "p8": lambda scale, directory: weight_latency.measure(scale.weights, directory),
    "p12": lambda scale, directory: off_policy.measure(scale.off_policy, directory),
    "actors": lambda scale, directory: actor_rates.measure(scale.actors, directory),
}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="everything for seconds: whether it runs at all")
    parser.add_argument(
        "--only", nargs="+", choices=[*PARTS], default=[*PARTS], metavar="PART", help=f"of {', '.join(PARTS)}"
    )
    return parser.parse_args(given)


def main() -> int:
    options = arguments()
    print(describe_machine(), flush=True)
    broken = []
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as directory:
        for name in options.only:
            try:
                PARTS[name](QUICK if options.quick else FULL, Path(directory))
            except Exception as error:  # the other figures are worth having all the same
                print(f"\n{name}: could not be measured: {type(error).__name__}: {error}", flush=True)
                broken.append(name)
            sys.stdout.flush()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
