"""Checkpoints: directories that are either whole or not there.

Everything is written under a temporary name and fsynced before the rename, so a kill leaves no torn one; what
the disk damages later is found by its SHA-256. `shoal.checkpoint` says what is in them and reads them. No
pickle, no torch. Blocking; one thread at a time.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save

from services.learner.files import TEMPORARY_PREFIX, sync_directory, write_synced
from services.learner.progress import WINDOW, Progress
from shoal.checkpoint import (
    BEST,
    FORMAT,
    STATE,
    SUMS,
    TENSORS,
    best_of,
    newest_whole,
    not_ours,
    numbered,
    read_stored,
    sums_of,
)
from shoal.config.load import build_config
from shoal.config.network import PolicySection
from shoal.errors import CheckpointError, ConfigError, UserError
from shoal.records import EnvSpec
from shoal.spec_json import spec_to_json

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a run goes on from."""

    tensors: dict[str, np.ndarray]
    progress: Progress
    env_spec: EnvSpec
    config_yaml: str

    def check_spec(self, spec: EnvSpec, path: Path) -> None:
        if self.env_spec != spec:
            raise CheckpointError(
                f"the checkpoints in {path} are of another environment: {self.env_spec.describe()}; this "
                f"run's is {spec.describe()}: use another run.dir"
            )

    def check_policy(self, policy: PolicySection, path: Path) -> None:
        """Weights of the same shapes can still mean another network: the activation is in no shape."""
        try:
            section = yaml.safe_load(self.config_yaml)["policy"]
            saved = build_config({"policy": section}).policy.model_dump(mode="json")
        except (yaml.YAMLError, KeyError, TypeError, ConfigError) as error:
            raise CheckpointError(
                f"cannot read the policy section that the checkpoints in {path} were made with: "
                f"{' '.join(str(error).split())}: use another run.dir"
            ) from None
        differences = [
            f"policy.{key} was {saved[key]} and is {value} now"
            for key, value in policy.model_dump(mode="json").items()
            if saved[key] != value
        ]
        if differences:
            raise CheckpointError(
                f"the checkpoints in {path} are of another policy: {'; '.join(differences)}: "
                "use another run.dir"
            )


class CheckpointStore:
    """The checkpoints of one run; the highest number is the newest. `keep` of them stay, and the best."""

    def __init__(self, path: Path, keep: int, keep_best: bool = False) -> None:
        self.path = path
        self._keep = keep
        self._keep_best = keep_best

    def prepare(self) -> None:
        """Make the directory and clear away what dead writers left. UserError if it is not writable."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for leftover in self.path.glob(f"{TEMPORARY_PREFIX}*"):
                _remove(leftover)
            probe = self.path / f"{TEMPORARY_PREFIX}probe"
            write_synced(probe, b"can we write here?\n")
            probe.unlink()
        except OSError as error:
            raise UserError(
                f"cannot write to {self.path}: {error.strerror}. Make room there or make it "
                "writable, or give a new run another run.dir"
            ) from None

    def save(
        self, tensors: dict[str, np.ndarray], progress: dict[str, Any], spec: EnvSpec, config_yaml: str
    ) -> Path:
        """Returns when the checkpoint is on the disk under its name. Raises OSError."""
        state = {
            "format": FORMAT,
            "progress": progress,
            "spec_hash": spec.hash(),
            "env_spec": spec_to_json(spec),
            "config": config_yaml,
        }
        files = {TENSORS: save(tensors), STATE: json.dumps(state, indent=1).encode()}
        number = max((number for number, _ in numbered(self.path)), default=0) + 1
        final = self.path / f"{number:06d}-step-{progress['learner_steps']}"
        temporary = self.path / f"{TEMPORARY_PREFIX}{final.name}"
        _remove(temporary)
        temporary.mkdir()
        try:
            for name, data in files.items():
                write_synced(temporary / name, data)
            write_synced(temporary / SUMS, sums_of(files))
            sync_directory(temporary)
            temporary.rename(final)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if self._keep_best:
            self._mark_if_best(final, progress)
        sync_directory(self.path)
        self._prune()
        return final

    def newest(self, max_step: int | None = None) -> Checkpoint | None:
        """The newest one that is whole, of at most `max_step`. A broken one is reported and passed over.

        Raises CheckpointError if there are some and none is whole: starting afresh is for the user to decide.
        """
        return newest_whole(self.path, read_checkpoint, "restore one, or use another run.dir", max_step)

    def _mark_if_best(self, path: Path, progress: dict[str, Any]) -> None:
        """`best` is a link, put in place by a rename: it always leads to a whole checkpoint."""
        score, best = _score(progress), best_of(self.path)
        if score is None or (best is not None and score <= _stored_score(best)):
            return
        temporary = self.path / f"{TEMPORARY_PREFIX}{BEST}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(path.name)
        temporary.rename(self.path / BEST)

    def _prune(self) -> None:
        best = best_of(self.path)
        for _, path in numbered(self.path)[: -self._keep]:
            if best is not None and path.name == best.name:
                continue
            # Renamed first: a half-deleted checkpoint must not look like a broken one.
            doomed = self.path / f"{TEMPORARY_PREFIX}{path.name}"
            try:
                path.rename(doomed)
                _remove(doomed)
            except OSError as error:
                log.warning("cannot delete the old checkpoint %s: %s", path, error.strerror)


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and check one directory. Raises CheckpointError."""
    stored = read_stored(path)
    try:
        progress = Progress.from_json(stored.progress)
    except (KeyError, TypeError, ValueError) as error:
        raise not_ours(path, error) from None
    return Checkpoint(stored.tensors, progress, stored.env_spec, stored.config_yaml)


def _score(progress: dict[str, Any]) -> float | None:
    """The mean return, once it is one over enough episodes."""
    episodes = progress["episodes"]
    return sum(episode[0] for episode in episodes) / len(episodes) if len(episodes) >= WINDOW else None


def _stored_score(path: Path) -> float:
    """Of a checkpoint on the disk; one that cannot be read is worth nothing."""
    try:
        score = _score(json.loads((path / STATE).read_bytes())["progress"])
    except (OSError, ValueError, KeyError, TypeError):
        score = None
    return -math.inf if score is None else score


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
