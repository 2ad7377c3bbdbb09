"""`shoal ps`: the containers of the project in a table, and how training goes if Prometheus knows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shoal.cli.docker.containers import Container, names, published_at
from shoal.cli.docker.options import PROJECT, Project
from shoal.cli.docker.options import Prometheus as PrometheusAddress
from shoal.cli.docker.prometheus import DEFAULT_ADDRESS, PORT, Prometheus, PrometheusError

if TYPE_CHECKING:
    from rich.table import Table

# Wide enough for all columns where no terminal says how wide it is.
PLAIN_WIDTH = 160
STEPS_PER_S = "sum(rate(shoal_learner_env_steps_total[1m]))"
RETURN_MEAN = "avg(shoal_learner_episode_return_mean)"
UNTRAINED_MEAN = "avg(shoal_learner_untrained_return_mean and shoal_learner_untrained_episodes > 0)"
STARVATION = "avg(shoal:learner_starvation:ratio)"


def ps(project: Project = PROJECT, prometheus: PrometheusAddress = None) -> None:
    """List the containers of the project: state, health, restarts, addresses; and how fast the learner is.

    Exit codes: 0 listed, 2 your mistake, or the project is not there.
    """
    from rich.console import Console

    from shoal.cli.docker.engine import Project as Containers
    from shoal.errors import UserError

    with Containers.open("shoal ps", project) as engine:
        containers = engine.containers()
    if not containers:
        raise UserError(
            f"project {project} is not there: start it with `shoal up`, or name another with --project"
        )
    console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)
    console.print(table(containers, datetime.now(UTC)))
    server = Prometheus(address_of(containers, prometheus))
    console.print(training(server), markup=False)


def address_of(containers: Sequence[Container], given: str | None) -> str:
    """Of Prometheus: as told, or as the project publishes it."""
    return given or published_at(containers, "prometheus", PORT) or DEFAULT_ADDRESS


def training(server: Prometheus) -> str:
    """One line of figures, or why there are none."""
    try:
        speed, mean = server.value(STEPS_PER_S), server.value(RETURN_MEAN)
        untrained, starvation = server.value(UNTRAINED_MEAN), server.value(STARVATION)
    except PrometheusError:
        return f"learner: no figures, Prometheus does not answer at {server.address}"
    if speed is None:
        return f"learner: no figures yet in Prometheus at {server.address}"
    parts = [f"{speed:,.0f} env steps/s"]
    if mean is not None:
        beside = "" if untrained is None else f" (untrained {untrained:,.1f})"
        parts.append(f"mean return {mean:,.1f}{beside}")
    if starvation is not None:
        parts.append(f"waits for data {100 * starvation:.0f} % of its time")
    return f"learner: {', '.join(parts)}"


def table(containers: Sequence[Container], now: datetime) -> Table:
    from rich.table import Table
    from rich.text import Text

    found = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in ("container", "state", "health", "restarts", "since", "address"):
        found.add_column(column, no_wrap=True)
    called = names(containers)
    for each in containers:
        colour = "green" if each.is_up else "yellow" if each.is_running else "red"
        state = each.condition.partition(",")[0]
        found.add_row(
            called[each.id],
            Text(state, style=colour),
            each.health or "-",
            Text(str(each.num_restarts), style="red" if each.num_restarts else ""),
            since(each, now),
            ", ".join(each.published.values()) or "-",
        )
    return found


def since(container: Container, now: datetime) -> str:
    """How long it has been running, roughly."""
    if not container.is_running or container.started_at is None:
        return "-"
    seconds = max(int((now - container.started_at).total_seconds()), 0)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
