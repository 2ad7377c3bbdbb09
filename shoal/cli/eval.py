"""`shoal eval`: how well a run's policies play, over a fixed number of episodes.

The work is in `shoal.cli.eval_session` and `shoal.cli.video`, imported when it is needed: the other commands
start faster without torch and NumPy.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.requirements import require
from shoal.cli.say import say

# Some simulators take seeds of 31 bits only, and environments count on from it.
MAX_SEED = 1 << 30

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
Checkpoint = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A checkpoint such as 000007-step-1234, `best`, or `newest`, the default; of several policies "
        "POLICY=NAME, repeatable.",
    ),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any config value; repeatable.")
]


def evaluate(
    run: Run,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes, spread evenly over the envs.")] = 100,
    sampled: Annotated[
        bool, typer.Option("--sampled", help="Actions as the policy draws them, not the most likely ones.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, max=MAX_SEED, help="Of envs and draws; the run's by default.")
    ] = None,
    envs: Annotated[int, typer.Option(min=1, help="Environments side by side.")] = 8,
    checkpoint: Checkpoint = None,
    video: Annotated[
        Path | None, typer.Option(metavar="FILE.mp4", help="Also film one environment; see --video-episodes.")
    ] = None,
    video_episodes: Annotated[int, typer.Option(min=1, help="Episodes to film.")] = 1,
    set_: Set = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Play a number of episodes with a run's newest checkpoint and show the scores.

    Environment, wrappers and preprocessing are those that the run trained with; nothing is explored.
    The scores are also written to RUN/eval-CHECKPOINT.json.

    Exit codes: 0 done, 2 your mistake.
    """
    require("shoal eval", ("torch", "safetensors"), "inference")
    from shoal.cli.eval_session import Session
    from shoal.cli.saved_run import open_run

    saved = open_run(run, checkpoint or [], set_ or [])
    if seed is None:
        seed = saved.config.run.seed % MAX_SEED
    session = Session(saved, greedy=not sampled, seed=seed)
    film = session.film(video, video_episodes) if video is not None else None
    found = session.play(episodes, min(envs, episodes))
    record = found.record() | ({"video": film.record()} if film is not None else {})
    if as_json:
        say(json.dumps(record, indent=2))
    else:
        for line in (*found.lines(), *(film.lines() if film is not None else ())):
            say(line)
    path = found.write(record)
    if not as_json:
        say(f"written to {path}")
