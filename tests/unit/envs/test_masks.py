"""Action masks from wherever environments put them become one array, in which something is always allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from shoal.envs.faults import BadValueError
from shoal.envs.masks import MaskAdapter
from shoal.records import DiscreteAction, MultiDiscreteAction

THREE = MaskAdapter(DiscreteAction(3))
TWO_AND_THREE = MaskAdapter(MultiDiscreteAction((2, 3)))


def objects(*values: Any) -> np.ndarray:
    array = np.full(len(values), None, dtype=object)
    for i, value in enumerate(values):
        array[i] = value
    return array


@pytest.mark.parametrize(
    "info",
    [
        {"action_mask": np.array([[1, 0, 0], [0, 1, 1]], np.int8)},
        {"action_mask": np.array([[True, False, False], [False, True, True]])},
        {"action_mask": np.array([[2.0, 0, 0], [0, 1, 1]])},
        {"action_mask": objects(np.array([1, 0, 0]), [0, 1, 1])},
        {"action_mask": [[1, 0, 0], [0, 1, 1]]},
        {"action_mask": np.array([[1, 0, 0], [0, 1, 1]]), "_action_mask": np.array([True, True])},
    ],
)
def test_masks_of_one_choice(info: dict[str, Any]) -> None:
    masks = THREE.from_info(info, 2)
    assert masks.dtype == np.int8
    assert masks.tolist() == [[1, 0, 0], [0, 1, 1]]


@pytest.mark.parametrize(
    "masks",
    [
        np.array([[1, 0, 0, 0, 1], [0, 1, 1, 1, 0]]),
        (np.array([[1, 0], [0, 1]]), np.array([[0, 0, 1], [1, 1, 0]])),
        objects((np.array([1, 0]), np.array([0, 0, 1])), (np.array([0, 1]), np.array([1, 1, 0]))),
    ],
)
def test_masks_of_several_choices_are_one_after_another(masks: Any) -> None:
    found = TWO_AND_THREE.from_info({"action_mask": masks}, 2)
    assert found.tolist() == [[1, 0, 0, 0, 1], [0, 1, 1, 1, 0]]


@pytest.mark.parametrize(
    "info",
    [
        {"action_mask": np.array([[0, 0, 0], [0, 1, 1]]), "_action_mask": np.array([False, True])},
        {"action_mask": objects(None, [0, 1, 1]), "_action_mask": np.array([False, True])},
        {"action_mask": objects(None, [0, 1, 1])},
    ],
)
def test_environments_without_a_mask_allow_everything(info: dict[str, Any]) -> None:
    assert THREE.from_info(info, 2).tolist() == [[1, 1, 1], [0, 1, 1]]


def test_a_choice_that_allows_nothing_allows_everything() -> None:
    assert THREE.row(np.zeros(3)).tolist() == [1, 1, 1]
    assert TWO_AND_THREE.row(np.array([0, 0, 0, 1, 0])).tolist() == [1, 1, 0, 1, 0]
    batch = np.array([[0, 1, 0, 0, 0], [1, 0, 0, 0, 1]])
    assert TWO_AND_THREE.rows(batch, 2).tolist() == [[0, 1, 1, 1, 1], [1, 0, 0, 0, 1]]


def test_large_masks_are_not_taken_for_empty_ones() -> None:
    """256 ones add up to nothing in 8 bits."""
    adapter = MaskAdapter(DiscreteAction(257))
    mask = np.ones(257, np.int8)
    mask[0] = 0
    np.testing.assert_array_equal(adapter.row(mask), mask)


@pytest.mark.parametrize(
    ("mask", "shape"), [(np.ones(4), r"\[4\]"), (np.ones((1, 3)), r"\[1, 3\]"), (1, r"\[\]")]
)
def test_a_mask_of_the_wrong_shape_is_named_with_both(mask: Any, shape: str) -> None:
    message = (
        rf"showed an action mask of shape {shape} instead of \[3\], which the actions Discrete\(3\) need"
    )
    with pytest.raises(BadValueError, match=message):
        THREE.row(mask)


def test_the_environments_array_is_left_alone() -> None:
    given = np.zeros((2, 3), np.int8)
    THREE.from_info({"action_mask": given, "_action_mask": np.array([True, False])}, 2)
    assert not given.any()


def test_entries_of_the_observation_that_fit() -> None:
    THREE.check_entry(spaces.MultiBinary(3))
    THREE.check_entry(spaces.Box(0, 1, (3,), np.int8))
    TWO_AND_THREE.check_entry(spaces.Tuple([spaces.MultiBinary(2), spaces.MultiBinary(3)]))
