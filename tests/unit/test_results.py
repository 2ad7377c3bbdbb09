"""`scripts/results.py`: what it makes of run directories; and the page agrees with the files beside it."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import yaml

from shoal.cli.history import History, Sample
from shoal.cli.run_dir import RunDir

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/results"
MARKS = "<!-- table: made by scripts/results.py -->\nold\n<!-- end of the table -->\n"


def put(results: Path, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "scripts/results.py"), "--results", str(results), *arguments]
    subprocess.run(command, check=True, timeout=60)
    return (results / "README.md").read_text()


def finished_run(root: Path, seed: int, returns: dict[int, float]) -> Path:
    root.mkdir()
    run_dir = RunDir(root)
    config = {"run": {"seed": seed}, "env": {"id": "CartPole-v1"}, "algorithm": {"name": "ppo"}}
    run_dir.config.write_text(yaml.safe_dump(config))
    history = History(run_dir.history)
    for steps, mean in returns.items():
        history.add(Sample(steps / 1000, env_steps=steps, episode_return=mean))
    history.close()
    last = max(returns)
    result = {"mean_return": returns[last], "env_steps": last, "wall_clock_s": 130.0}
    run_dir.result.write_text(json.dumps(result))
    return root


def test_runs_become_figures_a_curve_and_a_row(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    (results / "README.md").write_text(f"before\n{MARKS}after\n")
    runs = [
        finished_run(tmp_path / "a", 1, {1000: 20.0, 2000: 480.0, 3000: 470.0}),
        finished_run(tmp_path / "b", 2, {1000: 30.0, 4000: 490.5}),
    ]
    page = put(results, "--name", "ppo_cartpole", "--target", "475", "--budget", "300000", *map(str, runs))

    record = json.loads((results / "ppo_cartpole.json").read_text())
    assert [run["seed"] for run in record["runs"]] == [1, 2]
    assert [run["steps_to_target"] for run in record["runs"]] == [2000, 4000]
    assert record["runs"][0]["best_mean_return"] == 480.0
    picture = xml.etree.ElementTree.parse(results / "ppo_cartpole.svg").getroot()
    curves = [element for element in picture.iter() if element.tag.endswith("polyline")]
    assert len(curves) == 2
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "old" not in page
    assert "| ppo_cartpole | CartPole-v1 | ppo | >= 475 within 300,000 |" in page
    assert "1: 470.0 (3,000; 2 min)<br>2: 490.5 (4,000; 2 min)" in page


def test_a_run_without_a_result_is_told_of_in_one_line(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "a", 1, {1000: 20.0})
    RunDir(run).result.unlink()
    command = [sys.executable, str(ROOT / "scripts/results.py"), "--name", "x", "--results", str(tmp_path)]
    done = subprocess.run([*command, str(run)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == f"{run} has no result with a mean return: no episode finished, or it still runs\n"


def test_the_page_agrees_with_the_files_beside_it(tmp_path: Path) -> None:
    for path in [*RESULTS.glob("*.json"), RESULTS / "README.md"]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert put(tmp_path) == (RESULTS / "README.md").read_text(), "run `python scripts/results.py`"
