"""Every algorithm goes on from a checkpoint as if nothing had happened: the same state to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from services.learner.checkpoint import CheckpointStore
from services.learner.progress import Progress
from services.learner.trainer import Trainer
from tests.unit.learner.any_algorithm import NAMES, batch_of, build, spec_of


def train(name: str, trainer: Trainer, seeds: range) -> None:
    for seed in seeds:
        trainer.step(batch_of(trainer._algorithm, spec_of(name), seed))


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for key, array in one.items():
        assert array.dtype == other[key].dtype, key
        assert array.tobytes() == other[key].tobytes(), f"{key} differs"


@pytest.mark.parametrize("name", NAMES)
def test_the_state_is_the_same_to_the_bit_and_so_is_what_follows(tmp_path: Path, name: str) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", 3)
    store.prepare()
    trainer = build(name, seed=1, normalised=True)
    train(name, trainer, range(5))
    saved = trainer.state()
    store.save(saved, Progress(learner_steps=5).to_json(), spec_of(name), "")
    train(name, trainer, range(5, 8))
    expected = trainer.state()

    # Another life: other first weights, and another state of the generator.
    restored = build(name, seed=2, normalised=True)
    checkpoint = store.newest()
    assert checkpoint is not None
    restored.load_state(checkpoint.tensors)
    assert_same(restored.state(), saved)
    assert float(saved["policy/normaliser.count"]) > 0, "the statistics are a part of it"
    train(name, restored, range(5, 8))
    assert_same(restored.state(), expected)


def test_control_a_state_that_is_not_loaded_is_seen(tmp_path: Path) -> None:
    trainer, other = build("impala", seed=1), build("impala", seed=2)
    train("impala", trainer, range(3))
    train("impala", other, range(3))
    with pytest.raises(AssertionError, match="differs"):
        assert_same(trainer.state(), other.state())
