"""Stands in for `shoal train` where the benchmark is tested: leaves the files of a run without training.

`python fake_train.py MODE train ...`, where MODE is `finish`, `fail`, or `wait` (for SIGINT), and in any mode
`python fake_train.py MODE eval RUN`.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
from pathlib import Path
from types import FrameType


def main() -> int:
    mode, command, *arguments = sys.argv[1:]
    if command == "eval":
        scores = {"greedy": True, "policies": {"policy": {"returns": [490.0, 500.0]}}}
        (Path(arguments[0]) / "eval-000001-step-10.json").write_text(json.dumps(scores))
        return 0
    if mode == "fail":
        print("error: it is broken")
        return 2
    given = dict(itertools.pairwise(arguments))
    root, steps = Path(given.get("--resume") or given["--run-dir"]), int(given["--steps"])
    root.mkdir(parents=True, exist_ok=True)
    with (root.parent / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")
    (root / "config.yaml").write_text("algorithm: {name: ppo}\n")
    if mode == "wait":
        signal.signal(signal.SIGINT, lambda number, frame: interrupted(root, number, frame))
        (root / "checkpoints/1-step-10").mkdir(parents=True)
        add_sample(root, 1.0, steps // 2, 20.0)
        signal.pause()
    add_sample(root, 2.0, steps, 480.0)
    end(root, "finished", steps)
    return 0


def interrupted(root: Path, number: int, frame: FrameType | None) -> None:
    end(root, "interrupted", 10)
    sys.exit(130)


def add_sample(root: Path, time_s: float, steps: int, mean: float) -> None:
    with (root / "history.jsonl").open("a") as history:
        history.write(json.dumps({"time_s": time_s, "env_steps": steps, "episode_return": mean}) + "\n")


def end(root: Path, how: str, steps: int) -> None:
    result = {"end": how, "mean_return": 480.0, "env_steps": steps, "wall_clock_s": 3.0}
    (root / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main())
