"""Metrics text in, growth out: over restarts too."""

from __future__ import annotations

import prometheus_client as prometheus

from shoal.cli.scrape import Counters, Metrics, by_label, parse, total

TEXT = """\
# HELP shoal_actor_env_steps_total Transitions made.
# TYPE shoal_actor_env_steps_total counter
shoal_actor_env_steps_total{mode="train"} 1.5e+03
shoal_actor_env_steps_created{mode="train"} 1.7e+09
shoal_actor_phase_seconds_total{phase="env_step"} 1.5
shoal_actor_phase_seconds_total{phase="wait_action"} 2.5
shoal_inference_request_latency_seconds_bucket{le="0.001"} 7.0
shoal_inference_request_latency_seconds_sum 0.5
shoal_inference_request_latency_seconds_count 10.0
python_gc_objects_collected_total{generation="0"} 5.0
"""


def counted(**values: float) -> Metrics:
    return {f"shoal_{name}_total": {frozenset(): value} for name, value in values.items()}


def test_only_what_views_need_is_parsed() -> None:
    metrics = parse(TEXT)
    assert set(metrics) == {
        "shoal_actor_env_steps_total",
        "shoal_actor_phase_seconds_total",
        "shoal_inference_request_latency_seconds_sum",
        "shoal_inference_request_latency_seconds_count",
    }
    assert total(metrics, "shoal_actor_env_steps_total") == 1500
    assert total(metrics, "shoal_missing") is None
    assert list(by_label(metrics, "phase")) == [
        ("shoal_actor_phase_seconds_total", "env_step", 1.5),
        ("shoal_actor_phase_seconds_total", "wait_action", 2.5),
    ]


def test_parses_what_the_library_writes() -> None:
    registry = prometheus.CollectorRegistry()
    prometheus.Counter("shoal_x", "A counter.", ["name"], registry=registry).labels('odd "name" \\ \n').inc(3)
    prometheus.Gauge("shoal_y", "A gauge.", registry=registry).set(float("nan"))
    prometheus.Histogram("shoal_z", "A histogram.", registry=registry).observe(2)
    metrics = parse(prometheus.generate_latest(registry).decode())
    assert total(metrics, "shoal_x_total") == 3
    assert total(metrics, "shoal_z_sum") == 2
    assert "shoal_y" in metrics


def test_nothing_to_parse() -> None:
    assert parse("") == {}


def test_growth_of_a_living_process() -> None:
    counters = Counters()
    assert counters.advance("actor-0", 1, counted(steps=100)) == counted(steps=100)
    assert counters.advance("actor-0", 1, counted(steps=130)) == counted(steps=30)


def test_a_new_life_counts_from_zero_even_if_it_is_already_further() -> None:
    counters = Counters()
    counters.advance("actor-0", 1, counted(steps=100))
    assert counters.advance("actor-0", 2, counted(steps=150)) == counted(steps=150)


def test_a_counter_that_fell_was_set_back() -> None:
    counters = Counters()
    counters.advance("actor-0", 1, counted(steps=100))
    assert counters.advance("actor-0", 1, counted(steps=20)) == counted(steps=20)


def test_processes_are_told_apart_and_gauges_left_out() -> None:
    counters = Counters()
    counters.advance("actor-0", 1, counted(steps=100))
    grown = counters.advance("actor-1", 2, {**counted(steps=7), "shoal_envs": {frozenset(): 64.0}})
    assert grown == counted(steps=7)


def test_a_series_that_appears_later_counts_from_zero() -> None:
    counters = Counters()
    counters.advance("replay-0", 1, counted(inserted=1))
    assert counters.advance("replay-0", 1, counted(inserted=1, rejected=2)) == counted(inserted=0, rejected=2)
