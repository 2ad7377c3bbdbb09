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
    step_of,
    sums_of,
)
from shoal.config.network import PolicySection
from shoal.config.profiles import of_its_time
from shoal.errors import CheckpointError, UserError
from shoal.policy.scaling import input_scaling
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
        # Those of releases that did not know the bounds of observations have none.
        if self.env_spec not in (spec, spec.without_bounds()):
            raise CheckpointError(
                f"the checkpoints in {path} are of another environment: {self.env_spec.describe()}; this "
                f"run's is {spec.describe()}: use another run.dir"
            )
        changed = [
            now.describe()
            for before, now in zip(self.env_spec.observation, spec.observation, strict=True)
            if input_scaling(before) != input_scaling(now)
        ]
        if changed:
            raise CheckpointError(
                f"the checkpoints in {path} are of a release that did not know the bounds of "
                f"{', '.join(changed)} and scaled it otherwise: use another run.dir"
            )

    def check_policy(self, policy: PolicySection, path: Path) -> None:
        """Weights of the same shapes can still mean another network: the activation is in no shape."""
        try:
            section = dict(yaml.safe_load(self.config_yaml)["policy"])
            if section.get("recurrent", "none") != "none":
                # Releases without this setting had cores that saw neither.
                section.setdefault("previous_inputs", self.env_spec.shows_previous)
            saved = PolicySection.model_validate(section | of_its_time(section)).model_dump(mode="json")
        except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
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
            self._mark_if_best(final)
        sync_directory(self.path)
        self._prune()
        return final

    def newest(self, max_step: int | None = None) -> Checkpoint | None:
        """The newest one that is whole, of at most `max_step`. A broken one is reported and passed over.

        Raises CheckpointError if there are some and none is whole: starting afresh is for the user to decide.
        """
        return newest_whole(self.path, read_checkpoint, "restore one, or use another run.dir", max_step)

    def put_away_after(self, step: int) -> None:
        """Those of later steps, which a run has gone back from: it must never go back to one of them.

        Those up to `step` are not touched. The newest goes first, so that a kill leaves what once was there.
        What the disk refuses is logged and not raised.
        """
        abandoned = [path for _, path in reversed(numbered(self.path)) if step_of(path) > step]
        best = best_of(self.path)
        try:
            if best is not None and step_of(best) > step:
                # The next save marks the best of those that are left.
                (self.path / BEST).unlink()
            doomed = [_put_aside(path) for path in abandoned]
            # Before any other is saved: it may get the number of one of these.
            sync_directory(self.path)
            for path in doomed:
                _remove(path)
        except OSError as error:
            log.warning(
                "cannot put away the checkpoints after learner step %d in %s: %s",
                step,
                self.path,
                error.strerror,
            )

    def _mark_if_best(self, path: Path) -> None:
        """`best` is a link, put in place by a rename: it always leads to a whole checkpoint."""
        best = best_of(self.path)
        if best is None:
            # The first, or the one that was is put away.
            path = max((found for _, found in numbered(self.path)), key=_score)
        if _score(path) <= (-math.inf if best is None else _score(best)):
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
            try:
                _remove(_put_aside(path))
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


def _score(path: Path) -> float:
    """The mean return, once it is one over enough episodes; what cannot be read is worth nothing."""
    try:
        returns = [episode[0] for episode in json.loads((path / STATE).read_bytes())["progress"]["episodes"]]
        return sum(returns) / len(returns) if len(returns) >= WINDOW else -math.inf
    except (OSError, ValueError, KeyError, TypeError):
        return -math.inf


def _put_aside(path: Path) -> Path:
    """Under a name to delete it by: a half-deleted checkpoint must not look like a broken one."""
    doomed = path.with_name(f"{TEMPORARY_PREFIX}{path.name}")
    path.rename(doomed)
    return doomed


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
