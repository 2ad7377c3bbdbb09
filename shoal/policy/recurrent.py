"""The recurrent core between encoder and heads: an LSTM or a GRU that forgets at episode starts.

Inference steps it, the learner unrolls it from the state before the first row; both are the same cell. A
loop over rows: one fused call of the library per stretch without an episode start gained a tenth.
One thread at a time.

Legend: S rows of an unroll, B environments, F features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from shoal.records import ArraySpec

_HIDDEN, _CELL = "recurrent.h", "recurrent.c"


class RecurrentCore(nn.Module):
    """`lstm` or `gru`. Features out are its hidden state."""

    def __init__(self, kind: str, num_inputs: int, size: int) -> None:
        super().__init__()
        self.is_lstm = kind == "lstm"
        self.cell = nn.LSTMCell(num_inputs, size) if self.is_lstm else nn.GRUCell(num_inputs, size)
        for name, parameter in self.cell.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)
        if self.is_lstm:
            # Gates lie in the order input, forget, cell, output. At 0 a cell would halve at every step.
            nn.init.ones_(self.cell.bias_ih.data[size : 2 * size])
        self.num_features = size
        names = (_HIDDEN, _CELL) if self.is_lstm else (_HIDDEN,)
        self.state = tuple(ArraySpec(name, "float32", (size,)) for name in names)

    def step(
        self, features: Tensor, first: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """[B, F] to [B, size], and the state after it."""
        memory = self._next(features, first, tuple(state[array.name] for array in self.state))
        return memory[0], {array.name: tensor for array, tensor in zip(self.state, memory, strict=True)}

    def unroll(self, features: Tensor, first_SB: Tensor, state: dict[str, Tensor]) -> Tensor:
        """[S, B, F] to [S, B, size]."""
        return torch.stack([memory[0] for memory in self._memories(features, first_SB, state)])

    def state_after(self, features: Tensor, first_SB: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """The state after all rows of [S, B, F]."""
        memory = self._memories(features, first_SB, state)[-1]
        return {array.name: tensor for array, tensor in zip(self.state, memory, strict=True)}

    def _memories(
        self, features: Tensor, first_SB: Tensor, state: dict[str, Tensor]
    ) -> list[tuple[Tensor, ...]]:
        """After each row."""
        memory = tuple(state[array.name] for array in self.state)
        memories = []
        for row, first_B in zip(features.unbind(), first_SB.unbind(), strict=True):
            memory = self._next(row, first_B, memory)
            memories.append(memory)
        return memories

    def _next(self, features: Tensor, first: Tensor, memory: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        starts = first.unsqueeze(-1)
        kept = tuple(tensor.masked_fill(starts, 0.0) for tensor in memory)
        after = self.cell(features, kept) if self.is_lstm else (self.cell(features, kept[0]),)
        # What is remembered for long is remembered in full precision.
        return tuple(tensor.to(torch.float32) for tensor in after)
