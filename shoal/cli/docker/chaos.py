"""`shoal chaos`: what it costs when actors are taken away, as spot markets do. `chaos_session` does it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from shoal.cli.docker.options import PROJECT, Project
from shoal.cli.docker.options import Prometheus as PrometheusAddress
from shoal.cli.docker.spot import SpotPlan, notice_s
from shoal.cli.say import say
from shoal.errors import UserError

# Without a terminal: a line of progress now and then.
PLAIN_EVERY_S = 10.0


def chaos(
    spot: Annotated[
        bool, typer.Option("--spot", help="Kill actors at a rate, and let replacements come.")
    ] = False,
    every: Annotated[float, typer.Option(metavar="S", help="Seconds from one round to the next.")] = 30.0,
    fraction: Annotated[
        float, typer.Option(help="Share of the actors that a round kills; one stays unless it is 1.")
    ] = 0.5,
    minutes: Annotated[float, typer.Option(help="How long the storm lasts.")] = 5.0,
    notice: Annotated[
        str,
        typer.Option(metavar="S", help="Seconds from SIGTERM to SIGKILL, or gke, azure, aws; 0: none."),
    ] = "0",
    back_after: Annotated[float, typer.Option(metavar="S", help="A replacement comes after this.")] = 5.0,
    calm: Annotated[float, typer.Option(metavar="S", help="Seconds measured before, and after.")] = 30.0,
    seed: Annotated[int | None, typer.Option(help="Of the choice of victims.")] = None,
    min_kept: Annotated[
        float | None, typer.Option(help="Exit code 1 if the learner keeps less of its speed, or restarts.")
    ] = None,
    json_: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures there, too.")
    ] = None,
    prometheus: PrometheusAddress = None,
    project: Project = PROJECT,
) -> None:
    """Kill actors of the running project again and again, and tell what it cost the learner.

    Nothing is done for --calm seconds before the storm and after it: that is what it is compared with. Ctrl-C
    ends it early; actors that were killed are started again in any case.

    Exit codes: 0 done, 1 kept less than --min-kept, 2 your mistake, 130 Ctrl-C.
    """
    if not spot:
        raise UserError("say what is to happen: `shoal chaos --spot` kills actors as spot markets do")
    _check("--every", every, 1, 86400)
    _check("--fraction", fraction, 0.001, 1)
    _check("--minutes", minutes, 0.05, 1440)
    _check("--back-after", back_after, 0, 86400)
    _check("--calm", calm, 1, 3600)
    if min_kept is not None:
        _check("--min-kept", min_kept, 0, 10)
    if json_ is not None and not json_.absolute().parent.is_dir():
        raise UserError(f"--json {json_}: there is no folder {json_.parent}")
    plan = SpotPlan(every, fraction, notice_s(notice), back_after)

    from shoal.cli.docker.chaos_session import Session
    from shoal.cli.docker.engine import Project as Containers
    from shoal.cli.docker.interrupt import Interrupt
    from shoal.cli.docker.progress import Progress
    from shoal.cli.docker.prometheus import Prometheus
    from shoal.cli.docker.ps import address_of
    from shoal.cli.files import write_whole

    with Containers.open("shoal chaos", project) as engine:
        server = Prometheus(address_of(engine.running(), prometheus))
        with Progress(plain_every_s=PLAIN_EVERY_S) as progress, Interrupt() as interrupt:
            report = Session(engine, server, plan, Random(seed), progress, interrupt).run(calm, 60 * minutes)
    if report is None:
        raise typer.Exit(interrupt.exit_code)
    if json_ is not None:
        write_whole(json_, (json.dumps(report.record(), indent=2) + "\n").encode())
    for line in report.lines():
        say(line)
    raise typer.Exit(interrupt.exit_code or (0 if report.keeps(min_kept) else 1))


def _check(option: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise UserError(f"{option} {value:g}: give a number from {low:g} to {high:g}")
