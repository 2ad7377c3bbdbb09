"""n-step returns against a walk from every step, against the transition table's, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from services.replay.n_step import build_transitions
from shoal.algorithms.batch import Batch
from shoal.algorithms.n_step import n_step
from shoal.records import FIRST, OBSERVATION, REWARD, TERMINATED, TRUNCATED, Trajectory
from tests.unit.algorithms.ends import slow_return


def batch_of(marks: list[str], at_reset: str = "") -> Batch:
    """A string per environment, all of the same length: `.` is a plain step, `T` terminated, `L` truncated,
    `B` both, `r` autoreset. Reward t is 10 ** t, of an autoreset step NaN. `at_reset`: an `f` for each
    environment that row 0 starts an episode of.
    """
    marks_TB = np.array([list(mark) for mark in marks]).T
    num_steps, num_envs = marks_TB.shape
    marks_SB = np.vstack((marks_TB, np.full((1, num_envs), ".")))
    reward_SB = np.where(marks_SB == "r", np.nan, 10.0 ** np.arange(num_steps + 1)[:, None])
    first_B = np.array([mark == "f" for mark in at_reset.ljust(num_envs)])
    return Batch(
        observation={OBSERVATION: torch.arange(num_steps + 1.0).reshape(-1, 1, 1).expand(-1, num_envs, 1)},
        action_SB=torch.zeros(marks_SB.shape, dtype=torch.int64),
        reward_SB=torch.from_numpy(reward_SB),
        terminated_SB=torch.from_numpy(np.isin(marks_SB, ["T", "B"])),
        truncated_SB=torch.from_numpy(np.isin(marks_SB, ["L", "B"])),
        first_SB=torch.from_numpy(np.vstack((first_B, marks_TB == "r"))),
        weight_B=torch.ones(num_envs),
    )


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Whatever next-step autoreset can lead to: an autoreset after every end, also as the very first step."""
    num_steps, num_envs = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    marks = []
    for _ in range(num_envs):
        mark, ended = "", draw(st.booleans())
        for _ in range(num_steps):
            mark += "r" if ended else draw(st.sampled_from("TLB...."))
            ended = mark[-1] in "TLB"
        marks.append(mark)
    return batch_of(marks)


@given(batches(), st.integers(1, 12), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_matches_a_walk_from_every_step(batch: Batch, n: int, discount: float) -> None:
    result = n_step(batch, n, discount)
    for t in range(len(batch.reward_SB) - 1):
        for b in range(batch.num_items):
            expected = (0.0, 0.0, t) if batch.first_SB[t + 1, b] else slow_return(batch, t, b, n, discount)
            assert (
                result.reward_TB[t, b].item(),
                result.discount_TB[t, b].item(),
                result.row_TB[t, b].item(),
            ) == pytest.approx(expected)


@given(batches(), st.integers(1, 12), st.sampled_from([0.5, 0.99]))
def test_is_what_the_transition_table_makes_of_the_same_steps(batch: Batch, n: int, discount: float) -> None:
    columns = {
        OBSERVATION: batch.observation[OBSERVATION].numpy(),
        REWARD: batch.reward_SB.numpy(),
        TERMINATED: batch.terminated_SB.numpy(),
        TRUNCATED: batch.truncated_SB.numpy(),
        FIRST: batch.first_SB.numpy(),
    }
    rows, _ = build_transitions(Trajectory(columns), n, discount)
    result, valid_TB = n_step(batch, n, discount), batch.valid_TB.bool()
    np.testing.assert_allclose(result.reward_TB[valid_TB].numpy(), rows[REWARD])
    np.testing.assert_allclose(result.discount_TB[valid_TB].numpy(), rows["discount"], rtol=1e-6)
    # An observation says which row it is.
    assert result.row_TB[valid_TB].tolist() == rows[f"next_{OBSERVATION}"][:, 0].tolist()


def test_by_hand() -> None:
    """Three episodes: one terminated, one truncated, one that the unroll cuts. Discount 1/2, two steps."""
    result = n_step(batch_of(["..Tr.Lr..."], at_reset="f"), n=2, discount=0.5)
    # 1 + 10/2, 10 + 100/2, 100, -, 1e4 + 1e5/2, 1e5, -, 1e7 + 1e8/2, 1e8 + 1e9/2, 1e9
    assert result.reward_TB[:, 0].tolist() == [6, 60, 100, 0, 6e4, 1e5, 0, 6e7, 6e8, 1e9]
    assert result.discount_TB[:, 0].tolist() == [0.25, 0, 0, 0, 0.25, 0.5, 0, 0.25, 0.25, 0.5]
    assert result.row_TB[:, 0].tolist() == [2, 3, 3, 3, 6, 6, 6, 9, 10, 10]


def test_no_return_reaches_into_an_episode_that_starts_without_an_end_before_it() -> None:
    result = n_step(batch_of([".r."]), n=3, discount=0.5)
    assert result.reward_TB[:, 0].tolist() == [1, 0, 100]
    assert result.row_TB[:, 0].tolist() == [1, 1, 3]
    assert result.discount_TB[:, 0].tolist() == [0.5, 0, 0.5]


def test_target_takes_the_value_of_the_row_it_leads_to() -> None:
    result = n_step(batch_of(["..Lr."]), n=3, discount=0.5)
    value_SB = torch.tensor([[1.0], [2.0], [3.0], [8.0], [5.0], [6.0]], dtype=torch.float64)
    # 1 + 5 + 25 + 8/8; 10 + 50 + 8/4; 100 + 8/2; nothing; 1e4 + 6/2
    assert result.target(value_SB)[:, 0].tolist() == [32, 62, 104, 0, 10003]


def test_transitions_of_a_table_are_as_they_come() -> None:
    reward_SB = torch.tensor([[3.0, 5.0], [0.0, 0.0]])
    batch = Batch(
        observation={},
        action_SB=torch.zeros(2, 2, dtype=torch.int64),
        reward_SB=reward_SB,
        terminated_SB=torch.zeros(2, 2, dtype=torch.bool),
        truncated_SB=torch.zeros(2, 2, dtype=torch.bool),
        first_SB=torch.zeros(2, 2, dtype=torch.bool),
        weight_B=torch.ones(2),
        discount_SB=torch.tensor([[0.25, 0.0], [0.0, 0.0]]),
    )
    result = n_step(batch, n=7, discount=0.9)
    assert result.reward_TB.tolist() == [[3, 5]]
    assert result.discount_TB.tolist() == [[0.25, 0]]
    assert result.row_TB.tolist() == [[1, 1]]
    assert result.target(torch.tensor([[9.0, 9.0], [4.0, 4.0]])).tolist() == [[4, 5]]
