"""Frame stacks against Gymnasium's own wrapper, across episode ends."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import FrameStackObservation
from torch import Tensor

from shoal.policy.frames import FrameStack
from shoal.records import ArraySpec

LENGTHS = (3, 1, 2, 7, 5)
NUM_ROWS = sum(LENGTHS) + len(LENGTHS)


class Numbered(gym.Env[np.ndarray, int]):
    """Shows the number of the observation, in four bytes; episodes have the lengths above."""

    observation_space = gym.spaces.Box(0, 255, (2, 2), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self._shown = self._left = self._episode = 0

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self._left = LENGTHS[self._episode]
        self._episode += 1
        return self._show(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._left -= 1
        return self._show(), 0.0, self._left == 0, False, {}

    def _show(self) -> np.ndarray:
        self._shown += 1
        return np.full((2, 2), self._shown, np.uint8)


def gymnasium_stacks(num_frames: int) -> tuple[Tensor, Tensor]:
    """Stacks [S, k, 2, 2] of all episodes in a row, and which of them start one."""
    env = FrameStackObservation(Numbered(), num_frames, padding_type="reset")
    stacks, first = [], []
    for _ in LENGTHS:
        stacks.append(env.reset()[0])
        first.append(True)
        terminated = False
        while not terminated:
            stack, _, terminated, _, _ = env.step(0)
            stacks.append(stack)
            first.append(False)
    return torch.from_numpy(np.stack(stacks)), torch.tensor(first)


def frame_stack(num_frames: int) -> FrameStack:
    return FrameStack((ArraySpec("observation", "uint8", (2, 2)),), num_frames)


def empty_state(stack: FrameStack, num_envs: int) -> dict[str, Tensor]:
    return {array.name: torch.zeros((num_envs, *array.shape), dtype=torch.uint8) for array in stack.state}


@pytest.mark.parametrize("num_frames", [2, 3, 4, 9])
def test_steps_equal_gymnasiums_stacks(num_frames: int) -> None:
    expected, first = gymnasium_stacks(num_frames)
    assert len(expected) == NUM_ROWS
    stack = frame_stack(num_frames)
    state = empty_state(stack, 1)
    buffer = torch.empty(1, 2, 2, dtype=torch.uint8)
    for row in range(NUM_ROWS):
        buffer.copy_(expected[row, -1:])
        seen, state = stack.step({"observation": buffer}, first[row : row + 1], state)
        assert torch.equal(seen["observation"][0], expected[row])
        # The server overwrites its buffer for the next batch.
        buffer.fill_(255)


@pytest.mark.parametrize("num_frames", [2, 3, 4, 9])
@pytest.mark.parametrize("num_rows", [1, 2, 5, NUM_ROWS])
def test_unrolls_equal_gymnasiums_stacks(num_frames: int, num_rows: int) -> None:
    """Any unroll, wherever it starts, from the frames before it; two environments out of step."""
    expected, first = gymnasium_stacks(num_frames)
    stack = frame_stack(num_frames)
    for start in range(NUM_ROWS - num_rows + 1):
        starts = (start, NUM_ROWS - num_rows - start)
        rows = torch.stack([torch.arange(at, at + num_rows) for at in starts], dim=1)
        before = torch.stack([expected[at - 1, 1:] if at else expected[0, 1:] * 0 for at in starts])
        seen = stack.unroll({"observation": expected[rows, -1]}, first[rows], {"frames.observation": before})
        assert torch.equal(seen["observation"], expected[rows])


def test_one_frame_is_no_work_and_no_memory() -> None:
    stack = frame_stack(1)
    observation = {"observation": torch.ones(3, 2, 2, dtype=torch.uint8)}
    first = torch.zeros(3, dtype=torch.bool)
    assert stack.state == ()
    seen, state = stack.step(observation, first, {})
    assert seen is observation
    assert state == {}
    assert stack.unroll(observation, first, {}) is observation
