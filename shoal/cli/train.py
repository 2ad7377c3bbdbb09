"""`shoal train`: the whole system on this machine, from one command.

Turns the arguments into one configuration; `shoal.cli.session` runs it. The exit codes stand in `--help`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.algorithms.profiles import PROFILES
from shoal.cli import presets
from shoal.cli.presets import Target, resolve
from shoal.cli.requirements import require
from shoal.cli.run_dir import RunDir, default_root
from shoal.cli.say import say
from shoal.cli.session import run_session
from shoal.config import Config
from shoal.config.load import Layers, load_layers
from shoal.config.trainable import check_launched, check_trainable
from shoal.errors import UserError

if TYPE_CHECKING:
    from shoal.cli.task import Seen


def train(
    what: Annotated[
        str | None, typer.Argument(metavar="[WHAT]", help="A preset, an env id or a .yaml file.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Go on with the run in this directory, from its newest checkpoint and with its saved "
            "configuration; what is set besides is saved too.",
        ),
    ] = None,
    algo: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"The algorithm: {', '.join(PROFILES)}. ppo unless you say."),
    ] = None,
    actors: Annotated[int | None, typer.Option(help="Actor processes.")] = None,
    envs_per_actor: Annotated[int | None, typer.Option(help="Environments per actor.")] = None,
    evaluators: Annotated[int | None, typer.Option(help="Evaluators: greedy, nothing stored.")] = None,
    inference: Annotated[int | None, typer.Option(help="Inference replicas.")] = None,
    learners: Annotated[int | None, typer.Option(help="Learners, which train together.")] = None,
    replay_shards: Annotated[int | None, typer.Option(help="Replay shards.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seeds environments, weights and actions.")] = None,
    until_return: Annotated[float | None, typer.Option(help="Stop at this mean of 100 episodes.")] = None,
    steps: Annotated[int | None, typer.Option(help="Stop after this many env steps of the run.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Stop after this much wall-clock time.")] = None,
    run_dir: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Directory of a new run, runs/NAME-TIME by default. See also --resume."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any config value; repeatable.")
    ] = None,
    wandb: Annotated[
        bool, typer.Option("--wandb", help="Also send learning curves to Weights & Biases.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live view.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the effective configuration, and what each value comes from."),
    ] = False,
) -> None:
    """Train on this machine: starts actors, inference, replay and learner, and shows how it goes.

    Exit codes: 0 finished or out of time, 1 given up after too many crashes,
    2 for you to mend (a mistake, a guard, a full disk);
    stopped: 130 by SIGINT (Ctrl-C), 143 by SIGTERM, 129 by SIGHUP.
    """
    target = _target(what, resume, run_dir)
    flags = {
        "algorithm.name": algo,
        "launch.actors": actors,
        "actor.envs": envs_per_actor,
        "launch.evaluators": evaluators,
        "launch.inference": inference,
        "launch.learners": learners,
        "launch.replay_shards": replay_shards,
        "run.seed": seed,
        "stop.until_return": until_return,
        "stop.steps": steps,
        "stop.minutes": minutes,
        "run.dir": run_dir,
        "run.wandb": wandb or None,
    }
    given = [f"{key}={json.dumps(value)}" for key, value in flags.items() if value is not None]
    layers = layers_of(target, [*given, *(set_ or [])])
    config, seen = settle(layers, target, will_run=not dry_run)
    check_trainable(config)
    check_launched(config)
    _check_run_dir(config, resume)
    if dry_run:
        for line in origin_lines(layers.origins(config, None if seen is None else seen.task)):
            say(line)
        return
    # Instead of after three crashes of the learner.
    require("training", ("torch", "safetensors"), "learner,inference")
    if config.run.wandb:
        require("run.wandb", ("wandb",), "wandb")
    raise typer.Exit(run_session(config, plain=plain, untrained={} if seen is None else seen.returns))


def _target(what: str | None, resumed: str | None, run_dir: str | None) -> Target:
    if run_dir == "":
        raise UserError("--run-dir is empty: give a directory, or leave it out for runs/NAME-TIME")
    if resumed is None:
        if what is None:
            raise UserError("give WHAT to train (a preset, an env id or a .yaml file), or --resume RUN")
        return resolve(what)
    if what is not None or run_dir is not None:
        given = f"WHAT ({what})" if what is not None else "--run-dir"
        raise UserError(f"--resume goes on with a run as it is: leave out {given}, change values with --set")
    return presets.resume(Path(resumed))


def _check_run_dir(config: Config, resumed: str | None) -> None:
    """One way to go on with a run: it is never continued by chance, with another configuration."""
    root = config.run.dir
    if resumed is not None:
        if root.absolute() != Path(resumed).absolute():
            raise UserError(f"--resume {resumed}: run.dir cannot be set to {root}; copy the run instead")
    elif RunDir(root).has_checkpoints:
        raise UserError(
            f"{root} holds a run that has checkpoints: go on with it by --resume {root}, or choose another "
            "directory with --run-dir"
        )


def layers_of(target: Target, overrides: Sequence[str]) -> Layers:
    """Later overrides win."""
    return load_layers(target.file, [*target.overrides, *overrides])


def settle(layers: Layers, target: Target, *, will_run: bool) -> tuple[Config, Seen | None]:
    """The effective configuration, and what the environment is like, if that had to be looked at."""
    config = layers.config()
    if target.is_complete:
        return _at_home(config, target), None
    # NumPy, for those who need it.
    from shoal.cli.task import PLAY_S, check_fits, introduction, look_at

    seen = look_at(config.env, play_s=PLAY_S if will_run else 0.0)
    algorithm = config.algorithm.name
    check_fits(algorithm, seen)
    was_named = "name" in layers.merged().get("algorithm", {})
    say(introduction(algorithm, seen, was_named))
    return _at_home(layers.config(seen.task), target), seen


def origin_lines(origins: Iterable[tuple[str, object, str]]) -> Iterator[str]:
    """`key: value  # origin`, one under the other."""
    rows = [(f"{key}: {json.dumps(value)}", origin) for key, value, origin in origins]
    width = min(60, max(len(text) for text, _ in rows))
    for text, origin in rows:
        yield f"{text:<{width}}  # {origin}"


def _at_home(config: Config, target: Target) -> Config:
    """With the run's name and directory settled."""
    given = config.run.model_fields_set
    name = config.run.name if "name" in given else target.name
    root = config.run.dir if "dir" in given else default_root(name)
    run = config.run.model_copy(update={"name": name, "dir": root})
    return config.model_copy(update={"run": run})
