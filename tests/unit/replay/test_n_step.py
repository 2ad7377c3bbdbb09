"""n-step transitions against a slow version that walks step by step, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.replay.n_step import build_transitions
from shoal.errors import InvalidArgumentError
from shoal.records import (
    ACTION,
    ACTION_MASK,
    FIRST,
    OBSERVATION,
    POLICY_VERSION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Columns,
    Trajectory,
)

EXTRA_OBSERVATION = f"{OBSERVATION}.position"


def unroll(steps: list[str], *, num_envs: int = 1, at_reset: bool = False) -> Trajectory:
    """Of environments that all go through the same steps.

    `.`: a plain step; `T` and `L`: terminated, truncated; `r`: autoreset. Observation t is t, reward t is
    10 ** t for small t, of environment e + 100 e.
    """
    return unroll_of(np.array([steps] * num_envs).T, np.full(num_envs, at_reset))


def unroll_of(marks_TE: np.ndarray, first_E: np.ndarray) -> Trajectory:
    num_steps, num_envs = marks_TE.shape
    step = np.arange(num_steps + 1)[:, None] + 100 * np.arange(num_envs)
    marks = np.vstack((marks_TE, np.full((1, num_envs), ".")))
    reward = np.where(marks == "r", 0, 10.0 ** (np.arange(num_steps + 1) % 6)[:, None])
    return Trajectory(
        {
            OBSERVATION: np.stack((step, -step), axis=-1).astype(np.float32),
            EXTRA_OBSERVATION: step.astype(np.int16),
            ACTION: step + 7,
            REWARD: (reward + 100 * np.arange(num_envs) * (marks != "r")).astype(np.float32),
            TERMINATED: marks == "T",
            TRUNCATED: marks == "L",
            FIRST: np.vstack((first_E, marks_TE == "r")),
            POLICY_VERSION: step // 3,
        }
    )


def slow_rows(trajectory: Trajectory, n: int, discount: float) -> list[dict[str, object]]:
    """Walks on from every step, one environment at a time."""
    columns, rows = trajectory.columns, []
    for t in range(trajectory.unroll_length):
        for e in range(trajectory.num_envs):
            if columns[FIRST][t + 1, e]:
                continue
            total, k = 0.0, t
            while True:
                total += discount ** (k - t) * float(columns[REWARD][k, e])
                ended = columns[TERMINATED][k, e] or columns[TRUNCATED][k, e]
                k += 1
                if ended or k - t == n or k == trajectory.unroll_length:
                    break
            rows.append(
                {
                    OBSERVATION: columns[OBSERVATION][t, e].tolist(),
                    f"next_{OBSERVATION}": columns[OBSERVATION][k, e].tolist(),
                    EXTRA_OBSERVATION: columns[EXTRA_OBSERVATION][t, e],
                    f"next_{EXTRA_OBSERVATION}": columns[EXTRA_OBSERVATION][k, e],
                    ACTION: columns[ACTION][t, e],
                    REWARD: pytest.approx(total, rel=1e-6),
                    POLICY_VERSION: columns[POLICY_VERSION][t, e],
                    "discount": pytest.approx(
                        0.0 if columns[TERMINATED][k - 1, e] else discount ** (k - t), rel=1e-6
                    ),
                    "num_steps": k - t,
                }
            )
    return rows


def as_rows(columns: Columns) -> list[dict[str, object]]:
    lists = {name: array.tolist() for name, array in columns.items()}
    return [{name: values[i] for name, values in lists.items()} for i in range(len(lists[REWARD]))]


@st.composite
def unrolls(draw: st.DrawFn) -> Trajectory:
    """Whatever next-step autoreset can lead to: an autoreset after every end, also as the very first step."""
    num_steps, num_envs = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    marks = np.full((num_steps, num_envs), ".")
    for env in range(num_envs):
        ended = draw(st.booleans())
        for t in range(num_steps):
            marks[t, env] = "r" if ended else draw(st.sampled_from(["T", "L", ".", ".", "."]))
            ended = marks[t, env] in "TL"
    first = np.array([draw(st.booleans()) and marks[0, env] != "r" for env in range(num_envs)])
    return unroll_of(marks, first)


@given(unrolls(), st.integers(1, 15), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_matches_a_walk_from_every_step(trajectory: Trajectory, n: int, discount: float) -> None:
    rows, priorities = build_transitions(trajectory, n, discount)
    assert priorities is None
    assert as_rows(rows) == slow_rows(trajectory, n, discount)
    assert len(rows[REWARD]) == trajectory.num_transitions


@given(unrolls(), st.booleans())
def test_priorities_follow_their_steps(trajectory: Trajectory, flat: bool) -> None:
    shape = (trajectory.unroll_length, trajectory.num_envs)
    given_TE = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    given_TE[trajectory.columns[FIRST][1:]] = np.nan  # Those of autoreset steps are not used.
    rows, priorities = build_transitions(trajectory, 3, 0.9, given_TE.reshape(-1) if flat else given_TE)
    assert priorities is not None
    assert priorities.dtype == np.float64
    t, e = rows[EXTRA_OBSERVATION] % 100, rows[EXTRA_OBSERVATION] // 100
    assert np.array_equal(priorities, given_TE[t, e])


def by_hand(trajectory: Trajectory, n: int, discount: float = 0.5) -> list[tuple[float, ...]]:
    """(observation, next observation, reward, discount, steps) of each row."""
    rows, _ = build_transitions(trajectory, n, discount)
    names = (EXTRA_OBSERVATION, f"next_{EXTRA_OBSERVATION}", REWARD, "discount", "num_steps")
    return list(zip(*(rows[name].tolist() for name in names), strict=True))


def test_termination_inside_n() -> None:
    """Rewards 1, 10, 100; the episode ends with the second: nothing of what follows counts."""
    assert by_hand(unroll([".", "T", "r", "."], at_reset=True), n=3) == [
        (0, 2, 1 + 5, 0.0, 2),
        (1, 2, 10, 0.0, 1),
        (3, 4, 1000, 0.5, 1),
    ]


def test_truncation_bootstraps_from_the_true_final_observation() -> None:
    """Observation 2 is the last of the episode, 3 the first of the next one."""
    assert by_hand(unroll([".", "L", "r", "."]), n=3) == [
        (0, 2, 1 + 5, 0.25, 2),
        (1, 2, 10, 0.5, 1),
        (3, 4, 1000, 0.5, 1),
    ]


def test_an_autoreset_step_is_no_transition() -> None:
    """The end was in the unroll before."""
    assert by_hand(unroll(["r", "."]), n=2) == [(1, 2, 10, 0.5, 1)]
    rows, priorities = build_transitions(unroll(["r"]), 2, 0.5, np.ones(1))
    assert {len(array) for array in rows.values()} == {0}
    assert priorities is not None
    assert len(priorities) == 0


def test_the_end_of_the_unroll_cuts_rows_short() -> None:
    assert by_hand(unroll([".", ".", "."]), n=2) == [
        (0, 2, 1 + 5, 0.25, 2),
        (1, 3, 10 + 50, 0.25, 2),
        (2, 3, 100, 0.5, 1),
    ]


def test_an_end_in_the_last_step() -> None:
    assert by_hand(unroll([".", "T"]), n=5) == [(0, 2, 6, 0.0, 2), (1, 2, 10, 0.0, 1)]
    assert by_hand(unroll([".", "L"]), n=5) == [(0, 2, 6, 0.25, 2), (1, 2, 10, 0.5, 1)]


def test_rows_are_ordered_by_step_then_environment() -> None:
    rows, _ = build_transitions(unroll([".", "."], num_envs=3), 1, 0.9)
    assert rows[EXTRA_OBSERVATION].tolist() == [0, 100, 200, 1, 101, 201]


def test_no_row_reaches_into_another_episode_even_if_its_end_was_not_marked() -> None:
    assert by_hand(unroll([".", "r", "."]), n=3) == [(0, 1, 1, 0.5, 1), (2, 3, 100, 0.5, 1)]


def test_an_end_counts_even_if_no_autoreset_follows() -> None:
    assert by_hand(unroll([".", "L", "."]), n=3)[0] == (0, 2, 6, 0.25, 2)
    assert by_hand(unroll([".", "T", "."]), n=3)[0] == (0, 2, 6, 0.0, 2)


def test_types_of_the_columns() -> None:
    trajectory = unroll([".", "."])
    rows, _ = build_transitions(trajectory, 2, 0.9)
    made = {"discount": "float32", "num_steps": "int32", REWARD: "float32"}
    for name, array in rows.items():
        assert array.dtype == made.get(name, trajectory.columns.get(name.removeprefix("next_"), array).dtype)
    assert rows[f"next_{OBSERVATION}"].shape == (2, 2)
    # A discounted sum of whole numbers is none.
    trajectory.columns[REWARD] = np.array([[1], [1], [0]])
    assert build_transitions(trajectory, 2, 0.5)[0][REWARD].tolist() == [1.5, 1.0]
    # Nor does half precision hold sums of many.
    trajectory.columns[REWARD] = np.array([[2048], [1], [0]], np.float16)
    assert build_transitions(trajectory, 2, 1.0)[0][REWARD].tolist() == [2049, 1]
    # The largest reward twice is still finite.
    trajectory.columns[REWARD] = np.full((3, 1), np.finfo(np.float32).max)
    assert np.isfinite(build_transitions(trajectory, 2, 1.0)[0][REWARD]).all()


def test_actions_of_several_elements_and_masks_are_columns_like_others() -> None:
    trajectory = unroll([".", "T", "r", "."], num_envs=2)
    step = trajectory.columns[ACTION]
    trajectory.columns[ACTION] = np.stack([step, step + 1, step + 2], axis=-1)
    trajectory.columns[ACTION_MASK] = np.stack([step % 2, step % 3], axis=-1).astype(np.int8)
    rows, _ = build_transitions(trajectory, 2, 0.5)
    plain, _ = build_transitions(unroll([".", "T", "r", "."], num_envs=2), 2, 0.5)
    np.testing.assert_array_equal(rows[ACTION], plain[ACTION][:, None] + np.arange(3))
    seen, seen_next = (plain[f"{prefix}{EXTRA_OBSERVATION}"].astype(int) + 7 for prefix in ("", "next_"))
    np.testing.assert_array_equal(rows[ACTION_MASK], np.stack([seen % 2, seen % 3], axis=-1))
    np.testing.assert_array_equal(
        rows[f"next_{ACTION_MASK}"], np.stack([seen_next % 2, seen_next % 3], axis=-1)
    )


def test_refuses_the_state_of_a_policy() -> None:
    trajectory = unroll([".", "."])
    trajectory.columns["initial.core"] = np.zeros((1, 1, 4), np.float32)
    with pytest.raises(InvalidArgumentError, match=r"initial\.core .*: use a table of kind sequence"):
        build_transitions(trajectory, 1, 0.9)


@pytest.mark.parametrize("name", [REWARD, TERMINATED, TRUNCATED])
def test_refuses_what_makes_no_transitions(name: str) -> None:
    trajectory = unroll([".", "."])
    column = trajectory.columns.pop(name)
    with pytest.raises(InvalidArgumentError, match="transitions need the columns"):
        build_transitions(trajectory, 1, 0.9)
    trajectory.columns[name] = column[..., None]
    with pytest.raises(InvalidArgumentError, match=rf"column {name} is .*\[3, 1, 1\]"):
        build_transitions(trajectory, 1, 0.9)


def test_refuses_other_columns_and_priorities_that_do_not_fit() -> None:
    trajectory = unroll([".", "."], num_envs=2)
    with pytest.raises(InvalidArgumentError, match=r"3 priorities for an unroll of 2 steps in 2 .*: 4 are"):
        build_transitions(trajectory, 1, 0.9, np.ones(3))
    for name in ("discount", "num_steps", f"next_{OBSERVATION}"):
        columns = {**trajectory.columns, name: trajectory.columns[REWARD]}
        with pytest.raises(InvalidArgumentError, match=rf"\['{name}'\] are made by the transition table"):
            build_transitions(Trajectory(columns), 1, 0.9)
    columns = {k: v for k, v in trajectory.columns.items() if not k.startswith(OBSERVATION)}
    with pytest.raises(InvalidArgumentError, match="and observation; received only action, reward"):
        build_transitions(Trajectory(columns), 1, 0.9)
