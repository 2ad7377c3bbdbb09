"""Trajectories, sequences of them and rows: round trips against obvious models, and every lie refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.codec import DTYPES
from shoal.config.connections import LimitsSection
from shoal.errors import InvalidArgumentError, LimitError
from shoal.records import Columns, Episode, Trajectory
from shoal.v1 import trajectory_pb2
from shoal.wire import (
    check_columns,
    decode_columns,
    decode_sequence,
    decode_trajectory,
    encode_columns,
    encode_trajectory,
)

LIMITS = LimitsSection()
MAX_UINT64 = (1 << 64) - 1

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
specs = st.dictionaries(st.text(max_size=8), st.tuples(st.sampled_from(DTYPES), shapes), max_size=5)


def make_columns(
    specs: dict[str, tuple[str, tuple[int, ...]]], leading: tuple[int, ...], seed: int
) -> Columns:
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(0, 2, (*leading, *shape)).astype(dtype) for name, (dtype, shape) in specs.items()
    }


@st.composite
def trajectories(draw: st.DrawFn, max_steps: int = 12) -> Trajectory:
    leading = (draw(st.integers(2, max_steps + 1)), draw(st.integers(1, 3)))
    columns = make_columns(draw(specs), leading, draw(st.integers(0, 1 << 30)))
    state = make_columns(draw(specs), (1, leading[1]), draw(st.integers(0, 1 << 30)))
    columns |= {f"initial.{name}": array for name, array in state.items()}
    columns["first"] = np.random.default_rng(draw(st.integers(0, 99))).random(leading) < 0.3
    episodes = st.builds(Episode, st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 1 << 62))
    ended = draw(st.lists(episodes, max_size=leading[0] - 1).map(tuple))
    return Trajectory(columns, ended, draw(st.integers(0, MAX_UINT64)), draw(st.integers(0, MAX_UINT64)))


def assert_same_columns(got: Columns, expected: Columns) -> None:
    assert list(got) == list(expected)
    for name, array in expected.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        assert got[name].tobytes() == array.tobytes()


@given(trajectories())
def test_a_trajectory_arrives_as_it_was(trajectory: Trajectory) -> None:
    payload = encode_trajectory(trajectory)
    for got in (decode_trajectory(payload, LIMITS), decode_sequence([payload], LIMITS)):
        assert_same_columns(got.columns, trajectory.columns)
        assert replace(got, columns={}) == replace(trajectory, columns={})


@given(trajectories(), st.data())
def test_every_corruption_of_a_columns_data_is_refused(trajectory: Trajectory, data: st.DataObject) -> None:
    message = trajectory_pb2.Trajectory.FromString(encode_trajectory(trajectory))
    block = data.draw(st.sampled_from([block for block in message.blocks if block.data]))
    damaged = bytearray(block.data)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    block.data = bytes(damaged)
    with pytest.raises(InvalidArgumentError, match="CRC32C"):
        decode_trajectory(message.SerializeToString(), LIMITS)


@settings(max_examples=300)
@given(trajectories(), st.data())
def test_whatever_is_damaged_is_refused_in_an_orderly_way_or_whole(
    trajectory: Trajectory, data: st.DataObject
) -> None:
    payload = bytearray(encode_trajectory(trajectory))
    position = data.draw(st.integers(0, len(payload) - 1))
    payload[position] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(payload), bytes(payload[:position])):
        try:
            got = decode_trajectory(damaged, LIMITS)
        except InvalidArgumentError:
            continue
        num_rows, num_envs = got.columns["first"].shape
        for name, array in got.columns.items():
            assert array.shape[:2] == (1 if name.startswith("initial.") else num_rows, num_envs)


@st.composite
def sequences(draw: st.DrawFn) -> tuple[Trajectory, list[Trajectory]]:
    """A trajectory and the consecutive unrolls that it is cut into."""
    whole = draw(trajectories())
    whole = replace(whole, first_step=draw(st.integers(0, 1 << 62)))
    cuts = draw(st.sets(st.integers(1, whole.unroll_length))) | {0, whole.unroll_length}
    parts: list[Trajectory] = []
    episodes = list(whole.episodes)
    for start, end in pairwise(sorted(cuts)):
        is_last = end == whole.unroll_length
        ended = [episodes.pop(0) for _ in range(len(episodes) if is_last else min(1, len(episodes)))]
        columns = {
            name: _state_before(array, start) if name.startswith("initial.") else array[start : end + 1]
            for name, array in whole.columns.items()
        }
        parts.append(Trajectory(columns, tuple(ended), whole.stream, whole.first_step + start))
    return whole, parts


def _state_before(state: np.ndarray, step: int) -> np.ndarray:
    """Another one before each part, which is lost when they are joined."""
    return state if step == 0 else np.logical_not(state).astype(state.dtype)


def num_episodes_fit(parts: list[Trajectory]) -> bool:
    return all(len(part.episodes) <= part.unroll_length * part.num_envs for part in parts)


@given(sequences().filter(lambda sequence: num_episodes_fit(sequence[1])))
def test_unrolls_that_a_trajectory_was_cut_into_are_joined_to_it(
    sequence: tuple[Trajectory, list[Trajectory]],
) -> None:
    whole, parts = sequence
    got = decode_sequence([encode_trajectory(part) for part in parts], LIMITS)
    assert_same_columns(got.columns, whole.columns)
    assert replace(got, columns={}) == replace(whole, columns={})


def unroll(first_step: int = 0, num_envs: int = 1, **more: np.ndarray) -> Trajectory:
    """Four steps that say which they are; the last row, but for `step`, is not known yet."""
    step = np.arange(first_step, first_step + 5).repeat(num_envs).reshape(5, num_envs)
    reward = step.astype(np.float32)
    reward[-1] = -1
    return Trajectory(
        {"step": step, "reward": reward, "first": np.zeros((5, num_envs), bool), **more},
        (Episode(float(first_step), 1),),
        stream=3,
        first_step=first_step,
    )


def test_joined_by_hand() -> None:
    got = decode_sequence([encode_trajectory(unroll(start)) for start in (8, 12, 16)], LIMITS)
    assert got.columns["step"][:, 0].tolist() == list(range(8, 21))
    assert got.columns["reward"][:, 0].tolist() == [*range(8, 20), -1]
    assert (got.stream, got.first_step, got.unroll_length) == (3, 8, 12)
    assert [episode.episode_return for episode in got.episodes] == [8.0, 12.0, 16.0]


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (unroll(0), "step 4 of stream 3 is followed by step 0 of stream 3"),
        (unroll(3), "followed by step 3 "),
        (unroll(5), "followed by step 5 "),
        (unroll(8), "followed by step 8 "),
        (replace(unroll(4), stream=4), "followed by step 4 of stream 4"),
        (unroll(4, **{"initial.a": np.zeros((1, 1))}), "differ in their columns: .*'initial.a'"),
        (unroll(4, num_envs=2), "differ in their columns"),
        (unroll(4, more=np.zeros((5, 1))), "differ in their columns: .*'more'"),
        (unroll(4, step=np.zeros((5, 1), np.int32)), "differ in their columns: .*int64.*int32"),
        (unroll(4, step=np.zeros((5, 1, 2), np.int64)), r"differ in their columns: .*\(1, 2\)"),
    ],
)
def test_what_is_not_consecutive_is_refused(second: Trajectory, reason: str) -> None:
    payloads = [encode_trajectory(unroll(0)), encode_trajectory(second)]
    with pytest.raises(InvalidArgumentError, match=reason):
        decode_sequence(payloads, LIMITS)


def test_sequences_of_nothing_or_with_a_damaged_part_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one"):
        decode_sequence([], LIMITS)
    with pytest.raises(InvalidArgumentError, match="no Trajectory message"):
        decode_sequence([encode_trajectory(unroll(0)), b"\x0a"], LIMITS)


def test_a_sequence_is_bounded_as_a_whole() -> None:
    wide = [encode_trajectory(unroll(start, 30)) for start in range(0, 40, 4)]
    limits = LimitsSection(max_trajectory_bytes=5 * 30 * 13 * 4)
    decode_sequence(wide[:4], limits)
    with pytest.raises(LimitError, match="10 trajectories has more than 7800 bytes"):
        decode_sequence(wide, limits)


@given(specs, st.integers(0, 40), st.integers(0, 1 << 30))
def test_rows_arrive_as_they_were(
    specs: dict[str, tuple[str, tuple[int, ...]]], num_rows: int, seed: int
) -> None:
    columns = make_columns(specs, (num_rows,), seed)
    assert_same_columns(decode_columns(encode_columns(columns), LIMITS), columns)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"a": np.zeros(3), "b": np.zeros(4)}, r"same number of rows, not shapes {'a': \[3\], 'b': \[4\]}"),
        ({"a": np.zeros(())}, "same number of rows"),
        ({"a": np.zeros((), bool), "b": np.zeros(0)}, "same number of rows"),
        ({str(n): np.zeros(1) for n in range(300)}, "300 columns"),
        ({"a": np.zeros(1000), "b": np.zeros(1000)}, "max_trajectory_bytes"),
        ({"a": np.zeros(1001)}, "above the limit of 8000 bytes"),
    ],
)
def test_malformed_rows_are_refused(columns: Columns, reason: str) -> None:
    limits = LimitsSection(max_tensor_bytes=8000, max_trajectory_bytes=15_000)
    with pytest.raises(InvalidArgumentError, match=reason):
        decode_columns(encode_columns(columns), limits)


def test_a_layout_that_nobody_would_read_is_not_written() -> None:
    columns = {"a" * 65_520: np.zeros(1)}
    assert_same_columns(decode_columns(encode_columns(columns), LIMITS), columns)
    check_columns([(name, array.dtype, ()) for name, array in columns.items()], num_rows=1)
    too_long = {"a" * 65_536: np.zeros(1)}
    for encode in (encode_columns, lambda columns: encode_trajectory(Trajectory(columns))):
        with pytest.raises(LimitError, match=r"layout of \d+ bytes: at most 65536"):
            encode(too_long)
    with pytest.raises(LimitError, match="layout of"):
        check_columns([(name, array.dtype, ()) for name, array in columns.items()], num_rows=1 << 40)


@given(st.binary(max_size=300))
def test_random_bytes_are_no_rows(payload: bytes) -> None:
    try:
        columns = decode_columns(payload, LIMITS)
    except InvalidArgumentError:
        return
    # An empty message, or fields of another release, are no columns.
    assert columns == {}
