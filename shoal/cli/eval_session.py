"""One evaluation: the run's environment and policies, the episodes, and what is said of them.

Used by `shoal eval` only, which imports it when it is needed. One thread; a bar on stderr shows how it goes.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal import __version__
from shoal.cli.files import write_whole
from shoal.cli.saved_run import SavedRun
from shoal.config.tree import EnvSection
from shoal.envs.batch import BatchEnv
from shoal.envs.make import make_batch_env
from shoal.envs.previous import show_previous
from shoal.errors import UserError
from shoal.evaluation import Player, Scores, play_episodes

if TYPE_CHECKING:
    from shoal.cli.video import Film

_COLUMNS = ("policy", "episodes", "mean return", "median", "min", "max", "mean length")


@dataclass(frozen=True)
class Found:
    """Scores of all policies, and how they came about."""

    saved: SavedRun
    greedy: bool
    seed: int
    num_envs: int
    scores: Mapping[str, Scores]
    num_restarts: int
    seconds: float

    def record(self) -> dict[str, Any]:
        checkpoints = self.saved.checkpoints
        return {
            "shoal": __version__,
            "run": str(self.saved.root),
            "env": self.saved.config.env.id,
            "checkpoints": {policy: found.path.name for policy, found in checkpoints.items()},
            "greedy": self.greedy,
            "seed": self.seed,
            "num_envs": self.num_envs,
            "num_restarts": self.num_restarts,
            "seconds": round(self.seconds, 3),
            "policies": {
                policy: scores.summary()
                | {
                    "returns": [episode.episode_return for episode in scores.episodes],
                    "lengths": [episode.num_steps for episode in scores.episodes],
                }
                for policy, scores in self.scores.items()
            },
        }

    def lines(self) -> Iterator[str]:
        how = "greedy" if self.greedy else "sampled"
        envs = "1 environment" if self.num_envs == 1 else f"{self.num_envs} environments"
        yield f"{self.saved.config.env.id}, {how}, seed {self.seed}, {envs}, {self.seconds:.1f} s"
        for policy, checkpoint in self.saved.checkpoints.items():
            steps = checkpoint.progress.get("env_steps", 0)
            whose = f" of {policy}" if len(self.scores) > 1 else ""
            yield f"checkpoint{whose} {checkpoint.path.name}, after {steps:,} environment steps"
        rows = [_row(policy, scores) for policy, scores in self.scores.items()]
        widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
        for name, *figures in (_COLUMNS, *rows):
            right = (figure.rjust(width) for figure, width in zip(figures, widths[1:], strict=True))
            yield "  ".join((name.ljust(widths[0]), *right))
        if self.num_restarts:
            yield (
                f"{self.num_restarts} environments broke and were started again: the episodes that they were "
                "in are not counted"
            )

    def write(self, record: dict[str, Any]) -> Path:
        """Puts the record in place as a whole. Raises UserError."""
        path = self.saved.root / f"eval-{self.saved.name}{'' if self.greedy else '-sampled'}.json"
        try:
            write_whole(path, (json.dumps(record, indent=2) + "\n").encode())
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from None
        return path


class Session:
    """The policies of a saved run at play."""

    def __init__(self, saved: SavedRun, *, greedy: bool, seed: int) -> None:
        self._saved = saved
        self._greedy = greedy
        self._seed = seed

    def play(self, num_episodes: int, num_envs: int) -> Found:
        """Raises UserError."""
        env = self._make(self._saved.config.env, num_envs)
        try:
            players = self._players(env)
            start_s = time.perf_counter()
            with _bar(num_episodes * sum(s.num for s in env.slots.values()) // num_envs) as on_step:
                scores = play_episodes(env, players, num_episodes, num_envs, self._seed, on_step)
        finally:
            env.close()
        return Found(
            self._saved,
            self._greedy,
            self._seed,
            num_envs,
            scores,
            env.num_restarts,
            time.perf_counter() - start_s,
        )

    def film(self, path: Path, num_episodes: int) -> Film:
        """Raises UserError, also if the environment cannot be filmed."""
        from shoal.cli.video import film

        return film(self._saved.config.env, self._make, self._players, path, num_episodes, self._seed)

    def _make(self, section: EnvSection, num_envs: int) -> BatchEnv:
        """Environments that show what the policies were trained on, which the checkpoints know best."""
        env = make_batch_env(section, num_envs)
        was_shown = any(checkpoint.env_spec.shows_previous for checkpoint in self._saved.checkpoints.values())
        return show_previous(env) if was_shown else env

    def _players(self, env: BatchEnv) -> dict[str, Player]:
        """One for each policy, fresh, with everything that they draw seeded."""
        import torch

        from shoal.policy.device import cpu_threads, pick_device
        from shoal.policy.playing import PolicyPlayer, trained_policy

        settings = self._saved.config.inference
        device = pick_device(settings.device, "inference.device")
        torch.set_num_threads(cpu_threads(settings.threads, part=0.5))
        torch.manual_seed(self._seed)
        players: dict[str, Player] = {}
        for name, slots in env.slots.items():
            checkpoint = self._saved.checkpoints[name]
            # What knows no bounds was trained without: the network is the one of then.
            if checkpoint.env_spec not in (slots.spec, slots.spec.without_bounds()):
                raise _other_env(
                    self._saved.config.env, slots.spec.describe(), checkpoint.env_spec.describe(), name
                )
            policy = trained_policy(self._saved.config.policy, checkpoint.env_spec, checkpoint.weights())
            players[name] = PolicyPlayer(policy, slots.num, device, self._greedy)
        return players


def _other_env(section: EnvSection, now: str, before: str, policy: str) -> UserError:
    return UserError(
        f"the environment {section.id!r} is now {now}, and the checkpoint of policy {policy!r} is of "
        f"{before}: set env.id, env.kwargs and env.wrappers as they were (--set), or use the versions of then"
    )


def _row(policy: str, scores: Scores) -> tuple[str, ...]:
    figures = scores.summary()
    error = figures["standard_error"]
    spread = "" if error is None else f" +- {error:.3g}"
    names = ("median_return", "min_return", "max_return", "mean_length")
    mean = _number(figures["mean_return"]) + spread
    return (policy, str(figures["episodes"]), mean, *(_number(figures[name]) for name in names))


def _number(value: float | None) -> str:
    """Four digits, and more if it takes more before the point."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"


@contextlib.contextmanager
def _bar(num_episodes: int) -> Iterator[Callable[[int], None]]:
    """A progress bar, where there is a terminal to show it; yields whom to tell how many are missing."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr)
    columns = (TextColumn("episodes"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=num_episodes)
        last = num_episodes

        def on_step(num_missing: int) -> None:
            nonlocal last
            if num_missing != last:
                last = num_missing
                progress.update(task, completed=num_episodes - num_missing)

        yield on_step
