"""What kind of task an environment is, and which algorithm suits it. For `shoal train`, before it starts.

A process of its own makes the environment once (`shoal.envs.probe`), says what it shows and takes, and plays
for a moment with random actions: that is what training is compared with.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from shoal.algorithms.profile import ActionKind, Task
from shoal.algorithms.profiles import PROFILES, fitting, sparing
from shoal.cli.plan import interpreter_flags
from shoal.config.tree import EnvSection
from shoal.errors import UserError
from shoal.policy.images import has_images
from shoal.records import BoxAction, DiscreteAction, EnvSpec
from shoal.spec_json import spec_from_json

# Simulators may take long to start, and one that hangs must not hang the command for good.
PROBE_TIMEOUT_S = 120.0
# Nobody wants to wait for this: slow environments are compared with what they show at the start of training.
PLAY_S = 0.5
# For a step that takes longer than that.
PLAY_PATIENCE_S = 2.0
CLOSE_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Seen:
    """What one environment shows and takes, by policy, and how many slots of each it has."""

    specs: Mapping[str, EnvSpec]
    num_slots: Mapping[str, int]
    # Of whole episodes with random actions.
    returns: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def task(self) -> Task:
        """All policies of a run are trained by one algorithm: the first one's actions stand for all."""
        specs = list(self.specs.values())
        return Task(
            action=action_kind(specs[0]),
            has_images=any(has_images(spec.observation) for spec in specs),
            num_agents=max(self.num_slots.values()),
        )


def look_at(section: EnvSection, play_s: float = 0.0) -> Seen:
    """Makes the environment once, elsewhere, and plays in it for so long.

    Raises UserError with what is wrong with it. If only playing fails there are no returns: actors will say
    what it is about.
    """
    reading, writing = os.pipe()
    command = [sys.executable, *interpreter_flags(), "-m", "shoal.envs.probe", str(writing), str(play_s)]
    with tempfile.TemporaryFile("w+") as said, os.fdopen(reading) as answers:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=said,
            pass_fds=[writing],
            text=True,
        )
        os.close(writing)
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin as told:
                told.write(section.model_dump_json())
            answer = _line(answers, PROBE_TIMEOUT_S)
            if answer is None:
                raise UserError(
                    f"environment {section.id!r} was not made within {PROBE_TIMEOUT_S:.0f} s: "
                    f"`shoal envs check {section.id}` shows what it does"
                )
            played = _line(answers, play_s + PLAY_PATIENCE_S) if play_s > 0 else None
            # It closes the environment, which may have processes of its own.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(CLOSE_TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
        if not answer:
            said.seek(0)
            last = said.read().strip().splitlines()[-1:] or ["no message"]
            raise UserError(
                f"environment {section.id!r} ended its process with code {process.returncode} while it was "
                f"made: {last[0]}"
            )
    return _seen(json.loads(answer), json.loads(played or "{}"))


def _line(answers: TextIO, timeout_s: float) -> str | None:
    """The next one; empty if there is no more, None if it does not come in time."""
    ready, _, _ = select.select([answers], [], [], timeout_s)
    return answers.readline() if ready else None


def _seen(answer: dict[str, object], returns: Mapping[str, Sequence[float]]) -> Seen:
    if "error" in answer:
        raise UserError(str(answer["error"]))
    policies = answer["policies"]
    assert isinstance(policies, dict)
    specs = {name: spec_from_json(policy["spec"]) for name, policy in policies.items()}
    # What a policy does at random where actions have no bounds is its own.
    bounded = {name for name, spec in specs.items() if action_kind(spec) != "unbounded_box"}
    return Seen(
        specs,
        {name: policy["num_slots"] for name, policy in policies.items()},
        {name: values for name, values in returns.items() if name in bounded},
    )


def action_kind(spec: EnvSpec) -> ActionKind:
    action = spec.action
    if isinstance(action, DiscreteAction):
        return "discrete"
    if not isinstance(action, BoxAction):
        return "multi_discrete"
    return "unbounded_box" if action.num_unbounded else "box"


def check_fits(algorithm: str, seen: Seen) -> None:
    """Raises UserError if the algorithm cannot take such actions, with those that can."""
    for spec in seen.specs.values():
        names = fitting(action_kind(spec))
        if algorithm not in names:
            needed = " or ".join(_ACTIONS[kind] for kind in sorted(PROFILES[algorithm].actions))
            raise UserError(
                f"{algorithm} needs {needed}, and {spec.env_id} has {spec.action.describe()}: use --algo "
                f"{', '.join(names[:-1])} or {names[-1]}"
            )


_ACTIONS: dict[ActionKind, str] = {
    "discrete": "Discrete actions",
    "multi_discrete": "MultiDiscrete actions",
    "box": "Box actions with finite bounds",
    "unbounded_box": "Box actions",
}


def introduction(algorithm: str, seen: Seen, was_named: bool) -> str:
    """The first line of a run: what the task is, what trains it, and what to type for something else."""
    spec = next(iter(seen.specs.values()))
    shown = "images" if seen.task.has_images else ", ".join(a.describe() for a in spec.observation)
    what = f"{spec.env_id}: {shown} -> {spec.action.describe()}: {algorithm} ({PROFILES[algorithm].summary})"
    if was_named:
        return what
    other = sparing(seen.task.action)
    return f"{what}, as steps are cheap" + (f"; if they are dear: --algo {other}" if other else "")
