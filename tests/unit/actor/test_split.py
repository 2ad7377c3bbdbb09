"""A group's unroll as one trajectory per environment: against an obvious split, and through a whole group."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from services.actor.split import split_by_env, split_by_share
from shoal.clients.replay_shard import ITEM_OVERHEAD_BYTES, RESPONSE_OVERHEAD_BYTES
from shoal.config.connections import LimitsSection
from shoal.errors import InvalidArgumentError, UserError
from shoal.records import Episode, Trajectory
from shoal.wire import decode_sequence, encode_trajectory
from tests.unit.actor.harness import INDEX, E, Harness, T, breaking_at, run
from tests.unit.envs import counting


@st.composite
def unrolls(draw: st.DrawFn) -> tuple[Trajectory, list[list[Episode]]]:
    """An unroll and, by hand, the episodes of each of its environments."""
    num_rows, num_envs = draw(st.integers(2, 6)), draw(st.integers(1, 5))
    terminated = draw(hnp.arrays(bool, (num_rows, num_envs)))
    truncated = draw(hnp.arrays(bool, (num_rows, num_envs)))
    in_order: list[Episode] = []
    by_env: list[list[Episode]] = [[] for _ in range(num_envs)]
    for t in range(num_rows - 1):
        for env in range(num_envs):
            if terminated[t, env] or truncated[t, env]:
                episode = Episode(float(100 * env + t), t + 1)
                in_order.append(episode)
                by_env[env].append(episode)
    columns = {
        "observation": np.arange(num_rows * num_envs * 3, dtype=np.float32).reshape(num_rows, num_envs, 3),
        "action": np.arange(num_rows * num_envs).reshape(num_rows, num_envs),
        "terminated": terminated,
        "truncated": truncated,
        "first": draw(hnp.arrays(bool, (num_rows, num_envs))),
    }
    return Trajectory(columns, tuple(in_order)), by_env


@given(unrolls(), st.integers(1, 5))
def test_every_share_has_its_columns_and_the_episodes_of_its_environments(
    unroll: tuple[Trajectory, list[list[Episode]]], num_shares: int
) -> None:
    trajectory, episodes = unroll
    cuts = np.linspace(0, trajectory.num_envs, num_shares + 1).astype(int).tolist()
    shares = [slice(start, stop) for start, stop in pairwise(cuts) if start < stop]
    parts = [
        decode_sequence((encode_trajectory(part),), LimitsSection())
        for part in split_by_share(trajectory, shares)
    ]
    for share, part in zip(shares, parts, strict=True):
        for name, column in trajectory.columns.items():
            np.testing.assert_array_equal(part.columns[name], column[:, share])
        assert list(part.episodes) == [episode for env in episodes[share] for episode in env]


@given(unrolls(), st.integers(0, 1 << 40), st.integers(0, 1 << 62))
def test_every_environment_gets_its_rows_and_its_episodes(
    unroll: tuple[Trajectory, list[list[Episode]]], first_stream: int, first_step: int
) -> None:
    trajectory, episodes = unroll
    parts = split_by_env(trajectory, first_stream, first_step)
    assert len(parts) == trajectory.num_envs
    for env, part in enumerate(parts):
        assert list(part.columns) == list(trajectory.columns)
        for name, column in trajectory.columns.items():
            np.testing.assert_array_equal(part.columns[name], column[:, env : env + 1])
            assert part.columns[name].dtype == column.dtype
        assert list(part.episodes) == episodes[env]
        assert (part.stream, part.first_step) == (first_stream + env, first_step)


def by_stream(trajectories: Sequence[Trajectory]) -> dict[int, list[Trajectory]]:
    streams = defaultdict(list)
    for trajectory in trajectories:
        streams[trajectory.stream].append(trajectory)
    return streams


@pytest.mark.parametrize("unrolls_of_a_sequence", [1, 2])
def test_a_group_hands_over_its_environments_one_by_one_in_one_append(unrolls_of_a_sequence: int) -> None:
    """Only what makes sequences together has to stay together."""

    async def test(harness: Harness) -> None:
        await harness.sink.until(6 * E)
        await harness.stop()
        sink = harness.sink
        assert set(sink.appends) == {(E, INDEX if unrolls_of_a_sequence > 1 else None)}
        assert harness.value("unrolls_total") == len(sink.appends)
        streams = by_stream(sink.trajectories)
        assert sorted(streams) == [INDEX * E + env for env in range(E)]
        for env, unrolls in enumerate(streams[INDEX * E + env] for env in range(E)):
            assert [unroll.first_step for unroll in unrolls] == [T * n for n in range(len(unrolls))]
            joined = decode_sequence([encode_trajectory(unroll) for unroll in unrolls], LimitsSection())
            assert joined.num_envs == 1
            assert joined.unroll_length == T * len(unrolls)
            counting.check_rows(joined)
            assert (joined.columns["observation"][:, :, 0] == 70 + env).all()
            ends = (joined.columns["terminated"] | joined.columns["truncated"])[:-1]
            assert len(joined.episodes) == np.count_nonzero(ends)

    run(test, unrolls=unrolls_of_a_sequence)


def test_dropped_steps_are_a_gap_in_the_stream() -> None:
    """Nobody can take what follows a break for the continuation of what was before it."""

    async def test(harness: Harness) -> None:
        await harness.sink.until(12 * E)
        await harness.stop()
        num_gaps = 0
        for unrolls in by_stream(harness.sink.trajectories).values():
            for before, after in pairwise(unrolls):
                continues = after.first_step == before.first_step + T
                try:
                    decode_sequence([encode_trajectory(before), encode_trajectory(after)], LimitsSection())
                except InvalidArgumentError:
                    assert not continues
                else:
                    assert continues
                # The version counts the replies, and so the steps of the group.
                steps = after.columns["policy_version"][0, 0] - before.columns["policy_version"][0, 0]
                assert after.first_step - before.first_step == steps
                num_gaps += not continues
        assert num_gaps >= 3 * E

    run(test, unrolls=1, prepare=breaking_at(accumulate(range(1, 11))))


@pytest.mark.parametrize(
    ("unrolls", "expected"),
    [
        # The trajectories of three environments take more than 600 bytes, that of one less.
        (1, r"encoded unroll of a group of \d+ bytes is above 600 bytes"),
        (4, r"encoded trajectory of \d+ bytes is above 150 bytes"),
    ],
)
def test_what_does_not_fit_into_a_message_is_the_users_to_mend(unrolls: int, expected: str) -> None:
    max_message_bytes = 600 + RESPONSE_OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES
    limits = LimitsSection.model_construct(
        **{**dict(LimitsSection()), "max_message_bytes": max_message_bytes}
    )

    async def test(harness: Harness) -> None:
        with pytest.raises(UserError, match=expected):
            await asyncio.wait_for(harness.task, 20)
        assert harness.sink.trajectories == []

    run(test, unrolls=unrolls, limits=limits)
