"""Unrolls against a slow, obvious recorder that steps single environments one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from services.actor.unroll import UnrollBuilder
from shoal.clients.inference import ActReply, ActWelcome
from shoal.config.tree import EnvSection
from shoal.envs.episodes import EpisodeTracker
from shoal.envs.make import make_batch_env
from shoal.records import DEFAULT_POLICY, ArraySpec, Columns, DiscreteAction, EnvSpec, Episode, Trajectory
from tests.unit.envs import counting

OUTPUTS = (
    ArraySpec("action", "int64", (), counting.NUM_ACTIONS),
    ArraySpec("log_prob", "float32", ()),
    ArraySpec("logits", "float32", (2,)),
)
WELCOME = ActWelcome("replica", 0, OUTPUTS)
SEED = 40


def policy(observation: np.ndarray) -> tuple[int, float, list[float]]:
    """Any function of the observation will do, as long as it tells observations apart."""
    tag, episode, step = (int(x) for x in observation)
    return (tag + 2 * episode + step) % counting.NUM_ACTIONS, -step / 8, [tag, episode / 4]


def reply_to(observation: np.ndarray, version: int) -> ActReply:
    rows = [policy(row) for row in observation]
    outputs = {
        "action": np.array([row[0] for row in rows], np.int64),
        "log_prob": np.array([row[1] for row in rows], np.float32),
        "logits": np.array([row[2] for row in rows], np.float32),
    }
    return ActReply(version, outputs)


def unrolls(
    vectorization: str, unroll_length: int, num_envs: int, num_unrolls: int, max_length: int
) -> Iterator[Trajectory]:
    """What the actor does, without a stream. The policy version counts the steps."""
    name = "CountingNative-v0" if vectorization == "native" else "Counting-v0"
    kwargs = {"max_length": max_length}
    section = EnvSection.model_validate(
        {"id": f"{counting.__name__}:{name}", "vectorization": vectorization, "kwargs": kwargs}
    )
    env = make_batch_env(section, num_envs)
    try:
        builder = UnrollBuilder(env.slots[DEFAULT_POLICY].spec, WELCOME, unroll_length, num_envs)
        episodes = EpisodeTracker(num_envs)
        builder.start(env.reset(SEED)[DEFAULT_POLICY])
        version = 0
        for _ in range(num_unrolls):
            while not builder.full:
                reply = reply_to(builder.observation["observation"], version)
                version += 1
                step = env.step({DEFAULT_POLICY: reply.outputs["action"]})[DEFAULT_POLICY]
                builder.add(reply, step, episodes.add(step))
            yield builder.trajectory()
            builder.carry_over()
    finally:
        env.close()


@dataclass
class Recorded:
    """One environment's steps, one list per column; observation and first have one more entry."""

    columns: dict[str, list[Any]]
    ends: list[tuple[int, Episode]]


def record(tag: int, num_steps: int, max_length: int) -> Recorded:
    env = counting.CountingEnv(max_length)
    observation, _ = env.reset(seed=tag)
    first, done, total, length = True, False, 0.0, 0
    recorded = Recorded(defaultdict(list), [])
    for t in range(num_steps):
        action, log_prob, logits = policy(observation)
        row: dict[str, Any] = {"observation": observation, "first": first, "policy_version": t}
        row |= {"action": action, "log_prob": log_prob, "logits": logits}
        if done:
            observation, _ = env.reset()
            reward, terminated, truncated, first, total, length = 0.0, False, False, True, 0.0, 0
        else:
            observation, reward, terminated, truncated, _ = env.step(action)
            first, total, length = False, total + reward, length + 1
        done = terminated or truncated
        if done:
            recorded.ends.append((t, Episode(total, length)))
        row |= {"reward": reward, "terminated": terminated, "truncated": truncated}
        for key, value in row.items():
            recorded.columns[key].append(value)
    recorded.columns["observation"].append(observation)
    recorded.columns["first"].append(first)
    return recorded


def expected_unroll(envs: list[Recorded], k: int, unroll_length: int) -> tuple[Columns, list[Episode]]:
    start, stop = k * unroll_length, (k + 1) * unroll_length
    columns: Columns = {}
    for name in envs[0].columns:
        if name in ("observation", "first"):
            rows = [env.columns[name][start : stop + 1] for env in envs]
        else:
            last = "policy_version"
            rows = []
            for env in envs:
                values = env.columns[name][start:stop]
                rows.append([*values, values[-1] if name == last else np.zeros_like(values[-1])])
        columns[name] = np.stack([np.array(row) for row in rows], axis=1)
    ends = [(t, i, e) for i, env in enumerate(envs) for t, e in env.ends if start <= t < stop]
    return columns, [episode for _, _, episode in sorted(ends, key=lambda end: end[:2])]


@pytest.mark.parametrize("vectorization", ["sync", "async", "native"])
@pytest.mark.parametrize(
    ("unroll_length", "num_envs", "max_length"),
    [
        (5, 3, 7),  # ends fall on every place of an unroll, boundaries included
        (1, 3, 3),  # every step is a boundary
        (20, 2, 4),  # several episodes per unroll
        (4, 3, 30),  # episodes span several unrolls
        (6, 3, 1),  # every episode has one step
    ],
)
def test_unrolls_equal_those_of_a_slow_recorder(
    vectorization: str, unroll_length: int, num_envs: int, max_length: int
) -> None:
    num_unrolls = max(8, 60 // unroll_length)
    envs = [record(SEED + i, num_unrolls * unroll_length, max_length) for i in range(num_envs)]
    num_ends = 0
    for k, trajectory in enumerate(unrolls(vectorization, unroll_length, num_envs, num_unrolls, max_length)):
        columns, episodes = expected_unroll(envs, k, unroll_length)
        assert set(trajectory.columns) == set(columns)
        for name, column in columns.items():
            np.testing.assert_array_equal(trajectory.columns[name], column, err_msg=f"{name} of unroll {k}")
        assert list(trajectory.episodes) == episodes
        num_ends += len(episodes)
        first = columns["first"]
        assert trajectory.num_transitions == first[1:].size - first[1:].sum()
    assert num_ends == sum(len(env.ends) for env in envs) > 0


def test_the_cases_that_matter_happen() -> None:
    """Terminations, truncations, autoresets at the boundary: the comparison above has seen them all."""
    trajectories = [
        {name: column.copy() for name, column in t.columns.items()} for t in unrolls("sync", 5, 3, 12, 7)
    ]
    assert any(c["terminated"].any() for c in trajectories)
    assert any(c["truncated"].any() for c in trajectories)
    assert any(c["first"][-1].any() for c in trajectories), "an episode starts at row T"
    assert any((c["terminated"] | c["truncated"])[-2].any() for c in trajectories), "one ends at T-1"
    for c in trajectories:
        done = c["terminated"] | c["truncated"]
        ends, envs = np.nonzero(done)
        for t, env in zip(ends, envs, strict=True):
            # The row after the end shows the same episode one step on: the true final observation.
            np.testing.assert_array_equal(
                c["observation"][t + 1, env], c["observation"][t, env] + np.array([0, 0, 1])
            )
            assert not c["first"][t + 1, env]


def test_dtypes_and_row_sharing() -> None:
    dtypes = {
        "observation": "float32",
        "action": "int64",
        "log_prob": "float32",
        "reward": "float32",
        "terminated": "bool",
        "truncated": "bool",
        "first": "bool",
        "policy_version": "int64",
    }
    last: np.ndarray | None = None
    for trajectory in unrolls("sync", 3, 2, 4, 5):
        for name, dtype in dtypes.items():
            assert trajectory.columns[name].dtype == dtype
            assert trajectory.columns[name].flags.c_contiguous
        if last is not None:
            np.testing.assert_array_equal(trajectory.columns["observation"][0], last)
        last = trajectory.columns["observation"][-1].copy()


def test_dropping_an_open_unroll_starts_anew_at_the_current_observation() -> None:
    env = make_batch_env(EnvSection(id=f"{counting.__name__}:Counting-v0"), 2)
    builder = UnrollBuilder(env.slots[DEFAULT_POLICY].spec, WELCOME, 4, 2)
    episodes = EpisodeTracker(2)
    builder.start(env.reset(SEED)[DEFAULT_POLICY])
    shown = []
    for _ in range(3):
        reply = reply_to(builder.observation["observation"], 0)
        step = env.step({DEFAULT_POLICY: reply.outputs["action"]})[DEFAULT_POLICY]
        builder.add(reply, step, episodes.add(step))
        shown.append(step.first.copy())
    assert builder.num_transitions == 6 - sum(int(first.sum()) for first in shown)
    before = {name: array.copy() for name, array in builder.observation.items()}
    first = builder.first.copy()
    builder.carry_over()
    assert not builder.full
    assert builder.num_transitions == 0
    assert builder.episodes == []
    np.testing.assert_array_equal(builder.observation["observation"], before["observation"])
    np.testing.assert_array_equal(builder.first, first)
    for version in range(4):
        reply = reply_to(builder.observation["observation"], version)
        step = env.step({DEFAULT_POLICY: reply.outputs["action"]})[DEFAULT_POLICY]
        builder.add(reply, step)
    trajectory = builder.trajectory()
    np.testing.assert_array_equal(trajectory.columns["observation"][0], before["observation"])
    np.testing.assert_array_equal(trajectory.columns["policy_version"][:, 0], [0, 1, 2, 3, 3])


def test_an_unfinished_unroll_is_not_handed_out() -> None:
    spec = EnvSpec("x", (ArraySpec("observation", "float32", (1,)),), DiscreteAction(2))
    with pytest.raises(AssertionError, match="0 of 3 steps"):
        UnrollBuilder(spec, WELCOME, 3, 1).trajectory()
