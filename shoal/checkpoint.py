"""Reading checkpoints, by whoever wants the weights of a run: the learner that goes on, `eval`, `export`.

    checkpoints/000007-step-1234/   tensors.safetensors   weights (`policy/...`), optimiser, RNG
                                    state.json            counters, the env spec and its hash, configuration
                                    SHA256SUMS            of the two; `sha256sum -c` checks them by hand
    checkpoints/best                a link to the one with the best mean return

The learner writes them (`services.learner.checkpoint`): whole, or not there. No pickle, no torch. Blocking;
any thread.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from shoal.errors import CheckpointError
from shoal.records import EnvSpec
from shoal.spec_json import spec_from_json

log = logging.getLogger(__name__)

FORMAT = 2

TENSORS, STATE, SUMS = "tensors.safetensors", "state.json", "SHA256SUMS"
# Links to the checkpoint with the best mean return.
BEST = "best"
# In front of the names of a policy's weights, among all tensors.
WEIGHTS = "policy/"

_NAME = re.compile(r"(\d{6,})-step-(\d+)")

Read = TypeVar("Read")


@dataclass(frozen=True)
class StoredCheckpoint:
    """What stands in one directory, its sums checked."""

    path: Path
    tensors: dict[str, np.ndarray]
    progress: dict[str, Any]
    env_spec: EnvSpec
    config_yaml: str

    def weights(self) -> dict[str, np.ndarray]:
        """Those of the policy, by the names that it has for them."""
        return {
            name.removeprefix(WEIGHTS): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(WEIGHTS)
        }


def numbered(directory: Path) -> list[tuple[int, Path]]:
    """The checkpoints in a directory, whole or broken; the highest number, which is last, is the newest."""
    matches = ((_NAME.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted((int(match[1]), path) for match, path in matches if match)


def best_of(directory: Path) -> Path | None:
    """The checkpoint that is marked as the best; None if none is."""
    path = (directory / BEST).resolve()
    return path if _NAME.fullmatch(path.name) and path.is_dir() else None


def newest_whole(
    directory: Path, read: Callable[[Path], Read], advice: str, max_step: int | None = None
) -> Read | None:
    """What `read` makes of the newest that it can read. A broken one is reported and passed over.

    None if there are none, of at most `max_step` learner steps where that is given. Raises CheckpointError,
    with `advice`, if there are some and none is whole: starting afresh is for the user to decide.
    """
    problems = []
    for _, path in reversed(numbered(directory)):
        if max_step is not None and step_of(path) > max_step:
            continue
        try:
            return read(path)
        except CheckpointError as error:
            log.error("passing over a broken checkpoint: %s", error)
            problems.append(str(error))
    if problems:
        raise CheckpointError(f"no usable checkpoint: {'; '.join(problems)}: {advice}")
    return None


def step_of(path: Path) -> int:
    """The learner step that a checkpoint was made after, by its name."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, f"{path} is not a checkpoint's name"
    return int(match[2])


def read_stored(path: Path) -> StoredCheckpoint:
    """Read and check one directory. Raises CheckpointError."""
    try:
        files = {name: (path / name).read_bytes() for name in (TENSORS, STATE)}
        sums = (path / SUMS).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot read {error.filename}: {error.strerror}") from None
    if sums != sums_of(files):
        raise CheckpointError(f"{path}: the SHA-256 sums do not match, the files are damaged")
    try:
        state = json.loads(files[STATE])
        if state["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {state['format']}, this release reads {FORMAT}")
        return StoredCheckpoint(
            path=path,
            tensors=load(files[TENSORS]),
            progress=dict(state["progress"]),
            env_spec=_env_spec(state),
            config_yaml=str(state["config"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
        raise not_ours(path, error) from None


def not_ours(path: Path, error: Exception) -> CheckpointError:
    """Its sums are right, and yet it holds something else."""
    return CheckpointError(f"{path}: not written by shoal: {error!r}")


def sums_of(files: dict[str, bytes]) -> bytes:
    """The content of SHA256SUMS."""
    return "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in files.items()).encode()


def _env_spec(state: dict[str, Any]) -> EnvSpec:
    spec = spec_from_json(state["env_spec"])
    if spec.hash() != state["spec_hash"]:
        raise ValueError("env_spec and spec_hash are of different specs")
    return spec
