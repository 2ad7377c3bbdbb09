"""`report.html`: the learning curve, the speed and where the time went, from the files of a run directory.

`shoal train` writes it at the end of every run, however it ended; `shoal report RUN` writes it again.
Pure text building over `history.jsonl`, `config.yaml` and `result.json`; what is missing is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from shoal.cli import page
from shoal.cli.charts import NO_DATA, Axis, Line, Point, Segment, duration, line_chart, short, stacked_bar
from shoal.cli.figures import samples_per_step
from shoal.cli.files import write_whole
from shoal.cli.history import Event, Sample, read_history, with_result
from shoal.cli.learned import not_learned
from shoal.cli.run_dir import RunDir
from shoal.cli.say import say
from shoal.cli.vitals import WORK
from shoal.errors import UserError

STEPS = Axis("environment steps", from_zero=True)
# What the phases of a service mean, for readers who meet them first here.
ROLES = {
    "actor": "stepping environments, waiting for actions, encoding trajectories, waiting for acks of replay",
    "evaluator": "the same program with greedy actions; nothing is stored",
    "inference": "requests waiting for a forward pass, the pass itself, answering",
    "replay": "inserts waiting for room, samples waiting for items (summed over those who wait)",
    "learner": "waiting for data, decoding and copying it, training, publishing weights",
}
END_CLASSES = {"finished": "good", "time limit": "good", "interrupted": "warn"}


def report(run: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Write the report of a run again, from the files in its directory."""
    run_dir = RunDir(run)
    if not run_dir.history.is_file():
        raise UserError(f"{run} is no run directory: it has no {run_dir.history.name}")
    write_report(run_dir)
    for line in not_learned(run_dir.read_result()):
        say(line)
    say(f"report: {run_dir.report}")


def write_report(run_dir: RunDir) -> None:
    """Builds the page and puts it in place as a whole. Raises UserError if it cannot be written."""
    samples, events = read_history(run_dir.history)
    text = build_report(samples, events, _read(run_dir.config), run_dir.read_result())
    try:
        write_whole(run_dir.report, text.encode())
    except OSError as error:
        raise UserError(f"cannot write {run_dir.report}: {error.strerror or error}") from None


def build_report(
    samples: Sequence[Sample], events: Sequence[Event], config_text: str, result: dict[str, Any]
) -> str:
    """The page as text."""
    config = _parse_config(config_text)
    name = str(_at(config, "run", "name") or "run")
    last = samples[-1] if samples else Sample(0.0)
    body = [_header(name, config, result), _figures(samples, last, result)]
    body.append(_learning(samples, _at(config, "stop", "until_return")))
    if policies := _policies(samples):
        body.append(_losses(samples, policies))
    body.append(_throughput(samples))
    body.append(_breakdown(last))
    body.append(_flow(samples))
    body.append(_load(last))
    body.append(_events(events, last.num_restarts))
    if result:
        body.append(page.details("Result", json.dumps(result, indent=2)))
    body.append(page.details("Effective configuration", config_text or "not recorded"))
    return page.page(f"shoal: {name}", body)


def _header(name: str, config: dict[str, Any], result: dict[str, Any]) -> str:
    env, algorithm = _at(config, "env", "id") or "?", _at(config, "algorithm", "name") or "?"
    end = str(result.get("end", "not finished"))
    badge = f'<span class="badge {END_CLASSES.get(end, "bad")}">{escape(end)}</span>'
    message = escape(str(result.get("message", "")))
    verdicts = "".join(f'<p class="bad">{escape(line)}</p>' for line in not_learned(result))
    return (
        f"<header><h1>{escape(name)}</h1>{badge}<p>{escape(str(env))} with {escape(str(algorithm))}</p>"
        f'<p class="soft">{message}</p>{verdicts}</header>'
    )


def _figures(samples: Sequence[Sample], last: Sample, result: dict[str, Any]) -> str:
    # Of several policies the result has the figures of one.
    final = with_result(last, result) if "mean_return" in result and "env_steps" in result else last
    reached, untrained, steps = final.episode_return, final.untrained_return, final.env_steps
    wall_s = float(result.get("wall_clock_s", last.time_s))
    speeds = [s.trained_steps_per_s for s in samples if s.trained_steps_per_s]
    figures = [
        ("mean return, last 100 episodes", f"{reached:,.1f}" if reached is not None else "none yet"),
        ("untrained policy's return", f"{untrained:,.1f}" if untrained is not None else "none yet"),
        ("environment steps", f"{steps:,}" if steps is not None else "none yet"),
        ("wall-clock", duration(wall_s)),
        ("median trained steps/s", short(sorted(speeds)[len(speeds) // 2]) if speeds else "none yet"),
        ("restarts", str(last.num_restarts)),
    ]
    if (times := samples_per_step(last)) is not None:
        figures.insert(3, ("samples per environment step", times))
    return page.tiles(figures)


def _learning(samples: Sequence[Sample], target: object) -> str:
    policies = _policies(samples)

    def lines(x: Callable[[Sample], float | None]) -> list[Line]:
        if not policies:
            return [
                Line("training", _points(samples, x, lambda s: s.episode_return)),
                Line("evaluation (greedy)", _points(samples, x, lambda s: s.evaluation_return)),
                Line("untrained policy", _points(samples, x, lambda s: s.untrained_return)),
            ]
        return [
            line
            for name in policies
            for line in (
                Line(name, _points(samples, x, _figure(name, "episode_return"))),
                Line(f"{name}, evaluation (greedy)", _points(samples, x, _figure(name, "evaluation_return"))),
            )
        ]

    clock = _Clock.of(samples)
    level = float(target) if isinstance(target, int | float) else None
    axis = Axis("mean return")
    over_steps = line_chart(lines(lambda s: s.env_steps), STEPS, axis, target=level)
    over_time = line_chart(lines(clock), clock.axis, axis, target=level)
    note = "Mean return of the last 100 training episodes."
    if policies:
        note = "Mean return of the last 100 training episodes of each policy, over the steps of all together."
    return page.section("Learning curve", note, page.pair(over_steps, over_time))


def _losses(samples: Sequence[Sample], policies: Sequence[str]) -> str:
    clock = _Clock.of(samples)
    lines = [Line(name, _points(samples, clock, _figure(name, "loss"))) for name in policies]
    steps = [Line(name, _points(samples, clock, _figure(name, "env_steps"))) for name in policies]
    charts = page.pair(line_chart(lines, clock.axis, Axis("loss")), line_chart(steps, clock.axis, STEPS))
    return page.section("Policies", "The loss of each policy, and what it was trained on.", charts)


def _policies(samples: Sequence[Sample]) -> list[str]:
    """Their names, if there are several."""
    return list(dict.fromkeys(name for sample in samples for name in sample.policies))


def _figure(policy: str, name: str) -> Callable[[Sample], float | None]:
    return lambda sample: sample.policies.get(policy, {}).get(name)


def _throughput(samples: Sequence[Sample]) -> str:
    clock = _Clock.of(samples)
    lines = [
        Line("trained", _points(samples, clock, lambda s: s.trained_steps_per_s)),
        Line("collected", _points(samples, clock, lambda s: s.env_steps_per_s)),
    ]
    chart = line_chart(lines, clock.axis, Axis("environment steps/s", from_zero=True))
    share = _single(samples, lambda s: _percent(s.learner_waiting), "learner waiting for data (%)")
    note = "Steps collected by actors and trained on by the learner, and how much of its time it waits."
    return page.section("Throughput", note, page.pair(chart, share))


def _breakdown(last: Sample) -> str:
    bars = []
    for role, meaning in ROLES.items():
        phases = last.phases.get(role)
        if phases:
            bar = stacked_bar([_segment(name, seconds) for name, seconds in phases.items()])
            bars.append(f'<h3>{role} <span class="soft">- {escape(meaning)}</span></h3>{bar}')
    note = "Seconds per phase over the whole run, summed over the processes and threads of a service."
    return page.section("Where the time went", note, *(bars or [NO_DATA]))


def _segment(phase: str, seconds: float) -> Segment:
    return Segment(phase.replace("_", " "), seconds, is_waiting="wait" in phase or "idle" in phase)


def _flow(samples: Sequence[Sample]) -> str:
    charts = [
        _single(samples, lambda s: s.policy_lag, "policy lag (versions)"),
        _single(samples, lambda s: _percent(s.replay_fill), "replay fill (%)"),
        _single(samples, lambda s: s.inference_batch, "inference batch (rows)"),
        _single(samples, lambda s: s.inference_latency_ms, "inference latency (ms)"),
    ]
    note = "How old the data is that is trained on, and how the services between keep up. Means per sample."
    return page.section("Data flow", note, page.pair(*charts))


def _single(samples: Sequence[Sample], value: Callable[[Sample], float | None], label: str) -> str:
    clock = _Clock.of(samples)
    return line_chart([Line(label, _points(samples, clock, value))], clock.axis, Axis(label, from_zero=True))


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _load(last: Sample) -> str:
    rows = [
        (process, f"{amount:,.0f} {WORK[process.rpartition('-')[0]][1]}")
        for process, amount in last.load.items()
        if process.rpartition("-")[0] in WORK
    ]
    note = "What each process has done over the whole run, all its restarts included."
    return page.section("Load", note, page.table(("process", "work"), rows) if rows else NO_DATA)


def _events(events: Sequence[Event], num_restarts: int) -> str:
    note = f"Restarts: {num_restarts}. Restarts and the services' warnings, oldest first."
    rows = [(duration(event.time_s), event.text) for event in events]
    content = page.table(("after", "what"), rows) if rows else '<p class="empty">Nothing happened.</p>'
    return page.section("Events", note, content)


def _points(
    samples: Sequence[Sample], x: Callable[[Sample], float | None], y: Callable[[Sample], float | None]
) -> list[Point]:
    both = [(x(sample), y(sample)) for sample in samples]
    return [(a, b) for a, b in both if a is not None and b is not None]


@dataclass(frozen=True)
class _Clock:
    """The time axis, in a unit that suits the length of the run."""

    axis: Axis
    unit_s: float

    @staticmethod
    def of(samples: Sequence[Sample]) -> _Clock:
        length_s = samples[-1].time_s if samples else 0.0
        limits = (("s", 1.0, 300), ("min", 60.0, 3 * 3600), ("h", 3600.0, math.inf))
        unit, unit_s = next((unit, unit_s) for unit, unit_s, limit_s in limits if length_s < limit_s)
        return _Clock(Axis(f"wall-clock ({unit})", from_zero=True), unit_s)

    def __call__(self, sample: Sample) -> float:
        return sample.time_s / self.unit_s


def _at(tree: dict[str, Any], section: str, key: str) -> Any:
    part = tree.get(section)
    return part.get(key) if isinstance(part, dict) else None


def _parse_config(text: str) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError:
        tree = None
    return tree if isinstance(tree, dict) else {}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
