"""The trained policies of a run directory, for `shoal eval` and `shoal export`.

Each policy is read from one of its checkpoints, by default the newest whole one. The configuration is the one
that the checkpoint was written with: it fits the weights, wherever the directory was moved to and whoever
wrote it. Imported when it is needed: the other commands start faster without NumPy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from shoal.checkpoint import BEST, StoredCheckpoint, best_of, newest_whole, numbered, read_stored
from shoal.cli.run_dir import RunDir
from shoal.config import Config
from shoal.config.load import build_config, complete_config
from shoal.config.policies import PolicyPlace, policy_places
from shoal.errors import CheckpointError, ConfigError, UserError
from shoal.records import DEFAULT_POLICY

NEWEST = "newest"


@dataclass(frozen=True)
class SavedRun:
    """A run with the checkpoint of each of its policies, by name."""

    root: Path
    config: Config
    checkpoints: Mapping[str, StoredCheckpoint]

    @property
    def name(self) -> str:
        """Of what was read: the checkpoint, and of several policies whose it is, that of the first."""
        policy, checkpoint = next(iter(self.checkpoints.items()))
        return checkpoint.path.name if policy == DEFAULT_POLICY else f"{policy}-{checkpoint.path.name}"


def open_run(
    root: Path, chosen: Sequence[str] = (), overrides: Sequence[str] = (), policy: str | None = None
) -> SavedRun:
    """Reads a run. `chosen` are texts like `000007-step-1234`, `newest`, `best` or, of several policies,
    `red=000007-step-1234`; `policy` reads that one alone. Raises UserError."""
    places = _places(root)
    if policy is not None:
        if policy not in places:
            raise UserError(f"{root} has no policy {policy!r}: it has {', '.join(places)}")
        places = {policy: places[policy]}
    names = _chosen_names(chosen, list(places))
    checkpoints = {name: _read(directory, names.get(name, NEWEST)) for name, directory in places.items()}
    first = next(iter(checkpoints.values()))
    config = _config(first, [*overrides, f"run.dir={json.dumps(str(root))}"])
    if policy is None:
        _check_all_there(policy_places(config), checkpoints)
    return SavedRun(root, config, checkpoints)


def _places(root: Path) -> dict[str, Path]:
    """The directories of checkpoints, by policy. Raises UserError if this is no run, or one without any."""
    if not root.is_dir():
        raise UserError(
            f"{root} is no run directory: {'it is a file' if root.exists() else 'it is not there'}"
        )
    named = sorted(path.parent for path in root.glob("policies/*/checkpoints"))
    places = {path.name: path / "checkpoints" for path in named} or {DEFAULT_POLICY: root / "checkpoints"}
    if any(directory.is_dir() and numbered(directory) for directory in places.values()):
        return places
    if RunDir(root).config.is_file() or any(directory.is_dir() for directory in places.values()):
        raise UserError(
            f"the run in {root} has no checkpoint yet: the learner writes one at the end of a run, and every "
            "learner.checkpoint_every_s seconds"
        )
    raise UserError(f"{root} is no run directory: it has neither config.yaml nor checkpoints")


def _chosen_names(chosen: Sequence[str], policies: Sequence[str]) -> dict[str, str]:
    """The names of checkpoints, by policy."""
    names: dict[str, str] = {}
    for text in chosen:
        policy, separator, name = text.rpartition("=")
        if not separator and len(policies) > 1 and name not in (NEWEST, BEST):
            raise UserError(
                f"--checkpoint {text}: the run has several policies, say whose it is: "
                f"{', '.join(f'{policy}={text}' for policy in policies)}"
            )
        if separator and policy not in policies:
            raise UserError(f"--checkpoint {text}: there is no policy {policy!r}, only {', '.join(policies)}")
        names |= {policy: name} if separator else dict.fromkeys(policies, name)
    return names


def _read(directory: Path, name: str) -> StoredCheckpoint:
    there = [path.name for _, path in numbered(directory)] if directory.is_dir() else []
    if name == NEWEST:
        found = newest_whole(directory, read_stored, "restore one from a copy") if there else None
        if found is None:
            raise UserError(f"there is no checkpoint in {directory}")
        return found
    if name == BEST:
        best = best_of(directory) if there else None
        if best is None:
            raise UserError(
                f"no checkpoint in {directory} is marked as the best: that takes 100 episodes, and "
                "learner.keep_best"
            )
        return read_stored(best)
    if name not in there:
        raise UserError(f"no checkpoint {name!r} in {directory}: there are {', '.join(there) or 'none'}")
    return read_stored(directory / name)


def _config(checkpoint: StoredCheckpoint, overrides: Sequence[str]) -> Config:
    try:
        tree = yaml.safe_load(checkpoint.config_yaml)
        saved = build_config(tree)
    except (yaml.YAMLError, ConfigError) as error:
        raise CheckpointError(
            f"this release cannot use the configuration in {checkpoint.path}: {' '.join(str(error).split())}"
        ) from None
    # Nobody is called: neither the token of then nor one of now matters.
    tree.pop("security", None)
    config = complete_config(tree, overrides)
    if config.policy != saved.policy:
        was, now = saved.policy.model_dump(mode="json"), config.policy.model_dump(mode="json")
        different = "; ".join(
            f"policy.{key} is {value} and cannot be {now[key]}"
            for key, value in was.items()
            if value != now[key]
        )
        raise UserError(f"the weights in {checkpoint.path} belong to another network: {different}")
    return config


def _check_all_there(places: Sequence[PolicyPlace], found: Mapping[str, StoredCheckpoint]) -> None:
    wanted = [place.name for place in places]
    if sorted(wanted) != sorted(found):
        raise UserError(
            f"env.policies names {', '.join(wanted)}, and there are checkpoints of {', '.join(found)}"
        )
