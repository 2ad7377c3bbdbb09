"""What kind of task an environment is, and which algorithm suits it. For `shoal train`, before it starts.

A process of its own makes the environment once (`shoal.envs.probe`) and says what it shows and takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Seen:
    """What one environment shows and takes, by policy, and how many slots of each it has."""

    specs: Mapping[str, EnvSpec]
    num_slots: Mapping[str, int]

    @property
    def task(self) -> Task:
        """All policies of a run are trained by one algorithm: the first one's actions stand for all."""
        specs = list(self.specs.values())
        return Task(
            action=action_kind(specs[0]),
            has_images=any(has_images(spec.observation) for spec in specs),
            num_agents=max(self.num_slots.values()),
        )


def look_at(section: EnvSection) -> Seen:
    """Makes the environment once, elsewhere. Raises UserError with what is wrong with it."""
    reading, writing = os.pipe()
    command = [sys.executable, *interpreter_flags(), "-m", "shoal.envs.probe", str(writing)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[writing],
        text=True,
    )
    os.close(writing)
    with os.fdopen(reading) as answers:
        try:
            _, said = process.communicate(section.model_dump_json(), timeout=PROBE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise UserError(
                f"environment {section.id!r} was not made within {PROBE_TIMEOUT_S:.0f} s: "
                f"`shoal envs check {section.id}` shows what it does"
            ) from None
        answer = answers.read()
    if not answer:
        last = said.strip().splitlines()[-1:] or ["no message"]
        raise UserError(
            f"environment {section.id!r} ended its process with code {process.returncode} while it was "
            f"made: {last[0]}"
        )
    return _seen(json.loads(answer))


def _seen(answer: dict[str, object]) -> Seen:
    if "error" in answer:
        raise UserError(str(answer["error"]))
    policies = answer["policies"]
    assert isinstance(policies, dict)
    return Seen(
        {name: spec_from_json(policy["spec"]) for name, policy in policies.items()},
        {name: policy["num_slots"] for name, policy in policies.items()},
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
