"""Samples from metrics: rates, shares, phases, over restarts and resumed sessions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.cli import vitals
from shoal.cli.history import Sample
from shoal.cli.scrape import parse
from shoal.cli.vitals import Reading, Vitals

ROOT = Path(__file__).resolve().parents[3]


def actor(steps: float, life: int = 1, name: str = "actor-0", env_step_s: float = 0.0) -> Reading:
    text = (
        f'shoal_actor_env_steps_total{{mode="train"}} {steps}\n'
        f'shoal_actor_phase_seconds_total{{phase="env_step"}} {env_step_s}\n'
    )
    return Reading(name, "actor", life, parse(text))


def learner(
    steps: float, *, wait_s: float = 0.0, episodes: int = 5, life: int = 1, run_steps: float | None = None
) -> Reading:
    text = of_policy("policy", steps, wait_s=wait_s, episodes=episodes, run_steps=run_steps)
    return Reading("learner-0", "learner", life, parse(text))


def of_policy(
    policy: str,
    steps: float,
    *,
    wait_s: float = 0.0,
    episodes: int = 5,
    run_steps: float | None = None,
    mean: float = 21.5,
    version: int = 9,
    lag: float = 2.0,
    times: float = 1.0,
) -> str:
    """What a learner shows of one policy."""
    only = f'{{policy="{policy}"}}'
    return (
        f"shoal_learner_trained_steps_total{only} {times * steps}\n"
        f"shoal_learner_run_env_steps{only} {steps if run_steps is None else run_steps}\n"
        f"shoal_learner_run_trained_steps{only} {times * (steps if run_steps is None else run_steps)}\n"
        f"shoal_learner_episodes_total{only} {episodes}\n"
        f"shoal_learner_episode_return_mean{only} {mean}\n"
        f"shoal_learner_loss{only} {mean / 10}\n"
        f"shoal_learner_policy_lag_versions_sum{only} {lag * steps}\n"
        f"shoal_learner_policy_lag_versions_count{only} {steps}\n"
        f"shoal_learner_policy_version{only} {version}\n"
        f"shoal_learner_effective_batch_steps{only} 1280\n"
        f'shoal_learner_phase_seconds_total{{phase="wait",policy="{policy}"}} {wait_s}\n'
        f'shoal_learner_phase_seconds_total{{phase="train",policy="{policy}"}} 1\n'
    )


def learner_of(*policies: str, life: int = 1) -> Reading:
    return Reading("learner-0", "learner", life, parse("".join(policies)))


def test_of_several_learners_the_first_speaks_for_all() -> None:
    """Both show the totals of the run; what each has done, and how long it waited, is its own."""

    def both(steps: float, wait_s: float) -> list[Reading]:
        first = learner(steps, wait_s=wait_s, run_steps=2 * steps)
        return [replace(first, process="learner-1"), first]

    run = Vitals()
    run.update(1.0, both(100, 0.0), 0)
    sample = run.update(3.0, both(200, 0.5), 0)
    assert (sample.env_steps, sample.trained_steps_per_s, sample.learner_waiting) == (400, 100.0, 0.25)
    late = run.update(4.0, both(300, 0.5)[:1], 0)
    assert (late.env_steps, late.policy_version) == (400, None), "nobody speaks for the first"


def test_steps_that_are_trained_on_several_times() -> None:
    run = Vitals()
    run.update(1.0, [learner_of(of_policy("policy", 100, times=3.0))], 0)
    sample = run.update(2.0, [learner_of(of_policy("policy", 200, times=3.0))], 0)
    assert (sample.env_steps, sample.trained_steps_per_s, sample.samples_per_step) == (200, 300.0, 3.0)
    assert Vitals().update(1.0, [learner_of(of_policy("policy", 0))], 0).samples_per_step is None


def test_rates_are_means_over_the_last_ten_seconds() -> None:
    """Rounds of 3 s, each with 300 steps at its end: a poll sees all or nothing of a round."""
    run = Vitals()
    samples = [
        run.update(float(t), [actor(300 * (t // 3)), learner(300 * (t // 3), wait_s=t / 2)], 0)
        for t in range(1, 31)
    ]
    rates = {sample.env_steps_per_s for sample in samples[10:]}
    assert rates == {90.0, 120.0}
    assert {sample.trained_steps_per_s for sample in samples[10:]} == rates
    assert {sample.learner_waiting for sample in samples[10:]} == {0.5}
    assert {sample.policy_lag for sample in samples[10:]} == {2.0}, "also of polls that saw no round end"
    idle = [run.update(float(t), [actor(3000), learner(3000, wait_s=15.0)], 0) for t in range(31, 43)]
    assert (idle[0].env_steps_per_s, idle[-1].env_steps_per_s) == (90.0, 0.0)
    assert run.rates == {"actor-0": 0.0, "learner-0": 0.0}
    run.update(43.0, [actor(3000)], 0)
    assert run.rates == {"actor-0": 0.0}, "the learner is away"


def test_rates_begin_with_the_second_poll() -> None:
    run = Vitals()
    first = run.update(1.0, [actor(100), actor(50, name="actor-1"), learner(80)], 0)
    assert first.env_steps_per_s is None
    second = run.update(3.0, [actor(300), actor(150, name="actor-1"), learner(280, wait_s=0.5)], 0)
    assert (second.env_steps_per_s, second.trained_steps_per_s) == (150.0, 100.0)
    assert run.rates == {"actor-0": 100.0, "actor-1": 50.0, "learner-0": 100.0}
    assert second.learner_waiting == 0.25
    assert second.policy_lag == 2.0
    assert second.effective_batch == 1280
    assert (second.env_steps, second.episode_return, second.policy_version) == (280, 21.5, 9)


def untrained(policy: str, mean: float, episodes: int) -> str:
    return (
        f'shoal_learner_untrained_return_mean{{policy="{policy}"}} {mean}\n'
        f'shoal_learner_untrained_episodes{{policy="{policy}"}} {episodes}\n'
    )


def test_the_untrained_policys_return_is_shown_once_an_episode_of_it_has_ended() -> None:
    text = of_policy("policy", 80)
    early = Vitals().update(1.0, [learner_of(text, untrained("policy", 0.0, 0))], 0)
    assert early.untrained_return is None
    later = Vitals().update(1.0, [learner_of(text, untrained("policy", 22.5, 3))], 0)
    assert (later.episode_return, later.untrained_return) == (21.5, 22.5)


def test_of_several_policies_it_is_that_of_the_highest_return() -> None:
    texts = (of_policy("red", 1, mean=5.0), of_policy("blue", 1, mean=9.0), untrained("red", 4.0, 3))
    sample = Vitals().update(1.0, [learner_of(*texts)], 0)
    assert (sample.episode_return, sample.untrained_return) == (9.0, None)
    assert sample.policies["red"]["untrained_return"] == 4.0
    assert "untrained_return" not in sample.policies["blue"]


def test_a_restart_makes_no_negative_rate_and_loses_no_phase() -> None:
    run = Vitals()
    run.update(1.0, [actor(1000, env_step_s=4.0)], 0)
    sample = run.update(2.0, [actor(200, life=2, env_step_s=1.0)], 1)
    assert sample.env_steps_per_s == 200.0
    assert sample.phases == {"actor": {"env_step": 5.0}}
    assert sample.load == {"actor-0": 1200.0}
    assert sample.num_restarts == 1


def test_a_learner_that_comes_back_does_not_set_the_run_to_zero() -> None:
    run = Vitals()
    run.update(1.0, [learner(500)], 0)
    away = run.update(2.0, [], 1)
    assert (away.env_steps, away.learner_waiting, away.episode_return) == (500, None, None)
    back = run.update(3.0, [learner(0, life=2, run_steps=0, episodes=0)], 1)
    assert (back.env_steps, back.episode_return) == (500, None)


def test_waiting_is_never_more_than_all_of_the_time() -> None:
    run = Vitals()
    run.update(1.0, [learner(10)], 0)
    assert run.update(2.0, [learner(10, wait_s=5.0)], 0).learner_waiting == 1.0


def test_a_learner_without_a_first_batch_does_not_count_as_busy() -> None:
    run = Vitals()
    run.update(1.0, [learner(0)], 0)
    assert run.update(2.0, [learner(0)], 0).learner_waiting is None


def test_inference_and_replay() -> None:
    def readings(batches: int) -> list[Reading]:
        inference = (
            f"shoal_inference_rows_total {256 * batches}\nshoal_inference_batches_total {batches}\n"
            f"shoal_inference_request_latency_seconds_sum {0.002 * batches}\n"
            f"shoal_inference_request_latency_seconds_count {batches}\n"
        )
        replay = (
            'shoal_replay_items{table="train"} 3\nshoal_replay_max_items{table="train"} 8\n'
            f'shoal_replay_sample_wait_seconds_total{{table="train"}} {0.5 * batches}\n'
        )
        shards = [Reading(f"replay-{i}", "replay", i, parse(replay)) for i in range(2)]
        return [Reading("inference-0", "inference", 1, parse(inference)), *shards]

    run = Vitals()
    run.update(1.0, readings(1), 0)
    sample = run.update(2.0, readings(3), 0)
    assert sample.inference_batch == 256
    assert sample.inference_latency_ms == pytest.approx(2.0)
    assert (sample.replay_items, sample.replay_fill) == (6, 0.375)
    assert sample.phases["replay"] == {"sample_wait": 3.0}


def evaluator(index: int, episodes: int, mean: float, policy: str = "policy") -> Reading:
    labels = f'{{mode="evaluate",policy="{policy}"}}'
    text = (
        f"shoal_actor_episodes_total{labels} {episodes}\n"
        f"shoal_actor_episode_return_mean{labels} {mean}\n"
        'shoal_actor_env_steps_total{mode="evaluate"} 10\n'
    )
    return Reading(f"evaluator-{index}", "evaluator", index, parse(text))


def test_evaluation_counts_evaluators_with_an_episode_only() -> None:
    run = Vitals()
    assert run.update(1.0, [evaluator(0, 0, 0.0)], 0).evaluation_return is None
    sample = run.update(2.0, [evaluator(0, 3, 100.0), evaluator(1, 0, 0.0), evaluator(2, 1, 50.0)], 0)
    assert sample.evaluation_return == 75.0
    assert sample.env_steps_per_s == 0.0, "evaluators collect nothing"


def test_of_one_policy_nothing_is_told_apart() -> None:
    assert Vitals().update(1.0, [learner(80)], 0).policies == {}


def test_several_policies_are_summed_up_and_told_apart() -> None:
    run = Vitals()
    run.update(1.0, [learner_of(of_policy("red", 100), of_policy("blue", 0, episodes=0))], 0)
    readings = [
        learner_of(
            of_policy("red", 300, wait_s=0.5, run_steps=1300, mean=-4.0, version=40),
            of_policy("blue", 100, wait_s=1.5, run_steps=1100, mean=7.0, version=30, lag=6.0),
        ),
        evaluator(0, 2, -5.0, "red"),
    ]
    sample = run.update(3.0, readings, 0)
    assert (sample.env_steps, sample.trained_steps_per_s) == (2400, 150.0)
    assert (sample.episode_return, sample.evaluation_return, sample.policy_version) == (7.0, -5.0, 40)
    assert sample.learner_waiting == pytest.approx((0.25 + 0.75) / 2)
    # Of 200 steps of the one and 100 of the other.
    assert sample.policy_lag == pytest.approx((200 * 2 + 100 * 6) / 300)
    assert sample.phases["learner"] == {"wait": 2.0, "train": 2.0}
    assert sample.load["learner-0"] == 400
    assert sample.policies == {
        "red": {"episode_return": -4.0, "evaluation_return": -5.0, "loss": -0.4, "env_steps": 1300},
        "blue": {"episode_return": 7.0, "loss": 0.7, "env_steps": 1100},
    }


def test_a_policy_that_is_not_trained_yet_neither_waits_nor_has_figures() -> None:
    run = Vitals()
    waiting = of_policy("blue", 0, episodes=0, wait_s=0.0)
    run.update(1.0, [learner_of(of_policy("red", 100), waiting)], 0)
    still = of_policy("blue", 0, episodes=0, wait_s=1.0)
    sample = run.update(2.0, [learner_of(of_policy("red", 200, wait_s=0.1), still)], 0)
    assert sample.learner_waiting == pytest.approx(0.1)
    assert sample.policies["blue"] == {}


def test_a_policy_whose_checkpoint_is_being_loaded_keeps_its_steps() -> None:
    run = Vitals()
    before = run.update(1.0, [learner_of(of_policy("red", 500), of_policy("blue", 300))], 0)
    back = learner_of(of_policy("red", 0, run_steps=480), of_policy("blue", 0, run_steps=0), life=2)
    for resumed in (run, Vitals(before)):
        sample = resumed.update(2.0, [back], 1)
        assert sample.env_steps == 780
        assert sample.policies["blue"]["env_steps"] == 300


def test_a_resumed_session_goes_on_from_the_last_one() -> None:
    before = Sample(
        50.0, env_steps=900, num_restarts=2, phases={"actor": {"env_step": 10.0}}, load={"actor-0": 900.0}
    )
    sample = Vitals(before).update(51.0, [actor(100, env_step_s=1.0)], 1)
    assert sample.phases == {"actor": {"env_step": 11.0}}
    assert sample.load == {"actor-0": 1000.0}
    assert (sample.env_steps, sample.num_restarts) == (900, 3)


def guard(policy: str, name: str, active: int) -> str:
    return f'shoal_learner_guard_active{{guard="{name}",policy="{policy}"}} {active}\n'


def test_guards_that_warn() -> None:
    alone = of_policy("policy", 5) + guard("policy", "non_finite", 0) + guard("policy", "memory_growth", 1)
    assert Vitals().update(1.0, [learner_of(alone)], 0).guards == ["memory_growth"]
    two = learner_of(of_policy("red", 5), of_policy("blue", 5), guard("red", "value_explosion", 1))
    assert Vitals().update(1.0, [two], 0).guards == ["red: value_explosion"]
    assert Vitals().update(1.0, [learner(5)], 0).guards == []


def test_every_metric_name_exists_in_a_service() -> None:
    """A renamed metric would only show as a dash on the screen."""
    source = "".join(path.read_text() for path in ROOT.glob("services/*/metrics.py"))
    names = set(re.findall(r'"(shoal_[a-z_]+)"', Path(vitals.__file__).read_text()))
    assert len(names) > 10
    for name in names:
        _, service, what = name.split("_", 2)
        base = re.sub(r"_(total|sum|count)$", "", what)
        assert f'"{base}"' in source or f'"shoal_{service}_{base}"' in source, name
