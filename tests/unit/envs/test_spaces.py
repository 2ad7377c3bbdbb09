"""Spaces become specs, and values cross that border without loss."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from shoal.envs.faults import BadValueError
from shoal.envs.spaces import ActionAdapter, ObservationAdapter, SpaceAdapter
from shoal.errors import UserError
from shoal.records import ArraySpec, BoxAction, DiscreteAction, MultiDiscreteAction


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (
            spaces.Box(0, 255, (8, 8, 3), np.uint8),
            ArraySpec("observation", "uint8", (8, 8, 3), 0, 0.0, 255.0),
        ),
        (spaces.Box(-1, 1, (4,), np.float32), ArraySpec("observation", "float32", (4,), 0, -1.0, 1.0)),
        # The widest bounds of any element, each side for itself.
        (
            spaces.Box(np.array([-1.0, 0.0], "f4"), np.array([0.5, np.inf], "f4")),
            ArraySpec("observation", "float32", (2,), 0, low=-1.0),
        ),
        (spaces.Box(-np.inf, np.inf, (0,), np.float32), ArraySpec("observation", "float32", (0,))),
        (spaces.Box(-1, 1, (4,), np.float64), ArraySpec("observation", "float32", (4,), 0, -1.0, 1.0)),
        (spaces.Box(-9, 9, (), np.int16), ArraySpec("observation", "int16", (), 0, -9.0, 9.0)),
        (spaces.Discrete(6), ArraySpec("observation", "int64", (), 6)),
        (spaces.Discrete(6, start=-2), ArraySpec("observation", "int64", (), 6)),
        (spaces.MultiBinary((2, 3)), ArraySpec("observation", "int8", (2, 3), 0, 0.0, 1.0)),
        (spaces.MultiDiscrete([3, 5]), ArraySpec("observation", "int64", (2,), 5)),
        (spaces.MultiDiscrete([3, 5], start=[1, -1]), ArraySpec("observation", "int64", (2,), 5)),
    ],
)
def test_plain_observation(space: spaces.Space, spec: ArraySpec) -> None:
    adapter = ObservationAdapter(space)
    assert adapter.specs == (spec,)
    sample = batch_space(space, 3).sample()
    column = adapter.to_columns(sample, 3)["observation"]
    assert column.dtype == spec.dtype
    assert column.shape == (3, *spec.shape)
    if spec.num_categories:
        assert ((column >= 0) & (column < spec.num_categories)).all()
    start = getattr(space, "start", 0)
    np.testing.assert_array_equal(column, (np.asarray(sample) - start).astype(spec.dtype))
    rows = {"observation": np.zeros((3, *spec.shape), spec.dtype)}
    for row in range(3):
        adapter.write(rows, row, sample[row])
    np.testing.assert_array_equal(rows["observation"], column)


def test_nested_observations_get_dotted_names_in_the_order_of_the_space() -> None:
    space = spaces.Dict(
        {
            "position": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(4, start=1)]),
            "camera": spaces.Box(0, 255, (5, 5), np.uint8),
        }
    )
    adapter = ObservationAdapter(space)
    assert [s.name for s in adapter.specs] == [
        "observation.camera",
        "observation.position.0",
        "observation.position.1",
    ]
    sample = batch_space(space, 6).sample()
    columns = adapter.to_columns(sample, 6)
    assert list(columns) == [s.name for s in adapter.specs]
    np.testing.assert_array_equal(columns["observation.camera"], sample["camera"])
    np.testing.assert_array_equal(columns["observation.position.0"], sample["position"][0])
    np.testing.assert_array_equal(columns["observation.position.1"], sample["position"][1] - 1)


def test_an_observation_that_needs_no_conversion_is_not_copied() -> None:
    adapter = ObservationAdapter(spaces.Box(0, 255, (4, 4), np.uint8))
    frames = np.zeros((2, 4, 4), np.uint8)
    assert adapter.to_columns(frames, 2)["observation"] is frames


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Discrete(2), None),
        spaces.OneOf([spaces.Discrete(2)]),
    ],
)
def test_unsupported_observation_is_named(space: spaces.Space) -> None:
    with pytest.raises(UserError, match=r"^observation: the space .* is not supported; supported are Box"):
        ObservationAdapter(space)
    nested = spaces.Dict(a=spaces.Discrete(2), b=spaces.Dict(c=space))
    with pytest.raises(UserError, match=r"^observation\.b\.c: the space"):
        ObservationAdapter(nested)


def test_observations_without_arrays_or_with_clashing_names_are_refused() -> None:
    with pytest.raises(UserError, match="holds no array"):
        ObservationAdapter(spaces.Dict({}))
    clash = OrderedDict({"a.b": spaces.Discrete(2), "a": spaces.Dict(b=spaces.Discrete(2))})
    with pytest.raises(UserError, match="same name"):
        ObservationAdapter(spaces.Dict(clash))


def test_discrete_actions_are_counted_from_the_start_of_the_space() -> None:
    adapter = ActionAdapter(spaces.Discrete(3, start=-1))
    assert adapter.spec == DiscreteAction(3)
    np.testing.assert_array_equal(adapter.to_env(np.array([0, 1, 2])), [-1, 0, 1])


@pytest.mark.parametrize(
    ("space", "nvec", "action", "expected"),
    [
        (spaces.MultiDiscrete([3, 2]), (3, 2), [[2, 0], [0, 1]], [[2, 0], [0, 1]]),
        (spaces.MultiDiscrete([3, 2], start=[-1, 5]), (3, 2), [[2, 0], [0, 1]], [[1, 5], [-1, 6]]),
        (spaces.MultiDiscrete([[3, 2], [2, 2]]), (3, 2, 2, 2), [[2, 0, 1, 1]], [[[2, 0], [1, 1]]]),
        (spaces.MultiBinary(3), (2, 2, 2), [[1, 0, 1]], [[1, 0, 1]]),
        (spaces.MultiBinary((2, 2)), (2, 2, 2, 2), [[1, 0, 1, 1]], [[[1, 0], [1, 1]]]),
    ],
)
def test_several_choices_at_once(
    space: spaces.Space, nvec: tuple[int, ...], action: list[list[int]], expected: list[list[int]]
) -> None:
    adapter = ActionAdapter(space)
    assert adapter.spec == MultiDiscreteAction(nvec)
    given = np.array(action)
    taken = adapter.to_env(given)
    np.testing.assert_array_equal(taken, expected)
    assert all(row in space for row in taken)
    assert not np.shares_memory(taken, given), "an environment may change what it is given"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_box_actions_are_clipped_and_are_members_of_the_space(dtype: type) -> None:
    space = spaces.Box(np.array([-0.1, -np.inf], dtype), np.array([0.3, 2.0], dtype), dtype=dtype)
    adapter = ActionAdapter(space)
    assert isinstance(adapter.spec, BoxAction)
    assert adapter.spec.low == tuple(map(float, space.low))
    assert adapter.spec.high[1] == 2.0
    action = adapter.to_env(np.array([[-5, -5], [0.25, 1.5], [0.3, 9]], np.float32))
    assert action.dtype == dtype
    np.testing.assert_allclose(action, [[-0.1, -5], [0.25, 1.5], [0.3, 2.0]])
    assert all(row in space for row in action)


@pytest.mark.parametrize(
    "space",
    [spaces.Text(3), spaces.Box(0, 9, (2,), np.int32), spaces.Dict(a=spaces.Discrete(2))],
)
def test_unsupported_actions_are_named(space: spaces.Space) -> None:
    with pytest.raises(UserError, match=r"^action: the space .* is not supported; supported are Discrete"):
        ActionAdapter(space)


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"a": np.zeros(3), "b": 1}, r"showed observation\.a of shape \[3\] instead of \[2\]"),
        ({"a": np.zeros((1, 2)), "b": 1}, r"showed observation\.a of shape \[1, 2\] instead of \[2\]"),
        ({"a": np.zeros(2), "b": [1]}, r"showed observation\.b of shape \[1\] instead of \[\]"),
        ({"a": np.zeros(2)}, r"showed an observation without its entry observation\.b"),
        (None, r"showed an observation without its entry observation\.a"),
    ],
)
def test_what_does_not_fit_the_space_is_named(observation: object, message: str) -> None:
    adapter = ObservationAdapter(spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3)))
    columns = {"observation.a": np.zeros((1, 2)), "observation.b": np.zeros(1)}
    with pytest.raises(BadValueError, match=message):
        adapter.write(columns, 0, observation)


def test_a_batch_of_another_size_is_named() -> None:
    adapter = ObservationAdapter(spaces.Box(-1, 1, (2,)))
    with pytest.raises(BadValueError, match=r"showed observation of shape \[3, 2\] instead of \[4, 2\]"):
        adapter.to_columns(np.zeros((3, 2)), 4)


def test_a_mask_in_the_observation_comes_last_and_is_no_observation() -> None:
    space = spaces.Dict(action_mask=spaces.MultiBinary(3), zone=spaces.Box(-1, 1, (2,)))
    adapter = SpaceAdapter(space, spaces.Discrete(3), "auto", num=2)
    spec = adapter.spec("X-v0")
    assert spec.observation == (
        ArraySpec("observation.zone", "float32", (2,), 0, -1.0, 1.0),
        ArraySpec("action_mask", "int8", (3,)),
    )
    batch = {"zone": np.ones((2, 2), np.float32), "action_mask": np.array([[1, 0, 1], [0, 0, 1]], np.int8)}
    columns = adapter.to_columns(batch, {})
    assert list(columns) == ["observation.zone", "action_mask"]
    np.testing.assert_array_equal(columns["action_mask"], batch["action_mask"])
    rows = adapter.empty()
    for row in range(2):
        adapter.write(rows, row, {name: array[row] for name, array in batch.items()}, {})
    for name, column in columns.items():
        np.testing.assert_array_equal(rows[name], column)
        assert rows[name].dtype == column.dtype


def test_without_masks_the_entry_is_an_ordinary_observation() -> None:
    space = spaces.Dict(action_mask=spaces.MultiBinary(3), zone=spaces.Box(-1, 1, (2,)))
    adapter = SpaceAdapter(space, spaces.Discrete(3), "none")
    names = [array.name for array in adapter.spec("X-v0").observation]
    assert names == ["observation.action_mask", "observation.zone"]


def test_a_mask_from_info_is_all_ones_where_there_is_none() -> None:
    adapter = SpaceAdapter(spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3]), "info", num=2)
    assert adapter.spec("X-v0").observation[-1] == ArraySpec("action_mask", "int8", (5,))
    batch = np.zeros((2, 2), np.float32)
    assert adapter.to_columns(batch, {})["action_mask"].tolist() == [[1] * 5] * 2
    rows = adapter.empty()
    adapter.write(rows, 0, batch[0], {"action_mask": (np.array([1, 0]), np.array([0, 1, 1]))})
    adapter.write(rows, 1, batch[1], {})
    assert rows["action_mask"].tolist() == [[1, 0, 0, 1, 1], [1, 1, 1, 1, 1]]


def test_a_mask_that_does_not_fit_the_actions_is_refused_with_both() -> None:
    box = spaces.Box(-1, 1, (2,))
    for entry, action, message in (
        (
            spaces.MultiBinary(4),
            spaces.Discrete(3),
            r"is MultiBinary\(4\), but .* Discrete\(3\) has shape \[3\]",
        ),
        (spaces.MultiBinary((1, 3)), spaces.Discrete(3), r"has shape \[3\]"),
        (spaces.Discrete(3), spaces.Discrete(3), r"has shape \[3\]"),
        (spaces.MultiBinary(4), spaces.MultiDiscrete([2, 3]), r"MultiDiscrete\(\[2, 3\]\) has shape \[5\]"),
        (spaces.MultiBinary(4), box, r"needs discrete actions, but the actions are Box\[2\]"),
    ):
        with pytest.raises(UserError, match=message):
            SpaceAdapter(spaces.Dict(action_mask=entry, x=box), action, "auto")
