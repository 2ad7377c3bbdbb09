"""The `shoal` command. Each subcommand has a file of its own; this one turns errors into one line.

Exit codes: 2 for the user's mistakes (one line on stderr, no traceback), otherwise what the subcommand says.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shoal import __version__
from shoal.cli.docker.chaos import chaos
from shoal.cli.docker.down import down
from shoal.cli.docker.logs import logs
from shoal.cli.docker.ps import ps
from shoal.cli.docker.scale import scale
from shoal.cli.docker.up import up
from shoal.cli.envs import envs
from shoal.cli.eval import evaluate
from shoal.cli.export import export
from shoal.cli.replay import replay
from shoal.cli.report import report
from shoal.cli.say import complain, say
from shoal.cli.train import train
from shoal.errors import ShoalError, UserError

# Base class of typer's complaints about arguments; not every version of typer has a public name for it.
USAGE_ERROR: Any = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="shoal",
    help="Distributed deep reinforcement learning made of four gRPC services.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(train)
app.command()(report)
app.command("eval")(evaluate)
app.command()(export)
app.add_typer(replay, name="replay")
app.add_typer(envs, name="envs")
for command in (up, down, scale, ps, logs, chaos):
    app.command(rich_help_panel="Containers")(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def run(arguments: list[str]) -> int:
    """The exit code for these arguments."""
    try:
        code = app(arguments or ["--help"], prog_name="shoal", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except UserError as error:
        return _complain(str(error), 2)
    except ShoalError as error:
        return _complain(str(error), 1)
    except USAGE_ERROR as error:
        return _complain(error.format_message(), 2)
    except OSError as error:
        return _complain(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        return 130


def _complain(message: str, code: int) -> int:
    complain(f"error: {' '.join(message.split())}")
    return code
