"""What `shoal envs check` prints: the spec, the speeds, what is odd, and the lines for the config file.

Text building only, except for `shown_progress`, which draws on stderr while the user waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from shoal.cli.charts import short
from shoal.cli.env_check import LARGE_OBSERVATION, LARGE_REWARD, Check, Measurement
from shoal.cli.env_check import Progress as Tell
from shoal.records import ACTION_MASK, DEFAULT_POLICY

MAX_FAULTS_SHOWN = 5
# Steps of each environment after which it is odd that something did not happen.
MANY_CALLS = 1000


@contextmanager
def shown_progress() -> Iterator[Tell]:
    """A bar on a terminal, nothing elsewhere; gone when the work is done."""
    columns = (TextColumn("stepping: {task.description}"), BarColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda share, text: bar.update(task, completed=share, description=text)


def report(check: Check) -> Iterator[str]:
    """All lines, in order."""
    yield from _lines(_spec_table(check))
    yield ""
    yield from _lines(_speed_table(check))
    for warning in warnings(check):
        yield f"warning: {warning}"
    yield ""
    yield f"Use {check.best.mode}:"
    yield ""
    yield from advice(check).splitlines()


def warnings(check: Check) -> Iterator[str]:
    """What a user should know before training."""
    yield from check.faults[:MAX_FAULTS_SHOWN]
    if len(check.faults) > MAX_FAULTS_SHOWN:
        yield f"and {len(check.faults) - MAX_FAULTS_SHOWN} more reports of this kind"
    for measurement in check.measurements:
        if measurement.error:
            yield f"{measurement.mode} does not work: {measurement.error}"
    yield from _oddities(check.best)


def advice(check: Check) -> str:
    """The lines for the config file."""
    given = check.section.model_dump(mode="json", exclude_defaults=True)
    env: dict[str, Any] = {"id": check.section.id, **given, "vectorization": check.best.mode}
    text: str = yaml.safe_dump({"env": env}, sort_keys=False)
    return text


def _oddities(found: Measurement) -> Iterator[str]:
    if not found.repeats and not found.num_restarts:
        yield "the same seed and the same actions did not show the same twice: runs cannot be repeated"
    largest = max(abs(found.min_reward), abs(found.max_reward))
    if largest > LARGE_REWARD:
        yield (
            f"rewards went from {found.min_reward:g} to {found.max_reward:g}: "
            "scale them, by algorithm.reward_scale or a wrapper"
        )
    elif largest == 0 and found.num_calls >= MANY_CALLS:
        yield "no reward other than 0 was seen with random actions: learning will need exploration"
    for name, value in found.max_observation.items():
        if value > LARGE_OBSERVATION:
            yield f"{name} reached {value:g}: scale it by a wrapper, networks learn badly from large inputs"
    if not found.num_episodes and found.num_calls >= MANY_CALLS:
        yield (
            f"no episode ended within {found.num_calls:,} steps: returns are only known at the end of one; "
            "a time limit is the wrapper gymnasium.wrappers:TimeLimit with max_episode_steps"
        )


def _spec_table(check: Check) -> Table:
    table = Table(title=next(iter(check.slots.values())).spec.env_id, title_justify="left")
    num_slots = sum(slots.num for slots in check.slots.values())
    has_agents = list(check.slots) != [DEFAULT_POLICY] or num_slots != check.num_envs
    if has_agents:
        table.add_column("policy")
        table.add_column("agents", justify="right")
    for column in ("array", "dtype", "shape", ""):
        table.add_column(column)
    for policy, slots in check.slots.items():
        who = [policy, f"{slots.num // check.num_envs}"] if has_agents else []
        for array in slots.spec.observation:
            note = "allowed actions" if array.name == ACTION_MASK else ""
            if array.num_categories:
                note = f"{array.num_categories} categories"
            table.add_row(*who, array.name, array.dtype, str(list(array.shape)), note)
        action = slots.spec.action
        array = action.array_spec()
        text = action.describe()
        table.add_row(*who, array.name, array.dtype, str(list(array.shape)), text, end_section=True)
    return table


def _speed_table(check: Check) -> Table:
    table = Table()
    table.add_column("mode")
    for column in ("envs", "steps/s", "episodes", "mean length", "mean return", "restarts"):
        table.add_column(column, justify="right")
    for found in check.measurements:
        num = found.num_episodes
        table.add_row(
            found.mode,
            f"{check.num_envs:,}",
            short(float(f"{found.steps_per_s:.3g}")) if found.num_steps else "-",
            f"{num:,}",
            f"{found.sum_lengths / num:,.1f}" if num else "-",
            f"{found.sum_returns / num:,.2f}" if num else "-",
            f"{found.num_restarts}",
        )
    return table


def _lines(table: Table) -> list[str]:
    console = Console()
    with console.capture() as capture:
        console.print(table)
    return capture.get().rstrip("\n").split("\n")
