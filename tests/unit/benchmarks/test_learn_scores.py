"""What is read of a finished run."""

from __future__ import annotations

import json
import os
from pathlib import Path

from benchmarks.learn.scores import Point, Score, greedy_score, read_points, score_of

CURVE = [Point(100, 1.0, 20.0), Point(200, 2.0, 480.0), Point(300, 3.0, 60.0), Point(400, 4.0, 470.0)]


def test_the_first_time_the_score_is_reached_and_the_lowest_after() -> None:
    assert score_of(CURVE, 475) == Score(200, 2.0, 60.0, 470.0)


def test_what_is_lower_before_held_from_does_not_count() -> None:
    assert score_of(CURVE, 475, held_from=400).lowest_after == 470.0
    assert score_of(CURVE, 475, held_from=1000).lowest_after is None


def test_a_score_that_is_not_reached_or_not_asked_for() -> None:
    assert score_of(CURVE, 481) == Score(None, None, None, 470.0)
    assert score_of(CURVE, None) == Score(None, None, None, 470.0)


def test_a_mean_that_equals_the_score_is_enough() -> None:
    assert score_of(CURVE, 480).steps_to_score == 200


def test_points_are_those_with_steps_and_a_return_and_end_with_the_result(tmp_path: Path) -> None:
    lines = [
        {"time_s": 1.0},
        {"time_s": 2.0, "env_steps": 50},
        {"time_s": 3.0, "env_steps": 100, "episode_return": 12.0},
        {"time_s": 3.5, "text": "a restart"},
    ]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_points(tmp_path) == [Point(100, 3.0, 12.0)]
    result = {"env_steps": 120, "mean_return": 13.0, "wall_clock_s": 5.0}
    (tmp_path / "result.json").write_text(json.dumps(result))
    assert read_points(tmp_path) == [Point(100, 3.0, 12.0), Point(120, 5.0, 13.0)]


def test_the_greedy_score_is_that_of_an_evaluation_of_the_end(tmp_path: Path) -> None:
    def evaluated(name: str, greedy: bool, returns: list[float], at: float) -> None:
        record = {"greedy": greedy, "policies": {"policy": {"returns": returns}}}
        (tmp_path / name).write_text(json.dumps(record))
        os.utime(tmp_path / name, (at, at))

    (tmp_path / "result.json").write_text("{}")
    os.utime(tmp_path / "result.json", (100.0, 100.0))
    evaluated("eval-000001-step-10.json", True, [1.0], at=99.0)
    evaluated("eval-000002-step-20-sampled.json", False, [2.0], at=101.0)
    assert greedy_score(tmp_path) is None
    evaluated("eval-000002-step-20.json", True, [3.0, 5.0], at=101.0)
    assert greedy_score(tmp_path) == 4.0
