"""The page `docs/results/learning.md` and a picture per row, made from the JSON files of the results.

A row that has not been run has empty cells.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.chart_file import standalone
from benchmarks.learn.aggregate import bootstrap_interval, interquartile_mean
from benchmarks.learn.published import SOURCES, Published
from benchmarks.learn.records import Record, read_record, runs_of
from benchmarks.learn.runs import SB3, SHOAL
from benchmarks.learn.tasks import Task
from scripts.page_tables import renewed
from shoal.cli.charts import Axis, Line, duration, line_chart
from shoal.cli.files import write_whole

BEGIN = "<!-- table: made by `make bench-learn` -->"
END = "<!-- end of the table -->"
HEADER = (
    "task",
    "flag",
    "asked for",
    "seeds",
    "steps to the score",
    "wall-clock to it",
    "lowest after",
    "final score",
    "greedy",
    "after",
    "published",
    "SB3 here",
    "curve",
)


def write_page(page: Path, results: Path, tasks: Sequence[Task]) -> None:
    """Renews the table of the page and the pictures in `results`, a folder beside it."""
    records = [read_record(results, task) for task in tasks]
    for task, record in zip(tasks, records, strict=True):
        if record["runs"]:
            write_whole(results / f"{task.name}.svg", _picture(task, record).encode())
    made = "\n".join([*table(tasks, records, results.name), "", _origins(records), "", *_sources()])
    write_whole(page, renewed(page.read_text(encoding="utf-8"), BEGIN, END, made).encode())


def table(tasks: Sequence[Task], records: Sequence[Record], folder: str) -> list[str]:
    """All rows, those without runs too."""
    rows = [_cells(task, record, folder) for task, record in zip(tasks, records, strict=True)]
    return ["| " + " | ".join(cells) + " |" for cells in (HEADER, ["---"] * len(HEADER), *rows)]


def _cells(task: Task, record: Record, folder: str) -> list[str]:
    runs = runs_of(record, SHOAL)
    flags = " ".join(f"`{word}`" for word in _flags(task))
    published = "<br>".join(map(_published, task.published))
    link = f"[curve]({folder}/{task.name}.svg)" if record["runs"] else ""
    return [task.env, flags, _asked(task), *_figures(task, runs), published, _sb3(task, record), link]


def _flags(task: Task) -> list[str]:
    words = task.arguments[1:]
    return [f"{flag} {value}" for flag, value in zip(words[::2], words[1::2], strict=True)]


def _asked(task: Task) -> str:
    if task.score is None:
        return ""
    return f"{task.score:,g} within {task.within:,}"


def _figures(task: Task, runs: Sequence[Record]) -> list[str]:
    """Seeds, steps, wall-clock, lowest, final score, greedy score, steps of a run."""
    if not runs:
        return [""] * 7
    lowest = [run["lowest_after"] for run in runs if run["lowest_after"] is not None]
    steps = _to_score([run["steps_to_score"] for run in runs], lambda steps: f"{steps:,.0f}")
    seconds = _to_score([run["seconds_to_score"] for run in runs], duration)
    return [
        str(len(runs)),
        *([steps, seconds] if task.score is not None else ["", ""]),
        number(min(lowest)) if lowest else "",
        _mean([run["final"] for run in runs]),
        _mean([run["greedy"] for run in runs if run.get("greedy") is not None]),
        f"{statistics.median(run['env_steps'] for run in runs):,.0f} steps",
    ]


def _to_score(values: Sequence[float | None], shown: Callable[[float], str]) -> str:
    """The median, where a run that did not get there counts as one that never does."""
    reached = sum(value is not None for value in values)
    middle = statistics.median(math.inf if value is None else value for value in values)
    return f"{shown(middle) if math.isfinite(middle) else '-'} ({reached} of {len(values)})"


def _mean(scores: Sequence[float]) -> str:
    """The interquartile mean over seeds and its interval."""
    if not scores:
        return ""
    text = number(interquartile_mean(scores))
    if len(scores) > 1:
        low, high = bootstrap_interval(scores)
        text += f" [{number(low)}, {number(high)}]"
    return text


def _published(figure: Published) -> str:
    return f"{figure.value:,} ± {figure.spread:,} ({figure.source.name}: {figure.what})"


def _sb3(task: Task, record: Record) -> str:
    runs = runs_of(record, SB3)
    if not runs:
        return ""
    _, steps, seconds, _, final, _, after = _figures(task, runs)
    to_score = f"{steps} steps, {seconds}; " if steps else ""
    return f"{runs[0]['algorithm'].upper()}: {to_score}{final} after {after}"


def number(value: float) -> str:
    """Thousands without digits behind the point, small scores with two."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _origins(records: Sequence[Record]) -> str:
    """The machines and the versions that the runs were made with."""
    runs = [run for record in records for run in record["runs"]]
    if not runs:
        return "Nothing has been run yet."
    machines = "; ".join(sorted({run["machine"] for run in runs}))
    versions = ", ".join(sorted({run["version"] for run in runs}))
    return f"Run on: {machines}. Versions: {versions}."


def _sources() -> list[str]:
    """Where the published figures are from, and how they were measured."""
    lines = [f"- [{source.name}]({source.url}): {source.measured_as}" for source in SOURCES]
    return ["Sources of the published figures:", "", *lines]


def _picture(task: Task, record: Record) -> str:
    lines = [Line(_label(run), [(steps, mean) for steps, mean in run["curve"]]) for run in record["runs"]]
    steps, mean = Axis("environment steps", from_zero=True), Axis("mean return")
    chart = line_chart(lines, steps, mean, target=task.score)
    return standalone(chart, [line.label for line in lines])


def _label(run: Record) -> str:
    return f"seed {run['seed']}" if run["system"] == SHOAL else f"{run['system']}, seed {run['seed']}"
