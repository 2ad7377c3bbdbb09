"""Records survive the wire; what lies is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.config.connections import LimitsSection
from shoal.errors import InvalidArgumentError, LimitError, ProtocolVersionError
from shoal.records import (
    PROTOCOL_VERSION,
    ArraySpec,
    BoxAction,
    DiscreteAction,
    EnvSpec,
    Episode,
    MultiDiscreteAction,
    Trajectory,
)
from shoal.v1 import spec_pb2, tensor_pb2, trajectory_pb2
from shoal.wire import (
    check_protocol_version,
    decode_trajectory,
    encode_trajectory,
    spec_from_proto,
    spec_to_proto,
)

LIMITS = LimitsSection()

SPECS = [
    EnvSpec("CartPole-v1", (ArraySpec("observation", "float32", (4,)),), DiscreteAction(2)),
    EnvSpec(
        "Robot-v0",
        (
            ArraySpec("observation.camera", "uint8", (64, 64, 3)),
            ArraySpec("observation.mode", "int64", (), num_categories=5),
        ),
        BoxAction((2,), (-1.0, -math.inf), (1.0, math.inf)),
    ),
    EnvSpec("Game-v0", (ArraySpec("observation", "float32", ()),), MultiDiscreteAction((3, 2, 5))),
]


def trajectory(num_rows: int = 6, num_envs: int = 3) -> Trajectory:
    rng = np.random.default_rng(0)
    first = np.zeros((num_rows, num_envs), dtype=bool)
    first[2, 1] = True
    return Trajectory(
        {
            "observation": rng.random((num_rows, num_envs, 4), dtype=np.float32),
            "first": first,
            "reward": np.ones((num_rows, num_envs), dtype=np.float32),
        },
        (Episode(12.5, 13, 7), Episode(-1.0, 2, 0), Episode(0.0, 1)),
    )


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.env_id)
def test_specs_round_trip_with_their_hash(spec: EnvSpec) -> None:
    back = spec_from_proto(spec_pb2.EnvSpec.FromString(spec_to_proto(spec).SerializeToString()))
    assert back == spec
    assert back.hash() == spec.hash()


def test_specs_that_differ_have_different_hashes() -> None:
    assert len({spec.hash() for spec in SPECS}) == len(SPECS)


def test_descriptions_name_all_that_matters() -> None:
    assert SPECS[0].describe() == "CartPole-v1: observation float32[4] -> Discrete(2)"
    assert SPECS[1].describe() == (
        "Robot-v0: observation.camera uint8[64, 64, 3], observation.mode int64[] of 5 categories"
        " -> Box[2] within -1..1, -inf..inf"
    )
    assert SPECS[2].describe() == "Game-v0: observation float32[] -> MultiDiscrete([3, 2, 5])"


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.ClearField("observation"),
        lambda m: m.ClearField("action"),
        lambda m: m.observation.append(m.observation[0]),
        lambda m: m.observation[0].shape.append(-1),
        lambda m: m.observation[0].shape.extend([1] * 40),
        lambda m: setattr(m.observation[0], "dtype", 99),
        lambda m: setattr(m.observation[0], "num_categories", -1),
        lambda m: setattr(m.observation[0], "low", math.nan),
        lambda m: setattr(m.observation[0], "high", math.nan),
        lambda m: setattr(m.observation[0], "low", math.inf),
        lambda m: m.observation[0].MergeFrom(spec_pb2.ArraySpec(low=1.0, high=0.5)),
        lambda m: setattr(m.action.discrete, "n", 0),
        lambda m: m.action.box.low.append(1.0),
        lambda m: m.action.multi_discrete.SetInParent(),
        lambda m: m.action.multi_discrete.nvec.extend([2, 0]),
    ],
)
def test_malformed_specs_are_refused(change) -> None:
    message = spec_to_proto(SPECS[0])
    change(message)
    with pytest.raises(InvalidArgumentError):
        spec_from_proto(message)


def test_trajectories_round_trip() -> None:
    sent = trajectory()
    got = decode_trajectory(encode_trajectory(sent), LIMITS)
    assert got.episodes == sent.episodes
    assert list(got.columns) == list(sent.columns)
    for name, array in sent.columns.items():
        np.testing.assert_array_equal(got.columns[name], array)
    assert (got.unroll_length, got.num_envs) == (5, 3)
    assert got.num_transitions == 5 * 3 - 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.ClearField("layout"), "no column 'first'"),
        (lambda m: setattr(m, "layout", b"\xff" * 9), "no Layout message"),
        (lambda m: setattr(m, "layout", m.layout * 2000), "at most 65536"),
        (lambda m: setattr(m.episodes[0], "episode_return", math.inf), "return of inf"),
        (lambda m: setattr(m.episodes[0], "num_steps", 0), "episode of 0 steps"),
        (lambda m: m.episodes.extend([m.episodes[0]] * 13), "of 15 steps says that 16 episodes"),
        (lambda m: m.episodes.extend([m.episodes[0]] * 70_000), "more than 256 columns and 65536 episodes"),
        (lambda m: setattr(m.blocks[0], "codec", 77), "codec 77"),
        (lambda m: setattr(m.blocks[0], "data", b"short"), "CRC32C"),
        (lambda m: m.ClearField("blocks"), "0 blocks, its layout has 1"),
        (lambda m: m.blocks.append(m.blocks[0]), "2 blocks, its layout has 1"),
    ],
)
def test_lying_trajectories_are_refused(change, reason: str) -> None:
    message = trajectory_pb2.Trajectory.FromString(encode_trajectory(trajectory()))
    change(message)
    with pytest.raises(InvalidArgumentError, match=reason):
        decode_trajectory(message.SerializeToString(), LIMITS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.columns.append(m.columns[0]), "twice"),
        (lambda m: m.columns.extend([m.columns[0]] * 300), "303 columns: at most 256"),
        (lambda m: m.columns[0].shape.extend([1] * 1000), "rank 1003"),
        (lambda m: m.columns[0].shape.__setitem__(0, -6), "negative"),
        (
            lambda m: m.columns[0].shape.__setitem__(1, 2),
            r"'observation' has shape \[6, 2, 4\] and should start with \[6, 3\]",
        ),
        (lambda m: setattr(m.columns[1], "dtype", tensor_pb2.DTYPE_FLOAT32), "bool"),
        (lambda m: m.columns[1].shape.__setitem__(0, 1), "T, E >= 1"),
        (lambda m: setattr(m.columns[0], "dtype", 77), "dtype 77"),
        (lambda m: setattr(m.columns[0], "dtype", tensor_pb2.DTYPE_FLOAT64), "378 bytes instead of 666"),
    ],
)
def test_layouts_of_what_is_not_there_are_refused_however_often(change, reason: str) -> None:
    payload = encode_trajectory(trajectory())
    assert decode_trajectory(payload, LIMITS).num_envs == 3
    message = trajectory_pb2.Trajectory.FromString(payload)
    layout = trajectory_pb2.Layout.FromString(message.layout)
    change(layout)
    message.layout = layout.SerializeToString()
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match=reason):
            decode_trajectory(message.SerializeToString(), LIMITS)


def test_a_layout_that_is_known_is_checked_against_other_limits() -> None:
    payload = encode_trajectory(trajectory(num_rows=200))
    assert decode_trajectory(payload, LIMITS).num_envs == 3
    with pytest.raises(LimitError):
        decode_trajectory(payload, LimitsSection(max_tensor_bytes=1024, max_trajectory_bytes=100_000))
    with pytest.raises(LimitError):
        decode_trajectory(payload, LimitsSection(max_tensor_bytes=10_000, max_trajectory_bytes=10_000))


def test_columns_that_share_a_block_are_aligned_and_small_ones_are_compressed_together() -> None:
    sent = trajectory(num_rows=17, num_envs=3)
    sent.columns["reward"] = sent.columns["reward"].astype(np.float64)
    payload = encode_trajectory(sent)
    assert len(trajectory_pb2.Trajectory.FromString(payload).blocks) == 1
    got = decode_trajectory(payload, LIMITS)
    assert all(array.flags.aligned for array in got.columns.values())


@pytest.mark.parametrize("shape", [(6, 3, 2), (2, 3, 2), (0, 3, 2), (1, 4, 2), (1,), (3, 1)])
def test_a_state_has_one_row_and_as_many_environments_as_the_rest(shape: tuple[int, ...]) -> None:
    sent = trajectory()
    sent.columns["initial.core"] = np.ones((1, 3, 2), np.float32)
    got = decode_trajectory(encode_trajectory(sent), LIMITS)
    assert (got.unroll_length, got.num_envs) == (5, 3)
    np.testing.assert_array_equal(got.columns["initial.core"], sent.columns["initial.core"])
    sent.columns["initial.core"] = np.ones(shape, np.float32)
    with pytest.raises(InvalidArgumentError, match=r"'initial.core' has shape .* should start with \[1, 3\]"):
        decode_trajectory(encode_trajectory(sent), LIMITS)


def test_the_whole_trajectory_is_bounded_too() -> None:
    payload = encode_trajectory(trajectory(num_rows=200, num_envs=30))
    with pytest.raises(LimitError, match="max_trajectory_bytes"):
        decode_trajectory(payload, LimitsSection(max_tensor_bytes=100_000, max_trajectory_bytes=110_000))


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        # Fields of a newer release: a number, 64 bits, a text, 32 bits.
        (b"\x78\x05" + b"\x79" + bytes(8) + b"\x7a\x02hi" + b"\x7d" + bytes(4), False),
        (b"\x78\x05" * 70_000, True),
        # A group.
        (b"\x7b\x7c", False),
        # A number without an end, a length beyond the end, a tag alone.
        (b"\x78" + b"\xff" * (1 << 20), True),
        (b"\x7a\xff\x7f", True),
        (b"\x7a", True),
    ],
)
def test_fields_of_other_releases(more: bytes, refused: bool) -> None:
    payload = encode_trajectory(trajectory()) + more
    if refused:
        with pytest.raises(InvalidArgumentError):
            decode_trajectory(payload, LIMITS)
    else:
        assert decode_trajectory(payload, LIMITS).num_envs == 3


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(payload: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        decode_trajectory(payload, LIMITS)


def test_other_protocol_versions_are_refused_with_both_numbers() -> None:
    check_protocol_version(PROTOCOL_VERSION)
    with pytest.raises(ProtocolVersionError, match=f"version 7.*{PROTOCOL_VERSION}"):
        check_protocol_version(7)
