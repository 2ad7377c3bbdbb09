"""The rows as data, and the runs that are made of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.learn.runs import Run, ShoalTrain, State, planned
from benchmarks.learn.sb3 import Sb3Train
from benchmarks.learn.tasks import TASKS, Task, selected
from shoal.algorithms.profiles import PROFILES


def test_rows_have_names_of_their_own_that_are_fit_for_files() -> None:
    names = [task.name for task in TASKS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9.-]+", name) for name in names)
    assert {"cartpole-v1", "cartpole-v1-impala", "lunarlander-v3-continuous", "ale-pong-v5"} <= set(names)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_row_is_complete(task: Task) -> None:
    assert task.algo is None or task.algo in PROFILES
    assert (task.score is None) == (task.within is None)
    assert (task.within or 0) <= task.steps
    assert task.sb3 is None or task.sb3.steps <= task.steps


def test_rows_are_selected_by_patterns() -> None:
    assert [task.name for task in selected(["cartpole-v1", "*-td3"], TASKS)][:2] == [
        "cartpole-v1",
        "pendulum-v1-td3",
    ]
    assert selected([], TASKS) == list(TASKS)
    with pytest.raises(ValueError, match="no row is named 'cartpole'; rows: cartpole-v1, "):
        selected(["acrobot-v1", "cartpole"], TASKS)


def test_the_commands(tmp_path: Path) -> None:
    (task,) = selected(["lunarlander-v3-continuous"], TASKS)
    run = Run(task, 3, "shoal", 1000, tmp_path)
    trainer = ShoalTrain(("shoal",))
    assert trainer.command(run, State.NEW) == [
        *("shoal", "train", "LunarLander-v3", "--set", "env.kwargs.continuous=true"),
        *("--seed", "3", "--run-dir", str(tmp_path), "--steps", "1000", "--plain"),
    ]
    resumed = ["shoal", "train", "--resume", str(tmp_path), "--steps", "1000", "--plain"]
    assert trainer.command(run, State.RESUMABLE) == resumed

    (task,) = selected(["pendulum-v1-sac"], TASKS)
    run = Run(task, 3, "sb3", 1000, tmp_path)
    words = Sb3Train("python").command(run, State.NEW)[2:]
    assert words == ["sac", "Pendulum-v1", "{}", "1000", "3", str(tmp_path)]


def test_every_seed_of_every_system_is_planned(tmp_path: Path) -> None:
    tasks = selected(["cartpole-v1", "hopper-v5"], TASKS)
    runs = planned(tasks, 2, tmp_path)
    assert [(run.task.name, run.system, run.seed, run.steps) for run in runs] == [
        ("cartpole-v1", "shoal", 1, 3_000_000),
        ("cartpole-v1", "shoal", 2, 3_000_000),
        ("cartpole-v1", "sb3", 1, 200_000),
        ("cartpole-v1", "sb3", 2, 200_000),
        ("hopper-v5", "shoal", 1, 1_000_000),
        ("hopper-v5", "shoal", 2, 1_000_000),
    ]
    assert len({run.root for run in runs}) == len(runs)
    assert {run.steps for run in planned(tasks, 1, tmp_path, max_steps=500)} == {500}
