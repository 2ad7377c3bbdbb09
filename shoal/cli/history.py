"""history.jsonl: what the monitor saw of a run, one JSON object a line, and never more than a bounded number.

Two kinds of lines: samples (one per poll) and events (a restart, a warning). When there are too many
samples every other one is dropped and from then on only half as many are taken, so that a run of a month
leaves a file as small as one of an hour. Written by the monitor on the event loop, read by the report.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TextIO

from shoal.cli.files import write_whole

MAX_SAMPLES = 2000
MAX_EVENTS = 1000

# Role -> phase -> seconds.
PhaseSeconds = dict[str, dict[str, float]]
# Policy -> figure -> value, as far as known. Figures: episode_return, untrained_return, evaluation_return,
# loss, env_steps.
PolicyFigures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Sample:
    """The run at one moment. None: not known (yet). Rates are means over the last ten seconds.

    Of several policies, steps and rates are those of all together, returns are the highest and the version is
    the newest; `policies` has each for itself. Of one it is empty.
    """

    time_s: float
    env_steps: int | None = None
    episode_return: float | None = None
    # Of the episodes that began with the untrained policy: the same policy's as `episode_return`.
    untrained_return: float | None = None
    evaluation_return: float | None = None
    env_steps_per_s: float | None = None
    trained_steps_per_s: float | None = None
    # How often an environment step was trained on, in the mean over the run so far.
    samples_per_step: float | None = None
    learner_waiting: float | None = None
    inference_batch: float | None = None
    inference_latency_ms: float | None = None
    replay_items: int | None = None
    replay_fill: float | None = None
    policy_lag: float | None = None
    policy_version: int | None = None
    effective_batch: int | None = None
    num_restarts: int = 0
    # Both grow over the whole run: seconds by role and phase, and the work that each process has done.
    phases: PhaseSeconds = field(default_factory=dict)
    load: dict[str, float] = field(default_factory=dict)
    policies: PolicyFigures = field(default_factory=dict)
    # Guards of the learner that warn at this moment; of several policies as `policy: guard`.
    guards: list[str] = field(default_factory=list)


def with_result(sample: Sample, result: Mapping[str, Any]) -> Sample:
    """The sample with the figures that the learner ended with."""
    ended: Mapping[str, Mapping[str, Any]] = result.get("policies", {})
    if not ended:
        return replace(
            sample,
            episode_return=result["mean_return"],
            untrained_return=result.get("untrained_return", sample.untrained_return),
            env_steps=result["env_steps"],
        )
    policies = {name: dict(figures) for name, figures in sample.policies.items()}
    for name, record in ended.items():
        keys = {
            "episode_return": "mean_return",
            "untrained_return": "untrained_return",
            "env_steps": "env_steps",
        }
        last = {figure: record.get(key) for figure, key in keys.items()}
        policies.setdefault(name, {}).update({key: value for key, value in last.items() if value is not None})
    finished = [figures for figures in policies.values() if "episode_return" in figures]
    highest = max(finished, key=lambda figures: figures["episode_return"], default={})
    steps = sum(int(figures.get("env_steps", 0)) for figures in policies.values())
    return replace(
        sample,
        episode_return=highest.get("episode_return"),
        untrained_return=highest.get("untrained_return"),
        env_steps=steps,
        policies=policies,
    )


@dataclass(frozen=True)
class Event:
    """Something worth telling that happened `time_s` into the run."""

    time_s: float
    text: str


class History:
    """The samples and events of one run, in memory and on disk."""

    def __init__(self, path: Path, *, max_samples: int = MAX_SAMPLES) -> None:
        self._path = path
        self._max_samples = max_samples
        self.samples, self.events = read_history(path)
        self._interval_s = self.last_time_s / max_samples if len(self.samples) > max_samples // 2 else 0.0
        self._skipped: Sample | None = None
        self._file = _open_for_append(path)

    @property
    def last_time_s(self) -> float:
        """How long the run has lasted, over all its sessions."""
        last = [*(s.time_s for s in self.samples[-1:]), *(e.time_s for e in self.events[-1:])]
        return max(last, default=0.0)

    def add(self, sample: Sample) -> None:
        if self.samples and sample.time_s - self.samples[-1].time_s < self._interval_s:
            self._skipped = sample
            return
        self._skipped = None
        self.samples.append(sample)
        self._write(sample)
        if len(self.samples) > self._max_samples:
            self._thin()

    def add_event(self, event: Event) -> None:
        self.events.append(event)
        self._write(event)
        if len(self.events) > MAX_EVENTS:
            del self.events[: MAX_EVENTS // 2]

    def close(self) -> None:
        """Writes the last sample even if it was to be skipped."""
        if self._skipped is not None:
            self.samples.append(self._skipped)
            self._write(self._skipped)
            self._skipped = None
        self._file.close()

    def _thin(self) -> None:
        self.samples = self.samples[::2]
        self._interval_s = max(2 * self._interval_s, 2 * self.last_time_s / self._max_samples)
        entries: list[Sample | Event] = [*self.samples, *self.events]
        entries.sort(key=lambda entry: entry.time_s)
        write_whole(self._path, "".join(map(_to_line, entries)).encode())
        self._file.close()
        self._file = _open_for_append(self._path)

    def _write(self, entry: Sample | Event) -> None:
        self._file.write(_to_line(entry))
        self._file.flush()


def read_history(path: Path) -> tuple[list[Sample], list[Event]]:
    """All that is readable: a torn last line of a killed run is left out."""
    samples: list[Sample] = []
    events: list[Event] = []
    try:
        lines: Iterable[str] = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = ()
    for line in lines:
        try:
            record = json.loads(line)
            if "text" in record:
                events.append(_build(Event, record))
            else:
                samples.append(_build(Sample, record))
        except (ValueError, TypeError):
            continue
    return samples, events


def _open_for_append(path: Path) -> TextIO:
    return open(path, "a", encoding="utf-8")


def _to_line(entry: Sample | Event) -> str:
    record = {key: value for key, value in asdict(entry).items() if value is not None}
    return json.dumps(record, allow_nan=False, default=str) + "\n"


def _build(kind: type[Any], record: dict[str, Any]) -> Any:
    """Fields that this version does not know are left out."""
    known = {f.name for f in fields(kind)}
    return kind(**{key: value for key, value in record.items() if key in known})
