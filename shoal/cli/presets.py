"""What the argument of `shoal train` stands for: a preset, a file or an environment, or a run to resume.

Presets are the YAML files in `configs/`, which lies next to the `shoal` package both in a checkout and
in an installation. No environment library is imported here: the actor reports an unknown environment.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import shoal
from shoal.cli.run_dir import RunDir, run_name
from shoal.errors import UserError

PRESETS = Path(shoal.__file__).parents[1] / "configs"


@dataclass(frozen=True)
class Target:
    """What to train: a config file or none, overrides under all others, and a name for the run."""

    name: str
    file: Path | None = None
    overrides: tuple[str, ...] = ()
    # It says everything that the environment would have to be looked at for.
    is_complete: bool = False


def preset_names(directory: Path = PRESETS) -> list[str]:
    return sorted(path.stem for path in directory.glob("*.yaml"))


def resolve(text: str, directory: Path = PRESETS) -> Target:
    """Raises UserError, with the nearest preset, for a name that is nothing known."""
    path = Path(text)
    names = preset_names(directory)
    if text and path.is_dir() and text not in names:
        raise UserError(f"{text} is a directory: if it is that of a run, go on with --resume {text}")
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UserError(f"no config file {text}{_did_you_mean(path.name, _yaml_names(path.parent))}")
        return Target(run_name(path.stem), path)
    if text in names:
        return Target(run_name(text), directory / f"{text}.yaml", is_complete=True)
    if _looks_like_preset(text):
        known = f"presets: {', '.join(names) or 'none'}"
        other = "or give a .yaml file, or an env id such as CartPole-v1"
        raise UserError(f"no preset {text!r}{_did_you_mean(text, names)} ({known}; {other})")
    return Target(run_name(text), None, (f"env.id={json.dumps(text)}",))


def resume(path: Path) -> Target:
    """A run goes on as it was configured, wherever it has been moved to. Raises UserError if it cannot."""
    run_dir = RunDir(path)
    if not run_dir.config.is_file():
        what = "a directory without config.yaml" if path.is_dir() else "no directory"
        raise UserError(f"--resume {path}: that is {what}, so there is no run to resume")
    if not run_dir.has_checkpoints:
        raise UserError(
            f"--resume {path}: the run has no checkpoint to go on from; start it again in another directory"
        )
    overrides = (f"run.dir={json.dumps(str(path))}",)
    return Target(run_name(path.name), run_dir.config, overrides, is_complete=True)


def _looks_like_preset(text: str) -> bool:
    """Env ids have capitals, a version, a namespace or a module: `CartPole-v1`, `ALE/Pong`, `mine:maze`."""
    return re.fullmatch(r"[a-z0-9_.-]*", text) is not None and re.search(r"-v\d+$", text) is None


def _yaml_names(directory: Path) -> list[str]:
    return [path.name for path in directory.glob("*.y*ml")] if directory.is_dir() else []


def _did_you_mean(text: str, names: list[str]) -> str:
    close = difflib.get_close_matches(text, names, n=1, cutoff=0.5)
    return f": did you mean {close[0]!r}?" if close else ""
