"""Frame stacks: the newest k observations of each environment, oldest first.

Frames cross the wire and are stored once. Inference stacks them step by step, the learner restacks an
unroll; both see the same stacks. At an episode's start the stack is filled with its first frame. Holds no
state of its own; one thread at a time.

Legend: S rows of an unroll, B environments, k frames.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.records import FRAMES, ArraySpec


class FrameStack:
    """Stacks of all arrays of an observation. The frames before the newest one are the policy's state."""

    def __init__(self, observation: tuple[ArraySpec, ...], num_frames: int) -> None:
        self._names = tuple(array.name for array in observation)
        self._num_before = num_frames - 1
        self.state: tuple[ArraySpec, ...] = ()
        if num_frames > 1:
            self.state = tuple(
                ArraySpec(FRAMES + array.name, array.dtype, (num_frames - 1, *array.shape))
                for array in observation
            )

    def step(
        self, observation: dict[str, Tensor], first: Tensor, state: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Stacks [B, k, ...] with the newest frame last, and the frames that the next step needs.

        What is not stacked comes back as it is.
        """
        if not self.state:
            return observation, {}
        if torch.compiler.is_compiling():
            # Looked up by index, a compiled frame would be read byte by byte.
            stacks = {
                name: _stack(observation[name].unsqueeze(1), state[FRAMES + name], first)
                for name in self._names
            }
        else:
            row = {name: observation[name].unsqueeze(0) for name in self._names}
            unrolled = self._stacks(row, first.unsqueeze(0), state)
            stacks = {name: stack.squeeze(0) for name, stack in unrolled.items()}
        state = {FRAMES + name: stack[:, 1:] for name, stack in stacks.items()}
        return {**observation, **stacks}, state

    def unroll(
        self, observation: dict[str, Tensor], first_SB: Tensor, state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Stacks [S, B, k, ...] of [S, B, ...]; `state` holds the frames before row 0.

        What is not stacked comes back as it is.
        """
        return {**observation, **self._stacks(observation, first_SB, state)} if self.state else observation

    def _stacks(
        self, observation: dict[str, Tensor], first_SB: Tensor, state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        rows_SBk = self._rows(first_SB)
        stacks = {}
        for name in self._names:
            frames = torch.cat([state[FRAMES + name].transpose(0, 1), observation[name]])
            # Whole frames are copied, not single elements: a fourth of `torch.where`'s time.
            flat = frames.flatten(0, 1).index_select(0, rows_SBk.flatten())
            stacks[name] = flat.reshape(*rows_SBk.shape, *frames.shape[2:])
        return stacks

    def state_after(self, stacks: dict[str, Tensor]) -> dict[str, Tensor]:
        """The frames that the step after `unroll` needs, of the stacks that it gave."""
        if not self.state:
            return {}
        return {FRAMES + name: stacks[name][-1, :, 1:] for name in self._names}

    def _rows(self, first_SB: Tensor) -> Tensor:
        """Where each frame of each stack is among the k - 1 + S rows of B frames, counted through."""
        num_rows, num_envs = first_SB.shape
        device = first_SB.device
        row_S1 = torch.arange(num_rows, device=device).unsqueeze(1)
        # The row that the running episode started with; of an older one all frames of the state are its own.
        start_SB = torch.where(first_SB, row_S1, -self._num_before).cummax(0).values
        age_k = torch.arange(self._num_before, -1, -1, device=device)
        row_SBk = torch.maximum(row_S1.unsqueeze(-1) - age_k, start_SB.unsqueeze(-1)) + self._num_before
        return row_SBk * num_envs + torch.arange(num_envs, device=device).unsqueeze(-1)


def _stack(newest: Tensor, before: Tensor, first: Tensor) -> Tensor:
    """[B, k, ...] of [B, 1, ...] and [B, k - 1, ...]."""
    starts = first.reshape(-1, *(1,) * (newest.ndim - 1))
    return torch.cat([torch.where(starts, newest, before), newest], dim=1)
