"""TensorBoard events: read back by TensorBoard's own loader."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.learner.summaries import Summaries


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_them(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    summaries = Summaries(tmp_path / "tensorboard")
    for step in range(5):
        summaries.add(step * 1000, {"episode/return": 20.0 + step, "training/loss": -1.5})
    summaries.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    events = list(EventFileLoader(str(file)).Load())
    assert events[0].file_version == "brain.Event:2"
    points = {
        (event.step, value.tag): value.tensor.float_val[0]
        for event in events[1:]
        for value in event.summary.value
    }
    assert len(points) == 10
    assert points[4000, "episode/return"] == 24.0
    assert points[0, "training/loss"] == -1.5


def test_a_directory_that_cannot_be_made_costs_curves_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    summaries = Summaries(tmp_path / "file" / "tensorboard")
    for step in range(3):
        summaries.add(step, {"episode/return": 1.0})
    summaries.close()
    assert [record.message for record in caplog.records if "no more TensorBoard events" in record.message]
    assert len(caplog.records) == 1
