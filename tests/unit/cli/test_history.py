"""history.jsonl: bounded, readable after a crash, continued by the next session."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from shoal.cli.history import Event, History, Sample, read_history, with_result


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path)
    sample = Sample(
        1.0, env_steps=10, episode_return=2.5, phases={"actor": {"encode": 0.5}}, load={"actor-0": 3.0}
    )
    history.add(sample)
    history.add_event(Event(1.5, "actor-0 was killed"))
    history.close()
    assert read_history(path) == ([sample], [Event(1.5, "actor-0 was killed")])


def test_thinning_bounds_the_file_and_keeps_span_and_events(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = History(path, max_samples=100)
    history.add_event(Event(0.5, "early"))
    for second in range(10_000):
        history.add(Sample(float(second), env_steps=second))
        assert len(history.samples) <= 100
    history.close()
    samples, events = read_history(path)
    assert 50 <= len(samples) <= 101
    assert (samples[0].time_s, samples[-1].time_s) == (0.0, 9999.0)
    assert events == [Event(0.5, "early")]
    gaps = [b.time_s - a.time_s for a, b in pairwise(samples)]
    assert max(gaps) <= 4 * 10_000 / 100
    assert len(path.read_text().splitlines()) <= 102


def test_last_sample_is_kept_even_when_it_was_due_to_be_skipped(tmp_path: Path) -> None:
    history = History(tmp_path / "h", max_samples=10)
    for second in range(25):
        history.add(Sample(float(second)))
    history.close()
    assert read_history(tmp_path / "h")[0][-1].time_s == 24.0


def test_a_torn_line_and_unknown_fields_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "h"
    lines = [json.dumps({"time_s": 1.0, "env_steps": 5, "from_the_future": 1}), '{"time_s": 2.0, "env_st']
    path.write_text("\n".join(lines))
    assert read_history(path) == ([Sample(1.0, env_steps=5)], [])


def test_next_session_continues(tmp_path: Path) -> None:
    path = tmp_path / "h"
    first = History(path)
    first.add(Sample(10.0))
    first.add_event(Event(12.0, "stopping"))
    first.close()
    second = History(path)
    assert second.last_time_s == 12.0
    second.add(Sample(13.0))
    second.close()
    assert [sample.time_s for sample in read_history(path)[0]] == [10.0, 13.0]


def test_no_file_is_an_empty_history(tmp_path: Path) -> None:
    assert read_history(tmp_path / "none") == ([], [])
    history = History(tmp_path / "new")
    assert history.last_time_s == 0.0
    history.close()


def test_the_learners_last_word_stands_in_the_last_sample() -> None:
    sample = Sample(9.0, env_steps=100, episode_return=1.0, policy_lag=2.0)
    assert with_result(sample, {"mean_return": 7.0, "env_steps": 120}) == replace(
        sample, env_steps=120, episode_return=7.0
    )


def test_of_several_policies_each_has_its_last_word(tmp_path: Path) -> None:
    """The result itself is that of the policy that ended the run."""
    red, blue = {"episode_return": 1.0, "loss": 0.5, "env_steps": 60}, {"env_steps": 40}
    sample = Sample(9.0, env_steps=100, episode_return=1.0, policies={"red": red, "blue": blue})
    ended = {"red": {"mean_return": 3.0, "env_steps": 70}, "blue": {"mean_return": None, "env_steps": 45}}
    final = with_result(sample, {"mean_return": 3.0, "env_steps": 70, "policy": "red", "policies": ended})
    assert (final.env_steps, final.episode_return) == (115, 3.0)
    assert final.policies == {
        "red": {"episode_return": 3.0, "loss": 0.5, "env_steps": 70},
        "blue": {"env_steps": 45},
    }
    history = History(tmp_path / "h")
    history.add(final)
    history.close()
    assert read_history(tmp_path / "h")[0] == [final]
