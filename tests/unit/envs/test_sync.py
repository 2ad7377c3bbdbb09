"""Single environments that break are reported with where they were, and started again while others go on."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal.config.tree import EnvSection
from shoal.envs.batch import BatchEnv, EnvStep
from shoal.envs.make import make_batch_env
from shoal.envs.restarts import Restarts
from shoal.errors import UserError
from tests.unit.envs import faulty
from tests.unit.envs.faulty import PLANS, Plan, raises, shows
from tests.unit.envs.rollouts import batch_env, reset, step

FAULTY = f"{faulty.__name__}:FaultyEnv"


def faulty_envs(faults: dict[tuple[str, int], Callable[[Any], Any]], max_restarts: int = 2) -> Any:
    plan = PLANS["single"] = Plan(faults)
    return plan, EnvSection(id=FAULTY, kwargs={"plan": "single"}, max_restarts=max_restarts)


def step_through(section: EnvSection, num_steps: int, num_envs: int = 2) -> list[EnvStep]:
    restarts = Restarts(section.max_restarts)
    with batch_env(section, num_envs, restarts) as env:
        steps = [reset(env)]
        steps += [step(env, np.zeros(num_envs, np.int64)) for _ in range(num_steps)]
        assert env.num_restarts == restarts.num_restarts
    return steps


NAN, INFINITE = np.array([0, 0, np.nan]), np.array([-np.inf, 0, 0])


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (raises(RuntimeError("no\nlicence")), r"raised RuntimeError: no licence"),
        (raises(AssertionError()), r"raised AssertionError"),
        (shows(0, NAN), r"showed NaN in observation"),
        (shows(0, INFINITE), r"showed infinity in observation"),
        (shows(1, float("nan")), r"gave a reward of nan"),
        (shows(1, "much"), r"raised ValueError: could not convert string to float"),
        (shows(0, np.zeros(4)), r"showed observation of shape \[4\] instead of \[3\]"),
        (shows(0, np.zeros((1, 3))), r"showed observation of shape \[1, 3\] instead of \[3\]"),
        (shows(0, None), r"showed observation of shape \[\] instead of \[3\]"),
        (lambda result: result[:4], r"raised ValueError: not enough values to unpack"),
    ],
)
def test_one_that_breaks_is_started_again_and_the_other_goes_on(
    fault: Callable[[Any], Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Two environments: their third steps are the fifth and the sixth of all.
    plan, section = faulty_envs({("step", 6): fault})
    with caplog.at_level(logging.WARNING):
        steps = step_through(section, 5)
    (record,) = caplog.records
    message = record.getMessage()
    assert "\n" not in message
    where = r"\(seed 8, episode 1, step 3\)"
    assert re.search(
        rf"environment '{re.escape(FAULTY)}' {where} {told}.*; starting it again with seed", message
    )
    assert plan.counts["make"] == 3
    assert plan.num_closed == 3, "the broken one and two at the end"
    new_seed = plan.seeds[2]
    assert new_seed not in (7, 8)
    np.testing.assert_array_equal(steps[3].observation["observation"][:, 2], [3, 0])
    assert steps[3].observation["observation"][1, 0] == np.float32(new_seed)
    assert steps[3].first.tolist() == [False, True]
    assert not steps[3].done.any()
    assert steps[3].reward.tolist() == [3, 0]
    np.testing.assert_array_equal(steps[4].observation["observation"][:, 2], [4, 1])
    assert not steps[4].first.any()


def test_a_fault_at_the_start_of_a_later_episode_names_it(caplog: pytest.LogCaptureFixture) -> None:
    plan, section = faulty_envs({("reset", 3): raises(RuntimeError("gone")), ("reset", 5): shows(0, NAN)})
    with caplog.at_level(logging.WARNING):
        steps = step_through(section, 40, num_envs=1)
    messages = [record.getMessage() for record in caplog.records]
    assert "(seed 7, episode 3, step 0) raised RuntimeError: gone" in messages[0]
    assert f"(seed {plan.seeds[3]}, episode 2, step 0) showed NaN in observation" in messages[1]
    assert [bool(record.exc_info) for record in caplog.records] == [True, False], "a traceback once, of code"
    assert all(s.first[0] and s.reward[0] == 0 for s in steps if s.observation["observation"][0, 2] == 0)


def test_the_step_that_breaks_may_have_been_the_last_of_its_episode() -> None:
    """Its flags are dropped with it."""
    _, section = faulty_envs({("step", 2): lambda r: (NAN, 1.0, True, True, {})})
    steps = step_through(section, 3, num_envs=1)
    assert steps[2].first[0]
    assert not any(flag[0] for flag in (steps[2].terminated, steps[2].truncated, steps[2].done))
    assert not steps[3].first[0]


def test_what_breaks_again_at_once_is_tried_within_limits() -> None:
    plan, section = faulty_envs(
        {
            ("step", 2): raises(RuntimeError("one")),
            ("make", 2): raises(RuntimeError("two")),
            ("reset", 2): shows(0, NAN),
        },
        max_restarts=3,
    )
    steps = step_through(section, 2, num_envs=1)
    assert steps[2].first[0]
    assert np.isfinite(steps[2].observation["observation"]).all()
    assert plan.counts["make"] == 4
    plan, section = faulty_envs(
        {("step", 2): raises(RuntimeError("one")), ("close", 0): raises(OSError("x"))}
    )
    assert step_through(section, 2, num_envs=1)[2].first[0], "closing may fail, too"


def test_too_many_faults_end_it_with_the_last_one() -> None:
    plan, section = faulty_envs({("step", 0): raises(RuntimeError("gone"))})
    with pytest.raises(UserError, match=r"env.max_restarts is 2.*raised RuntimeError: gone"):
        step_through(section, 5)
    assert plan.counts["make"] == 4


def test_environments_of_one_actor_share_the_limit() -> None:
    PLANS["other"] = Plan({("step", 1): raises(RuntimeError("other"))})
    _, section = faulty_envs({("step", 1): raises(RuntimeError("one"))}, max_restarts=1)
    restarts = Restarts(1)
    other = section.model_copy(update={"kwargs": {"plan": "other"}})
    with batch_env(section, 1, restarts) as one, batch_env(other, 1, restarts) as two:
        reset(one)
        reset(two)
        step(one, [0])
        with pytest.raises(UserError, match="RuntimeError: other"):
            step(two, [0])


def test_faults_long_ago_do_not_count() -> None:
    now = [0.0]
    _, section = faulty_envs({("step", 0): raises(RuntimeError("gone"))})
    with batch_env(section, 1, Restarts(1, clock=lambda: now[0])) as env:
        reset(env)
        for _ in range(5):
            now[0] += 601
            assert step(env, [0]).first[0]
        assert env.num_restarts == 5


@pytest.mark.parametrize(
    ("what", "fault", "message"),
    [
        ("make", raises(RuntimeError("gone")), "cannot make environment '.*': RuntimeError: gone"),
        ("reset", raises(RuntimeError("gone")), r"\(seed 8, episode 1, step 0\) raised RuntimeError: gone"),
        ("reset", shows(0, NAN), r"\(seed 8, episode 1, step 0\) showed NaN in observation"),
        ("reset", shows(0, np.zeros(5)), r"\(seed 8, episode 1, step 0\) showed observation of shape \[5\]"),
        (
            "reset",
            lambda result: result[0],
            r"\(seed 8, episode 1, step 0\) raised ValueError: too many values",
        ),
    ],
)
def test_one_that_never_worked_is_an_error_at_once(
    what: str, fault: Callable[[Any], Any], message: str
) -> None:
    plan, section = faulty_envs({(what, 2): fault})
    with pytest.raises(UserError, match=message):
        step_through(section, 1)
    assert plan.counts["make"] == 2
    assert plan.num_closed >= 1


def test_masks_that_do_not_fit_are_an_error_at_once() -> None:
    _, section = faulty_envs({("reset", 1): shows(1, {"action_mask": np.ones(4)})})
    section = section.model_copy(update={"action_mask": "info"})
    with pytest.raises(
        UserError, match=r"action mask of shape \[4\] instead of \[5\], which the actions Disc"
    ):
        step_through(section, 1)


def test_masks_in_info_are_shown_with_the_observation() -> None:
    masks = [np.array([1, 0, 0, 0, i]) for i in (0, 1)]
    _, section = faulty_envs(
        {("step", i + 1): shows(4, {"action_mask": mask}) for i, mask in enumerate(masks)}
    )
    section = section.model_copy(update={"action_mask": "info"})
    steps = step_through(section, 2)
    assert steps[0].observation["action_mask"].tolist() == [[1] * 5] * 2
    assert steps[1].observation["action_mask"].tolist() == [mask.tolist() for mask in masks]
    assert steps[2].observation["action_mask"].tolist() == [[1] * 5] * 2


def test_the_watch_can_ask_where_it_is() -> None:
    env: BatchEnv
    told: list[str] = []

    def tell(result: Any) -> Any:
        told.append(env.doing())  # type: ignore[attr-defined]
        return result

    _, section = faulty_envs({("step", 0): tell, ("reset", 0): tell})
    with batch_env(section, 2) as env:
        reset(env)
        step(env, [0, 0])
    wheres = [re.sub(".*[(]|[)]", "", text) for text in told]
    assert wheres == [f"seed {seed}, episode 1, step {number}" for number in (0, 1) for seed in (7, 8)]


def test_actions_that_an_environment_changes_are_not_the_actors() -> None:
    section = EnvSection(id="Pendulum-v1")
    actions = np.array([[9.0], [9.0]], np.float32)
    env = make_batch_env(section, 2)
    env.reset(1)
    env.step({"policy": actions})
    env.close()
    assert (actions == 9).all()
