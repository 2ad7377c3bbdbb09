"""Whether a run has learned, as its last lines and its report say it."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from shoal.cli.history import Sample
from shoal.cli.learned import compared, not_learned, note_advice
from shoal.cli.report import build_report, report
from shoal.cli.result import summary, write_result
from shoal.cli.run_dir import RunDir
from shoal.config import Config

IDLE: dict[str, Any] = {
    "reason": "steps",
    "mean_return": -491.04,
    "untrained_return": -497.25,
    "best_return": -488.0,
    "env_steps": 786_432,
    "has_learned": False,
    "guards": {},
}
FACT = "has not learned: mean return -491.0 after 786.4k steps, the untrained policy's was -497.2"


def advised(record: dict[str, Any], **algorithm: Any) -> dict[str, Any]:
    found = dict(record)
    note_advice(found, Config.model_validate({"algorithm": algorithm} if algorithm else {}))
    return found


def test_a_run_that_has_not_learned_says_so_and_what_to_try() -> None:
    record = advised(IDLE, name="impala", normalise_returns=False)
    (line,) = not_learned(record)
    print(line)
    assert line.startswith(f"{FACT}; try algorithm.normalise_returns=true, ")
    assert summary(record | {"wall_clock_s": 60.0}, RunDir(Path("runs/x")))[:2] == [
        line,
        "return -491.0 (untrained -497.2), 786,432 environment steps, 1 min 00 s",
    ]


def test_a_short_run_may_just_be_short() -> None:
    (line,) = not_learned(advised(IDLE | {"env_steps": 100_000}))
    assert "after 100k steps, the untrained policy's was -497.2; train for longer, or try " in line


def test_a_run_of_few_episodes_shows_the_newest() -> None:
    record = IDLE | {
        "has_learned": True,
        "newest_return": -120.5,
        "newest_episodes": 40,
        "wall_clock_s": 60.0,
    }
    line = summary(record, RunDir(Path("runs/x")))[0]
    assert line.startswith("return -491.0 (untrained -497.2, last 40 episodes -120.5), 786,432 ")
    assert compared(record | {"untrained_return": None}) == " (last 40 episodes -120.5)"
    assert compared({}) == ""


def test_other_runs_do_not() -> None:
    for other in ({"has_learned": True}, {"has_learned": None}, {"reason": "until_return"}):
        record = advised(IDLE | other)
        assert not_learned(record) == []
        assert "advice" not in record
    assert not_learned({}) == [], "a run that crashed before it began"


def test_a_fallen_return_is_named_with_its_best() -> None:
    (line,) = not_learned(IDLE | {"guards": {"return_collapse": 1}})
    assert "mean return -491.0 (at best -488.0) after" in line


def test_of_several_policies_each_speaks_for_itself() -> None:
    learned = IDLE | {"has_learned": True}
    record = advised(learned | {"policies": {"red": IDLE, "blue": learned}})
    (line,) = not_learned(record)
    assert line.startswith(f"policy red {FACT}; try ")


def test_the_report_says_it_too(tmp_path: Path, capsys: Any) -> None:
    record = advised(IDLE)
    samples = [Sample(1.0, env_steps=786_432, episode_return=-491.04, untrained_return=-497.25)]
    page = build_report(samples, [], "", record)
    assert f'<p class="bad">{escape(FACT)}; try ' in page
    assert "<b>-497.2</b><span>untrained policy&#x27;s return</span>" in page
    assert "has not learned" not in build_report(samples, [], "", record | {"has_learned": True})
    run_dir = RunDir(tmp_path)
    run_dir.history.write_text("")
    write_result(run_dir, record)
    report(tmp_path)
    assert FACT in capsys.readouterr().out
