"""The table made of recorded runs; and the page in docs/ agrees with the files beside it."""

from __future__ import annotations

import ast
import json
import shutil
import xml.etree.ElementTree
from pathlib import Path

import pytest

from benchmarks.learn import page, records
from benchmarks.learn.published import CARTPOLE_PPO
from benchmarks.learn.runs import Run
from benchmarks.learn.sb3 import SIDE
from benchmarks.learn.tasks import TASKS, Sb3, Task

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs/results"
ROW = Task(
    env="CartPole-v1",
    algo="ppo",
    score=475,
    within=1000,
    steps=4000,
    published=CARTPOLE_PPO[:1],
    sb3=Sb3("ppo", 1000),
)
EMPTY = Task(env="Hopper-v5", steps=1000)


def finished(
    root: Path,
    seed: int,
    means: list[float],
    system: str = "shoal",
    task: Task = ROW,
    greedy: list[float] | None = None,
) -> Run:
    """A run whose means were looked at every 1000 steps, which took two seconds."""
    root = root / f"{system}-{seed}"
    root.mkdir(parents=True)
    samples = [
        {"time_s": 2.0 * n, "env_steps": 1000 * n, "episode_return": mean} for n, mean in enumerate(means, 1)
    ]
    (root / "history.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    result = {"mean_return": means[-1], "env_steps": 1000 * len(means), "wall_clock_s": 2.5 * len(means)}
    own = {"algorithm": "ppo", "version": "9.9"} if system == "sb3" else {}
    (root / "result.json").write_text(json.dumps({**result, **own}))
    (root / "config.yaml").write_text("algorithm: {name: ppo}\n")
    if greedy is not None:
        evaluation = {"greedy": True, "policies": {"policy": {"returns": greedy}}}
        (root / "eval-000001-step-10.json").write_text(json.dumps(evaluation))
    return Run(task, seed, system, task.steps, root)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two seeds that reached the score, one that did not, and one of Stable-Baselines3 that did."""
    results = tmp_path / "learning"
    for run in (
        finished(tmp_path, 3, [20.0, 30.0, 40.0, 50.0]),
        finished(tmp_path, 1, [20.0, 480.0, 450.0, 500.0], greedy=[498.0, 500.0]),
        finished(tmp_path, 2, [476.0, 490.0, 470.0, 490.0]),
        finished(tmp_path, 1, [100.0, 475.0], "sb3"),
    ):
        records.add_run(results, run)
    return results


def cells(task: Task, results: Path) -> list[str]:
    line = page.table([task], [records.read_record(results, task)], "learning")[2]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_of_figures(results: Path) -> None:
    shown = dict(zip(page.HEADER, cells(ROW, results), strict=True))
    assert shown == {
        "task": "CartPole-v1",
        "flag": "`--algo ppo`",
        "asked for": "475 within 1,000",
        "seeds": "3",
        "steps to the score": "2,000 (2 of 3)",
        "wall-clock to it": "4.0 s (2 of 3)",
        "lowest after": "450.0",
        # Of three nothing is cut: (50 + 500 + 490) / 3; at worst one seed is drawn three times.
        "final score": "346.7 [50.0, 500.0]",
        "greedy": "499.0",
        "after": "4,000 steps",
        "published": "490.04 ± 6.12 (CleanRL: PPO, CartPole-v1, 500 k)",
        "SB3 here": "PPO: 2,000 (1 of 1) steps, 4.0 s (1 of 1); 475.0 after 2,000 steps",
        "curve": "[curve](learning/cartpole-v1-ppo.svg)",
    }


def test_a_row_that_has_not_been_run_is_empty(results: Path) -> None:
    assert cells(EMPTY, results) == ["Hopper-v5", *[""] * (len(page.HEADER) - 1)]


def test_a_row_without_a_score_has_no_steps_to_it(tmp_path: Path) -> None:
    results = tmp_path / "learning"
    records.add_run(results, finished(tmp_path, 1, [20.0, 1234.5], task=EMPTY))
    assert cells(EMPTY, results)[2:10] == ["", "1", "", "", "", "1,234", "", "2,000 steps"]


def test_a_score_that_most_seeds_did_not_reach_has_no_median(tmp_path: Path) -> None:
    results = tmp_path / "learning"
    for seed, means in enumerate(([20.0], [30.0], [480.0]), 1):
        records.add_run(results, finished(tmp_path, seed, means))
    assert cells(ROW, results)[4:6] == ["- (1 of 3)", "- (1 of 3)"]


def test_the_page_is_written_between_its_marks(results: Path, tmp_path: Path) -> None:
    path = tmp_path / "learning.md"
    path.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.write_page(path, results, [ROW, EMPTY])
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "Run on: " in text
    assert "sb3 9.9" in text
    picture = xml.etree.ElementTree.parse(results / "cartpole-v1-ppo.svg").getroot()
    assert len([element for element in picture.iter() if element.tag.endswith("polyline")]) == 4
    assert not (results / "hopper-v5.svg").exists()
    page.write_page(path, results, [ROW, EMPTY])
    assert path.read_text() == text


def test_runs_are_kept_by_system_and_seed(results: Path, tmp_path: Path) -> None:
    path = results / "cartpole-v1-ppo.json"
    before = path.read_text()
    kept = json.loads(before)["runs"]
    assert [(run["system"], run["seed"]) for run in kept] == [
        ("shoal", 1),
        ("shoal", 2),
        ("shoal", 3),
        ("sb3", 1),
    ]
    assert kept[0]["curve"][0] == [1000, 20.0]
    assert kept[0]["curve"][-1] == [4000, 500.0]

    again = finished(tmp_path / "again", 2, [20.0, 30.0])
    records.add_run(results, again)
    runs = json.loads(path.read_text())["runs"]
    assert len(runs) == 4
    assert runs[1]["final"] == 30.0
    assert [runs[0], *runs[2:]] == [kept[0], *kept[2:]]


def test_a_run_that_is_recorded_again_keeps_its_origin(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = results / "cartpole-v1-ppo.json"
    before = path.read_text()
    monkeypatch.setattr(records, "_commit", lambda: "shoal of another commit")
    same = Run(ROW, 1, "shoal", ROW.steps, tmp_path / "shoal-1")
    records.add_run(results, same)
    assert path.read_text() == before


def test_a_long_curve_is_thinned_and_keeps_its_end() -> None:
    points = [records.Point(n, float(n), float(n)) for n in range(2001)]
    kept = records.thinned(points)
    assert len(kept) <= records.MAX_POINTS
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]


def test_sb3s_side_needs_nothing_of_shoal() -> None:
    tree = ast.parse(SIDE.read_text())
    imported = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert "stable_baselines3" in imported
    assert not [name for name in imported if name.split(".")[0] in ("shoal", "services", "benchmarks")]


def test_the_page_in_docs_agrees_with_the_files_beside_it(tmp_path: Path) -> None:
    shutil.copytree(DOCS / "learning", tmp_path / "learning")
    shutil.copy(DOCS / "learning.md", tmp_path)
    page.write_page(tmp_path / "learning.md", tmp_path / "learning", TASKS)
    for path in [tmp_path / "learning.md", *(tmp_path / "learning").iterdir()]:
        kept = DOCS / path.relative_to(tmp_path)
        is_same = kept.is_file() and path.read_bytes() == kept.read_bytes()
        assert is_same, f"{kept} is stale: run `python -m benchmarks.learn --page`"


def test_the_files_in_docs_are_of_rows_and_of_their_scores() -> None:
    tasks = {task.name: task for task in TASKS}
    for path in (DOCS / "learning").glob("*.json"):
        assert path.stem in tasks
        assert json.loads(path.read_text())["score"] == tasks[path.stem].score
