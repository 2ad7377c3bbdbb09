"""Puts finished runs into `docs/results`: their figures, their curves, and the table of all of them.

    python scripts/results.py --name ppo_cartpole --target 475 --budget 300000 runs/ppo_cartpole-1 ...

Each name has `<name>.json` (the figures of every run, and the machine) and `<name>.svg` (return over steps).
The table of `docs/results/README.md` is made from the JSON files; without runs that is all that happens.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from page_tables import ROOT, renewed

RESULTS = ROOT / "docs" / "results"
BEGIN = "<!-- table: made by scripts/results.py -->"
END = "<!-- end of the table -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="run directories, one per seed")
    parser.add_argument("--name", help="the preset")
    parser.add_argument("--target", type=float, help="the mean return that was asked for")
    parser.add_argument("--budget", type=int, help="environment steps within which it was asked for")
    parser.add_argument("--note", default="", help="a sentence for the table")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder to put them into")
    arguments = parser.parse_args()
    if arguments.runs:
        if arguments.name is None:
            parser.error("runs need a --name")
        _record(arguments)
    page = arguments.results / "README.md"
    _write(page, with_table(page.read_text(encoding="utf-8"), arguments.results))
    return 0


def _record(arguments: argparse.Namespace) -> None:
    # In here, so that the table can be made without the project's dependencies.
    sys.path.insert(0, str(ROOT))
    from benchmarks.chart_file import standalone
    from benchmarks.machine import describe_machine
    from shoal.cli.charts import Axis, Line, line_chart
    from shoal.cli.history import read_history
    from shoal.cli.run_dir import RunDir

    figures, lines = [], []
    config: dict[str, Any] = {}
    for path in arguments.runs:
        run_dir = RunDir(path)
        config = yaml.safe_load(run_dir.config.read_text(encoding="utf-8"))
        result = run_dir.read_result()
        if result.get("mean_return") is None:
            sys.exit(f"{path} has no result with a mean return: no episode finished, or it still runs")
        samples, _ = read_history(run_dir.history)
        points = [(s.env_steps or 0, s.episode_return) for s in samples if s.episode_return is not None]
        points.append((result["env_steps"], result["mean_return"]))
        seed = config["run"]["seed"]
        lines.append(Line(f"seed {seed}", points))
        figures.append(
            {
                "seed": seed,
                "mean_return": round(result["mean_return"], 2),
                "best_mean_return": round(max(value for _, value in points), 2),
                "env_steps": result["env_steps"],
                "steps_to_target": _first_at(points, arguments.target),
                "wall_clock_s": round(result["wall_clock_s"], 1),
            }
        )
    record = {
        "preset": arguments.name,
        "env": config["env"]["id"],
        "algorithm": config["algorithm"]["name"],
        "target": arguments.target,
        "budget": arguments.budget,
        "note": arguments.note,
        "machine": describe_machine().splitlines(),
        "runs": figures,
    }
    _write(arguments.results / f"{arguments.name}.json", json.dumps(record, indent=2) + "\n")
    chart = line_chart(
        lines, Axis("environment steps", from_zero=True), Axis("mean return"), target=arguments.target
    )
    _write(arguments.results / f"{arguments.name}.svg", standalone(chart, [line.label for line in lines]))


def with_table(page: str, results: Path) -> str:
    """The page with its table made anew from the JSON files of the folder."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    rows = [
        "| preset | environment | algorithm | asked for | seed: mean return (steps; wall-clock) | curve |",
        "|---|---|---|---|---|---|",
        *(_row(record) for record in records),
    ]
    return renewed(page, BEGIN, END, "\n".join(rows))


def _row(record: dict[str, Any]) -> str:
    asked = "-"
    if record["target"] is not None:
        asked = f">= {record['target']:g}"
        asked += f" within {record['budget']:,}" if record["budget"] else ""
    runs = "<br>".join(
        f"{run['seed']}: {run['mean_return']:,} ({run['env_steps']:,}; {_duration(run['wall_clock_s'])})"
        for run in record["runs"]
    )
    note = f"<br>{record['note']}" if record["note"] else ""
    name = record["preset"]
    return (
        f"| {name} | {record['env']} | {record['algorithm']} | {asked} | {runs}{note} | [curve]({name}.svg) |"
    )


def _first_at(points: Sequence[tuple[int, float]], target: float | None) -> int | None:
    if target is None:
        return None
    return next((steps for steps, value in points if value >= target), None)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main())
