"""First priorities: against plain loops, against the learner's own losses, and on their way to the table."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

import services.actor.loop
from services.actor.loop import Actor
from services.actor.metrics import ActorMetrics
from services.actor.priorities import FirstPriorities, conditioned, first_priorities, rescaled, unscaled
from services.actor.split import split_by_env
from services.replay.shard import Shard
from shoal.algorithms.apex.loss import apex_loss
from shoal.algorithms.apex.profile import ApexConfig
from shoal.algorithms.batch import Batch
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.algorithms.r2d2.loss import r2d2_loss
from shoal.algorithms.r2d2.profile import R2d2Config
from shoal.algorithms.rescaling import rescaled as rescaled_tensor
from shoal.algorithms.rescaling import unscaled as unscaled_tensor
from shoal.algorithms.rewards import RewardConditioner
from shoal.clients.replay_shard import Append, Outcome
from shoal.config.connections import LimitsSection
from shoal.config.load import build_config
from shoal.config.tables import QueueTable, SequenceTable, TransitionTable
from shoal.config.tree import ReplaySection
from shoal.envs.make import make_batch_env
from shoal.envs.restarts import Restarts
from shoal.errors import UserError
from shoal.records import (
    FIRST,
    OBSERVATION,
    Q_MAX,
    Q_VALUE,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Columns,
    Life,
    Trajectory,
)
from shoal.wire import encode_trajectory
from tests.unit.actor.harness import DEFAULT_LIMITS, E, Harness, T, run
from tests.unit.algorithms.q_tables import TableQ

NUM_STEPS, NUM_ENVS = 7, 3
APEX = ApexConfig(discount=0.9, n_step=3)
R2D2 = R2d2Config(discount=0.9, n_step=2, rescale_epsilon=0.01, priority_max_share=0.75)
TRANSITIONS = TransitionTable(alpha=0.6, n_step=3, discount=0.9)


def unroll(seed: int) -> Columns:
    """Env 0 runs on, env 1 terminates at step 1, env 2 is truncated at step 3. Row T was never acted on."""
    rng = np.random.default_rng(seed)
    shape = (NUM_STEPS + 1, NUM_ENVS)
    terminated, truncated, first = (np.zeros(shape, np.bool_) for _ in range(3))
    terminated[1, 1] = truncated[3, 2] = True
    first[3, 1] = first[5, 2] = True
    value = rng.normal(0.0, 3.0, shape).astype(np.float32)
    best = value + rng.random(shape, np.float32)
    value[-1] = best[-1] = np.nan
    return {
        REWARD: rng.normal(0.0, 2.0, shape).astype(np.float32),
        TERMINATED: terminated,
        TRUNCATED: truncated,
        FIRST: first,
        Q_VALUE: value,
        Q_MAX: best,
    }


def slow_error(columns: Columns, t: int, b: int, n: int, discount: float) -> float:
    total, worth, row = 0.0, 1.0, t
    while True:
        total += worth * float(columns[REWARD][row, b])
        worth *= discount
        terminated, truncated = columns[TERMINATED][row, b], columns[TRUNCATED][row, b]
        row += 1
        if terminated or truncated or row == t + n or row == NUM_STEPS:
            break
    known = min(row, NUM_STEPS - 1)
    aim = total + (0.0 if terminated else worth * float(columns[Q_MAX][known, b]))
    return aim - float(columns[Q_VALUE][t, b])


@pytest.mark.parametrize("n", [1, 3, 50])
def test_of_transitions_against_plain_loops(n: int) -> None:
    columns = unroll(1)
    algorithm = APEX.model_copy(update={"n_step": n})
    priorities = FirstPriorities(algorithm, TRANSITIONS).of(columns)
    assert priorities.shape == (NUM_STEPS, NUM_ENVS)
    for t in range(NUM_STEPS):
        for b in range(NUM_ENVS):
            if not columns[FIRST][t + 1, b]:
                expected = abs(slow_error(columns, t, b, n, 0.9))
                assert priorities[t, b] == pytest.approx(expected, rel=1e-6)
    # Those of autoreset steps are not used, but they are sent.
    assert np.isfinite(priorities).all()


@pytest.mark.parametrize("algorithm", [APEX, R2D2])
def test_of_sequences_are_what_the_learner_would_say(algorithm: ApexConfig | R2d2Config) -> None:
    """If its network and its target gave the values that the actor saw."""
    columns = unroll(2)
    columns[Q_MAX][-1] = columns[Q_MAX][-2]
    columns[Q_VALUE][-1] = columns[Q_MAX][-1] - 1.0
    # Action 0 was taken, and 1 is the best.
    policy = TableQ(1)
    policy.q = torch.nn.Parameter(torch.from_numpy(np.stack([columns[Q_VALUE], columns[Q_MAX]], axis=-1)))
    tensors = {name: torch.from_numpy(column) for name, column in columns.items()}
    batch = Batch(
        observation={},
        action_SB=torch.zeros(NUM_STEPS + 1, NUM_ENVS, dtype=torch.int64),
        reward_SB=tensors[REWARD],
        terminated_SB=tensors[TERMINATED],
        truncated_SB=tensors[TRUNCATED],
        first_SB=tensors[FIRST],
        weight_B=torch.ones(NUM_ENVS),
    )
    if isinstance(algorithm, R2d2Config):
        output = r2d2_loss(policy, policy, batch, algorithm)
    else:
        output = apex_loss(policy, policy, batch, algorithm)
    assert output.priority_B is not None
    priorities = FirstPriorities(algorithm, SequenceTable(alpha=0.9)).of(columns)
    np.testing.assert_allclose(priorities, output.priority_B.numpy(), rtol=1e-4)


def test_a_sequence_of_several_unrolls_counts_all_steps_after_the_burn_in() -> None:
    unrolls = [unroll(seed) for seed in range(5)]
    algorithm = R2D2.model_copy(update={"burn_in": NUM_STEPS + 2, "rescale_epsilon": 0.0})
    table = SequenceTable(alpha=0.9, unrolls=3, overlap_unrolls=1)
    priorities = FirstPriorities(algorithm, table)
    found = [priorities.of(columns) for columns in unrolls]
    for last in (2, 3, 4):
        for b in range(NUM_ENVS):
            errors = [
                abs(slow_error(columns, t, b, 2, 0.9))
                for number, columns in enumerate(unrolls[last - 2 : last + 1])
                for t in range(NUM_STEPS)
                if number * NUM_STEPS + t >= NUM_STEPS + 2 and not columns[FIRST][t + 1, b]
            ]
            mixed = 0.75 * max(errors) + 0.25 * sum(errors) / len(errors)
            assert found[last][b] == pytest.approx(mixed, rel=1e-6)
    assert all(np.isfinite(early).all() for early in found[:2])


def test_a_sequence_without_a_step_is_never_sampled_and_one_without_error_seldom() -> None:
    columns = unroll(1)
    for name in (REWARD, Q_VALUE, Q_MAX):
        columns[name][:] = 0.0
    columns[FIRST][1:, 0] = True
    priorities = FirstPriorities(R2D2, SequenceTable(alpha=0.9)).of(columns)
    assert priorities[0] == 0.0
    assert 0.0 < priorities[1] < 1e-5


def test_what_is_not_finite_is_left_to_the_shard() -> None:
    """It refuses the trajectory and says why; the actor must not stumble over its priorities before."""
    columns = unroll(1)
    columns[REWARD][0, 0] = np.nan
    columns[REWARD][0, 1] = np.inf
    for table in (TRANSITIONS, SequenceTable(alpha=0.9)):
        priorities = np.atleast_2d(FirstPriorities(APEX, table).of(columns)).astype(np.float32)
        assert np.isfinite(priorities).all()
        assert (priorities[0, :2] > 1e30).all()


def test_are_made_only_where_they_are_used_and_can_be_known() -> None:
    assert first_priorities(APEX, TRANSITIONS) is not None
    assert first_priorities(R2D2, SequenceTable(alpha=0.5)) is not None
    assert first_priorities(APEX, TransitionTable(alpha=0.0)) is None
    assert first_priorities(APEX, QueueTable()) is None
    assert first_priorities(ImpalaConfig(), SequenceTable()) is None
    assert first_priorities(APEX.model_copy(update={"normalise_returns": True}), TRANSITIONS) is None


@given(
    st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from([None, 0.5, 10.0]),
    st.sampled_from([1.0, 0.1]),
)
def test_rewards_are_conditioned_as_the_learner_does(
    rewards: list[float], symlog: bool, clip: float | None, scale: float
) -> None:
    config = ApexConfig(reward_symlog=symlog, reward_clip=clip, reward_scale=scale)
    expected = RewardConditioner(config)(torch.tensor(rewards, dtype=torch.float64))
    np.testing.assert_allclose(
        conditioned(np.array(rewards), config), expected.numpy(), rtol=1e-9, atol=1e-12
    )


@given(st.floats(-1e6, 1e6), st.sampled_from([0.0, 1e-3, 0.1]))
def test_values_are_rescaled_as_the_learner_does(value: float, epsilon: float) -> None:
    array, tensor = np.array([value]), torch.tensor([value], dtype=torch.float64)
    ours = (rescaled(array, epsilon)[0], unscaled(array, epsilon)[0])
    learners = (rescaled_tensor(tensor, epsilon).item(), unscaled_tensor(tensor, epsilon).item())
    assert ours == pytest.approx(learners, rel=1e-6, abs=1e-9)


class Rewards(FirstPriorities):
    """Rewards for priorities: they tell which unroll they were made of."""

    def __init__(self) -> None:
        super().__init__(APEX, TRANSITIONS)

    def of(self, columns: Columns) -> np.ndarray:
        return columns[REWARD][:-1].copy()


def test_a_group_hands_them_over_with_the_unroll_they_are_of() -> None:
    async def test(harness: Harness) -> None:
        await harness.sink.until(6)
        for trajectory, priorities in zip(harness.sink.trajectories, harness.sink.priorities, strict=True):
            assert priorities is not None
            assert priorities.shape == (T, E)
            np.testing.assert_array_equal(priorities, trajectory.columns[REWARD][:-1])

    run(test, priorities=Rewards())


class Many(Rewards):
    def of(self, columns: Columns) -> np.ndarray:
        return np.ones(300_000)


def test_they_count_as_part_of_the_message() -> None:
    async def test(harness: Harness) -> None:
        with pytest.raises(UserError, match=r"encoded unroll of a group of 12\d{5} bytes is above"):
            await asyncio.wait_for(harness.task, 20)

    fields = {**dict(DEFAULT_LIMITS), "max_message_bytes": 1 << 20}
    run(test, limits=LimitsSection.model_construct(**fields), priorities=Many())


@pytest.mark.parametrize("algorithm", ["apex", "r2d2"])
def test_groups_of_an_actor_have_their_own(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[FirstPriorities] = []

    def group(*_: object, priorities: FirstPriorities, **__: object) -> None:
        given.append(priorities)

    monkeypatch.setattr(services.actor.loop, "Group", group)
    tree = {
        "actor": {"envs": 4, "groups": 2},
        "replay": {"tables": {"train": {"kind": "sequence", "alpha": 0.5}}},
        # Rewards as they are: what they are divided by, only the learner knows.
        "algorithm": {"name": algorithm, "normalise_returns": False},
    }
    config = build_config(tree)
    envs = [make_batch_env(config.env, 2, Restarts(1)) for _ in range(2)]
    Actor(config, envs, ActorMetrics(CollectorRegistry(), "train"))
    assert [type(priorities) for priorities in given] == [FirstPriorities] * 2
    assert given[0] is not given[1]
    for env in envs:
        env.close()


@pytest.mark.parametrize("table", [TRANSITIONS, SequenceTable(alpha=0.6)])
def test_the_table_takes_as_many_as_there_are(table: TransitionTable | SequenceTable) -> None:
    columns = unroll(3)
    columns[Q_VALUE][-1] = columns[Q_MAX][-1] = 0.0
    trajectory = Trajectory(columns | {OBSERVATION: np.zeros((NUM_STEPS + 1, NUM_ENVS, 2), np.float32)})
    parts = split_by_env(trajectory, 0, 0) if isinstance(table, SequenceTable) else [trajectory]
    priorities = FirstPriorities(APEX, table).of(columns)
    valid = ~columns[FIRST][1:] if priorities.ndim == 2 else np.ones(NUM_ENVS, np.bool_)

    async def stored() -> None:
        shard = Shard(ReplaySection(tables={"train": table}), DEFAULT_LIMITS)
        payloads = tuple(encode_trajectory(part) for part in parts)
        ack = await shard.append(Life("a", "b"), "train", Append(0, payloads, priorities.ravel()))
        assert ack.outcome is Outcome.STORED
        (stats,) = shard.stats()
        assert stats.num_items == valid.sum()
        assert stats.priority_mass == pytest.approx((priorities[valid] ** 0.6).sum(), rel=1e-5)

    asyncio.run(stored())
