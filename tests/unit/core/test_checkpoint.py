"""What others than the learner read of a checkpoint. Damage of every kind: tests/unit/learner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.learner.checkpoint import CheckpointStore
from services.learner.progress import Progress
from shoal.checkpoint import STATE, SUMS, TENSORS, newest_whole, read_stored, sums_of
from shoal.errors import CheckpointError
from shoal.records import ArraySpec, BoxAction, EnvSpec

SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (3,)),), BoxAction((1,), (-1.0,), (1.0,)))


def save(directory: Path, step: int = 7) -> Path:
    store = CheckpointStore(directory, keep=9)
    store.prepare()
    tensors = {"policy/a.weight": np.full(3, step, np.float32), "adam/num_steps": np.array(step)}
    return store.save(tensors, Progress(learner_steps=step).to_json(), SPEC, "run: {seed: 1}")


def edit_state(path: Path, **changes: Any) -> None:
    """Changes entries, or with None takes them out, and mends the sums."""
    state = json.loads((path / STATE).read_text()) | changes
    state = {key: value for key, value in state.items() if value is not None}
    (path / STATE).write_text(json.dumps(state))
    files = {name: (path / name).read_bytes() for name in (TENSORS, STATE)}
    (path / SUMS).write_bytes(sums_of(files))


def test_weights_and_spec_come_back(tmp_path: Path) -> None:
    found = read_stored(save(tmp_path))
    assert found.env_spec == SPEC
    assert found.progress["learner_steps"] == 7
    assert found.config_yaml == "run: {seed: 1}"
    assert list(found.weights()) == ["a.weight"]
    np.testing.assert_array_equal(found.weights()["a.weight"], np.full(3, 7, np.float32))


@pytest.mark.parametrize(
    "changes",
    [
        {"env_spec": {"env_id": "Test-v0"}},
        {"env_spec": [1]},
        {"env_spec": None},
        {"spec_hash": "0" * 64},
        {"progress": "far"},
        {"format": 99},
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = save(tmp_path)
    edit_state(path, **changes)
    with pytest.raises(CheckpointError, match=str(path)):
        read_stored(path)


def test_the_newest_whole_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert newest_whole(tmp_path, read_stored, "help") is None
    save(tmp_path, 1)
    broken = save(tmp_path, 2)
    (broken / TENSORS).write_bytes(b"")
    found = newest_whole(tmp_path, read_stored, "help")
    assert found is not None
    assert found.path.name == "000001-step-1"
    assert str(broken) in caplog.text
    (found.path / SUMS).unlink()
    with pytest.raises(CheckpointError, match=r"no usable checkpoint: .*000002.*; .*000001.*: help$"):
        newest_whole(tmp_path, read_stored, "help")
