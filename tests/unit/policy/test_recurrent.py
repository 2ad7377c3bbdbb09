"""The recurrent core against PyTorch's own LSTM and GRU, which know no episodes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from shoal.policy.recurrent import RecurrentCore

NUM_ROWS, NUM_ENVS, NUM_INPUTS, SIZE = 8, 3, 5, 7


def reference(core: RecurrentCore) -> nn.LSTM | nn.GRU:
    whole = nn.LSTM(NUM_INPUTS, SIZE) if core.is_lstm else nn.GRU(NUM_INPUTS, SIZE)
    weights = {f"{name}_l0": tensor for name, tensor in core.cell.state_dict().items()}
    whole.load_state_dict(weights)
    return whole


def start(core: RecurrentCore) -> dict[str, Tensor]:
    return {array.name: torch.randn(NUM_ENVS, *array.shape) for array in core.state}


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_an_unroll_is_pytorchs_own_between_episode_starts(kind: str) -> None:
    torch.manual_seed(5)
    core = RecurrentCore(kind, NUM_INPUTS, SIZE)
    whole = reference(core)
    features, state = torch.randn(NUM_ROWS, NUM_ENVS, NUM_INPUTS), start(core)
    first = torch.zeros(NUM_ROWS, NUM_ENVS, dtype=torch.bool)
    first[4, 1] = True
    unrolled = core.unroll(features, first, state)

    initial = tuple(tensor[None] for tensor in state.values())
    expected, _ = whole(features, initial if core.is_lstm else initial[0])
    anew, _ = whole(features[4:])
    expected[4:, 1] = anew[:, 1]
    torch.testing.assert_close(unrolled, expected)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_steps_are_the_unroll(kind: str) -> None:
    core = RecurrentCore(kind, NUM_INPUTS, SIZE)
    features, state = torch.randn(NUM_ROWS, NUM_ENVS, NUM_INPUTS), start(core)
    first = torch.rand(NUM_ROWS, NUM_ENVS) < 0.3
    unrolled = core.unroll(features, first, state)
    for row in range(NUM_ROWS):
        stepped, state = core.step(features[row], first[row], state)
        torch.testing.assert_close(stepped, unrolled[row])


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_what_an_episode_left_cannot_poison_the_next(kind: str) -> None:
    core = RecurrentCore(kind, NUM_INPUTS, SIZE)
    broken = {name: torch.full_like(tensor, float("nan")) for name, tensor in start(core).items()}
    _, state = core.step(torch.randn(NUM_ENVS, NUM_INPUTS), torch.ones(NUM_ENVS, dtype=torch.bool), broken)
    assert all(bool(tensor.isfinite().all()) for tensor in state.values())


def test_a_new_lstm_keeps_what_it_saw_for_ten_steps() -> None:
    """With forget gates half open at the start, a thousandth of it would be left, and of its gradient."""
    torch.manual_seed(5)
    core = RecurrentCore("lstm", NUM_INPUTS, SIZE)
    nothing, no_start = torch.zeros(NUM_ENVS, NUM_INPUTS), torch.zeros(NUM_ENVS, dtype=torch.bool)
    state = start(core)
    before = state["recurrent.c"].norm()
    for _ in range(10):
        _, state = core.step(nothing, no_start, state)
    assert state["recurrent.c"].norm() > 0.02 * before
