"""`shoal replay`: what replay shards hold and did (`stats`), what stands in their files (`dump`, `verify`).

Nothing here changes anything. `stats` asks running shards; the other two read files, of a shard that runs or
of one that is down. The work is in `shoal.cli.replay_stats` and `shoal.cli.replay_files`, imported when it is
needed: the other commands start faster without gRPC and NumPy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.live_run import find_run
from shoal.cli.say import say
from shoal.config import Config, load_config
from shoal.errors import UserError

replay = typer.Typer(help="Look into replay shards and their files.", invoke_without_command=True)

Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="Files of a shard or of one table, such as RUN_DIR/replay/ID.")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]


@replay.callback()
def _help(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        say(context.get_help())


@replay.command()
def stats(
    run_dir: Annotated[
        Path | None, typer.Argument(metavar="RUN_DIR", help="Directory of a run that goes on here.")
    ] = None,
    address: Annotated[
        list[str] | None, typer.Option(help="A shard: host:port or unix:/path; repeatable.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Config file with addresses, token and TLS.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any config value; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what every shard holds, and check that every item is accounted for.

    Without RUN_DIR and --address the shards are those of the configuration: addresses.replay.
    The token comes from there too, or from SHOAL__SECURITY__TOKEN.

    Exit codes: 0 all accounted for, 1 not, or a shard did not answer, 2 your mistake.
    """
    from shoal.cli.replay_stats import ask_shards, is_well, lines, record

    found = ask_shards(_stats_config(run_dir, address or [], config, set_ or []))
    if as_json:
        say(json.dumps(record(found), indent=2))
    else:
        for line in lines(found):
            say(line)
    raise typer.Exit(0 if is_well(found) else 1)


@replay.command()
def dump(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object per line.")] = False,
    limit: Annotated[int | None, typer.Option(min=0, help="Stop after this many items.")] = None,
) -> None:
    """List the items that stand in a shard's files, one a line; what is damaged is passed over.

    Items that were evicted or sampled out are listed too, as long as their file is there.
    The priority is the newest one in the files.
    """
    from shoal.cli.replay_files import HEADER, items

    found = items(directory, limit)
    if not as_json:
        say(HEADER)
    for item in found:
        say(item.as_json() if as_json else item.as_line())


@replay.command()
def verify(directory: Directory, as_json: AsJson = False) -> None:
    """Check the CRC of every frame and payload in a shard's files.

    A file that ends within a frame is sound: so it is with a shard that was killed, or is writing.

    Exit codes: 0 sound, 1 damaged, 2 your mistake.
    """
    from shoal.cli.replay_files import check

    report = check(directory)
    if as_json:
        say(json.dumps(report.record(), indent=2))
    else:
        for line in report.lines():
            say(line)
    raise typer.Exit(0 if report.is_sound else 1)


def _stats_config(run_dir: Path | None, addresses: list[str], file: Path | None, given: list[str]) -> Config:
    """One configuration that says whom to ask and with which token."""
    if run_dir is not None and (addresses or file is not None):
        raise UserError("give a RUN_DIR, or --address and --config, not both")
    overrides = [f"addresses.replay={json.dumps(addresses)}"] if addresses else []
    if run_dir is not None:
        run = find_run(run_dir)
        overrides.append(f"addresses.replay={json.dumps(list(run.replay))}")
        file = run_dir / "config.yaml"
        if run.token_file is not None:
            overrides.append(f"security={json.dumps({'token': None, 'token_file': str(run.token_file)})}")
    return load_config(file, [*overrides, *given])
