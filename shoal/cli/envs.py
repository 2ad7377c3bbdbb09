"""`shoal envs check`: whether an environment works with shoal, how fast, and in which vectorisation.

The work is in `shoal.cli.env_check`, the texts are in `shoal.cli.env_report`; both are imported when they are
needed: the other commands start faster without environments and NumPy.
"""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.cli.presets import resolve
from shoal.cli.say import say
from shoal.config import load_config

envs = typer.Typer(help="Look at environments.", invoke_without_command=True)


@envs.callback()
def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        say(context.get_help())


@envs.command()
def check(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV",
            help="What env.id takes (CartPole-v1, mine.py:make, envpool:Pong-v5), a preset or a .yaml file.",
        ),
    ],
    num_envs: Annotated[int, typer.Option("--envs", min=1, help="Environments to step at once.")] = 16,
    seconds: Annotated[float, typer.Option(min=0.01, help="Time to step in each vectorisation.")] = 2.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the environments.")] = 1,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any config value; repeatable.")
    ] = None,
) -> None:
    """Step an environment with random actions: its spec, its speed in each vectorisation, what is odd.

    Exit codes: 0 it works, 1 it broke or hung while it was stepped, 2 your mistake.
    """
    from shoal.cli.env_check import check_env
    from shoal.cli.env_report import report, shown_progress

    target = resolve(env)
    section = load_config(target.file, [*target.overrides, *(set_ or [])]).env
    with shown_progress() as progress:
        found = check_env(section, num_envs, seconds, seed, progress)
    for line in report(found):
        say(line)
    raise typer.Exit(0 if found.is_sound else 1)
