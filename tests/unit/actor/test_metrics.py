"""Numbers that are not a plain count."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry

from services.actor.metrics import MEAN_OVER, ActorMetrics
from shoal.clients.replay_writer import WriterStats
from shoal.records import Episode


def test_means_are_over_the_last_episodes() -> None:
    registry = CollectorRegistry()
    red = ActorMetrics(registry, "evaluate").of("red")

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"shoal_actor_{name}", {"mode": "evaluate", "policy": "red"})

    red.add([])
    assert value("episodes_total") == 0
    red.add([Episode(-3.0, 10), Episode(1.0, 20)])
    assert value("episode_return_mean") == -1.0
    assert value("episode_length_mean_steps") == 15.0
    assert value("episode_return_sum") == -2.0
    red.add([Episode(7.0, 4)] * (3 * MEAN_OVER))
    assert value("episode_return_mean") == 7.0
    assert value("episode_length_mean_steps") == 4.0
    assert value("episodes_total") == 3 * MEAN_OVER + 2
    assert value("episode_steps_total") == 12 * MEAN_OVER + 30


def test_what_a_kill_would_lose_is_what_is_open_now() -> None:
    registry = CollectorRegistry()
    metrics = ActorMetrics(registry)

    def value(state: str) -> float | None:
        return registry.get_sample_value("shoal_actor_open_steps", {"state": state})

    assert (value("recording"), value("unacked")) == (0, 0)
    metrics.follow_open(recording=30, unacked=640)
    assert (value("recording"), value("unacked")) == (30, 640)
    metrics.follow_open(recording=10, unacked=0)
    assert (value("recording"), value("unacked")) == (10, 0)


def test_the_writers_counters_are_followed_without_counting_twice() -> None:
    registry = CollectorRegistry()
    metrics = ActorMetrics(registry)
    stats = WriterStats()
    expected = {"acked": 5, "resent": 4, "moved": 3, "timed_out": 2, "rejected": 1}
    for rounds in range(1, 4):
        for name, count in expected.items():
            setattr(stats, f"num_{name}", count * rounds)
        metrics.follow_writer("red", stats)
        metrics.follow_writer("red", replace(stats))
        for name, count in expected.items():
            assert registry.get_sample_value(f"shoal_actor_{name}_items_total") == count * rounds
