"""The page as a reader's parser sees it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from shoal.cli.app import run
from shoal.cli.history import Event, History, Sample
from shoal.cli.report import build_report
from shoal.cli.run_dir import RunDir
from shoal.config import load_config, to_yaml

VOID = {"meta", "circle", "line", "rect", "polyline"}
CONFIG = to_yaml(load_config(None, ["run.name=cartpole", "stop.until_return=475"], environ={}))


@dataclass
class Page(HTMLParser):
    """Tags, attributes and text; checks that tags are closed in order."""

    text: list[str] = field(default_factory=list)
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(html: str) -> Page:
    page = Page()
    page.feed(html)
    page.close()
    assert page.open == []
    return page


def history(count: int = 40) -> list[Sample]:
    phases = {"actor": {"env_step": 3.0, "wait_action": 1.0}, "learner": {"wait": 2.0, "train": 6.0}}
    return [
        Sample(
            float(i), env_steps=1000 * i, episode_return=10.0 * i, env_steps_per_s=1100.0,
            trained_steps_per_s=1000.0, learner_waiting=0.25, policy_lag=1.5, num_restarts=1,
            phases=phases, load={"actor-0": 40_000.0},
        )
        for i in range(count)
    ]  # fmt: skip


def test_several_policies_have_curves_of_their_own() -> None:
    samples = [
        replace(
            sample,
            policies={
                "red": {"episode_return": i, "loss": 1 / (i + 1), "env_steps": 600 * i},
                "blue": {"episode_return": -i, "loss": 0.1, "env_steps": 400 * i},
            },
        )
        for i, sample in enumerate(history())
    ]
    result = {
        "policy": "red", "mean_return": 41.0, "env_steps": 24_000,
        "policies": {"red": {"mean_return": 41.0, "env_steps": 24_000}, "blue": {"env_steps": 16_001}},
    }  # fmt: skip
    page = read(build_report(samples, [], CONFIG, result))
    labels = [str(svg.get("aria-label")) for svg in page.of("svg")]
    assert "loss over wall-clock (s)" in labels
    titles = [text for text in page.text if text in ("red", "blue", "training")]
    # In four charts each: the curve and the legend.
    assert (titles.count("red"), titles.count("blue"), titles.count("training")) == (8, 8, 0)
    assert "40,001" in page.text, "the steps of all"
    assert "41.0" in page.text
    alone = read(build_report(history(), [], CONFIG, {}))
    assert "training" in alone.text
    assert "Policies" not in alone.text


def test_learning_curve_is_drawn_over_steps_and_over_time() -> None:
    page = read(build_report(history(), [], CONFIG, {}))
    labels = [str(svg.get("aria-label")) for svg in page.of("svg")]
    assert "mean return over environment steps" in labels
    assert "mean return over wall-clock (s)" in labels
    curve = next(a for a in page.of("polyline") if a.get("class") == "curve series-0")
    points = [tuple(map(float, p.split(","))) for p in str(curve["points"]).split()]
    assert len(points) == 40
    assert points[0][0] < points[-1][0], "time goes to the right"
    assert points[0][1] > points[-1][1], "a growing return goes up"
    assert any("target 475" in text for text in page.text)


def test_breakdown_events_figures_and_config_are_there() -> None:
    events = [Event(65.0, "actor-0 was killed by SIGKILL; restarting in 0.2 s")]
    result = {
        "end": "finished",
        "message": "done",
        "mean_return": 480.25,
        "env_steps": 39_000,
        "wall_clock_s": 14.6,
    }
    text = " ".join(read(build_report(history(), events, CONFIG, result)).text)
    for expected in (
        "480.2",
        "39,000",
        "14.6 s",
        "env step",
        "75.0 %",
        "1 min 05 s",
        "actor-0 was killed",
        "40,000 steps",
    ):
        assert expected in text
    assert "until_return: 475" in text


def test_nothing_is_fetched_or_executed() -> None:
    html = build_report(history(), [Event(1.0, "<script>alert(1)</script><img src=http://x/>")], CONFIG, {})
    page = read(html)
    assert not page.of("script")
    assert not page.of("img")
    assert not page.of("link")
    assert not any(key in ("src", "href", "onload") for _, attributes in page.tags for key in attributes)
    assert "<script>alert(1)</script>" in " ".join(page.text)
    policy = next(a for a in page.of("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert str(policy["content"]).startswith("default-src 'none'")


def test_a_run_that_failed_at_once_has_a_page_too() -> None:
    result = {"end": "user error", "message": "unknown env"}
    text = " ".join(read(build_report([], [], "", result)).text)
    assert "user error" in text
    assert "No data was recorded." in text


def test_long_runs_are_shown_in_hours() -> None:
    samples = [Sample(3600.0 * i, env_steps=i, episode_return=1.0 * i) for i in range(10)]
    assert "wall-clock (h)" in build_report(samples, [], CONFIG, {})


def test_command_writes_the_page_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = RunDir(tmp_path)
    written = History(run_dir.history)
    written.add(history(1)[0])
    written.close()
    assert run(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"report: {run_dir.report}\n"
    read(run_dir.report.read_text())


def test_command_refuses_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path} is no run directory: it has no history.jsonl\n"
