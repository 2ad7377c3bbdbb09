"""What one run reached: steps and seconds to the score, whether it held, and where it ended.

Read from `history.jsonl` and `result.json` of its run directory, which the Stable-Baselines3 side writes too,
and from what `shoal eval` leaves there.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.history import read_history
from shoal.cli.run_dir import RunDir


@dataclass(frozen=True)
class Point:
    """The mean return of the last 100 episodes, and when it was that."""

    steps: int
    seconds: float
    mean: float


@dataclass(frozen=True)
class Score:
    """None: the score was not reached, or none is asked for."""

    steps_to_score: int | None
    seconds_to_score: float | None
    # Of all means since then, or since `held_from`.
    lowest_after: float | None
    final: float


def read_points(root: Path) -> list[Point]:
    """All of a run that has ended, the last one from its result; empty if no episode has finished."""
    run_dir = RunDir(root)
    samples, _ = read_history(run_dir.history)
    points = [
        Point(sample.env_steps, sample.time_s, sample.episode_return)
        for sample in samples
        if sample.env_steps is not None and sample.episode_return is not None
    ]
    result = run_dir.read_result()
    if result.get("mean_return") is not None:
        points.append(Point(result["env_steps"], result["wall_clock_s"], result["mean_return"]))
    return points


def score_of(points: Sequence[Point], asked: float | None, held_from: int = 0) -> Score:
    """`points` in order of time, at least one."""
    final = points[-1].mean
    first = next((n for n, point in enumerate(points) if asked is not None and point.mean >= asked), None)
    if first is None:
        return Score(None, None, None, final)
    after = [point.mean for point in points[first:] if point.steps >= held_from]
    return Score(points[first].steps, points[first].seconds, min(after, default=None), final)


def greedy_score(root: Path) -> float | None:
    """The mean return of the greedy evaluation that was made after the run had ended; None without one."""
    ended = RunDir(root).result.stat().st_mtime
    for path in root.glob("eval-*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["greedy"] and path.stat().st_mtime >= ended:
            (scores,) = found["policies"].values()
            return statistics.mean(scores["returns"])
    return None
