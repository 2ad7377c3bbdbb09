"""The results as JSON, one file per row in `docs/results/learning`: the page is made of them alone.

A file holds every run of its row by system and seed; a run that is made again replaces the one before.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from benchmarks.learn.runs import SHOAL, Run
from benchmarks.learn.scores import Point, greedy_score, read_points, score_of
from benchmarks.learn.tasks import Task
from benchmarks.machine import describe_machine
from shoal.cli.files import write_whole
from shoal.cli.run_dir import RunDir

ROOT = Path(__file__).resolve().parents[2]
# Enough for a picture, and small enough for a repository.
MAX_POINTS = 100

Record = dict[str, Any]


def read_record(results: Path, task: Task) -> Record:
    """What is known of a row; it has no runs if there is no file."""
    path = _path(results, task)
    if not path.is_file():
        return {"task": task.name, "runs": []}
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    return record


def runs_of(record: Record, system: str) -> list[Record]:
    return [run for run in record["runs"] if run["system"] == system]


def add_run(results: Path, run: Run) -> None:
    """Puts a finished run into its row's file. What is there already stays as it is."""
    record = read_record(results, run.task)
    made = _run_record(run)
    kept = [old for old in record["runs"] if (old["system"], old["seed"]) != (run.system, run.seed)]
    same = [
        old for old in record["runs"] if old not in kept and _without_origin(old) == _without_origin(made)
    ]
    runs = sorted([*kept, *(same or [made])], key=lambda each: (each["system"] != SHOAL, each["seed"]))
    record = {"task": run.task.name, "score": run.task.score, "runs": runs}
    results.mkdir(parents=True, exist_ok=True)
    write_whole(_path(results, run.task), _to_json(record).encode())


def _run_record(run: Run) -> Record:
    points = read_points(run.root)
    result = RunDir(run.root).read_result()
    score = score_of(points, run.task.score, run.task.held_from)
    figures = asdict(score) | {"greedy": greedy_score(run.root)}
    rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in figures.items()}
    return {
        "system": run.system,
        "seed": run.seed,
        "algorithm": _algorithm(run, result),
        **rounded,
        "env_steps": result["env_steps"],
        "wall_clock_s": round(result["wall_clock_s"], 1),
        "version": _commit() if run.system == SHOAL else f"{run.system} {result['version']}",
        "machine": _machine(),
        "curve": [[point.steps, round(point.mean, 3)] for point in thinned(points)],
    }


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most MAX_POINTS, the last one among them."""
    stride = math.ceil(len(points) / (MAX_POINTS - 1))
    return [*points[:-1:stride], points[-1]]


def _without_origin(record: Record) -> Record:
    """A run that is read again may be read on a later commit."""
    return {key: value for key, value in record.items() if key not in ("version", "machine")}


def _algorithm(run: Run, result: Record) -> str:
    if run.system != SHOAL:
        return str(result["algorithm"])
    config = yaml.safe_load(RunDir(run.root).config.read_text(encoding="utf-8"))
    return str(config["algorithm"]["name"])


def _commit() -> str:
    """Shoal's commit, `-dirty` if files other than the docs, which hold the tables, have changed since."""
    commit = _git("describe", "--always").stdout.strip()
    if not commit:
        return "shoal of unknown commit"
    changed = _git("diff", "--quiet", "HEAD", "--", ".", ":!docs").returncode != 0
    return f"shoal {commit}{'-dirty' if changed else ''}"


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def _machine() -> str:
    """CPU, cores and memory."""
    first = describe_machine().splitlines()[0]
    return first.partition(" ")[2].rpartition(", load")[0].strip()


def _path(results: Path, task: Task) -> Path:
    return results / f"{task.name}.json"


def _to_json(record: Record) -> str:
    """One line a run: a thousand lines of points say nothing to a reader of differences."""
    runs = ",\n".join(f"    {json.dumps(run)}" for run in record["runs"])
    head = ",\n".join(f"  {json.dumps(key)}: {json.dumps(record[key])}" for key in ("task", "score"))
    return f'{{\n{head},\n  "runs": [\n{runs}\n  ]\n}}\n'
