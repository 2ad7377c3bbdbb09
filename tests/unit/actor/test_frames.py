"""The frames before a row, against a walk over every environment."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.actor.frames import frames_before


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 9), st.floats(0, 0.6), st.integers(0, 1 << 16))
def test_frames_before_a_row_are_those_of_its_episode(
    num_envs: int, num_frames: int, num_rows: int, chance: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    history = random.integers(0, 255, (num_envs, num_frames, 2), dtype=np.uint8)
    rows = random.integers(0, 255, (num_rows, num_envs, 2), dtype=np.uint8)
    first = random.random((num_rows, num_envs)) < chance

    found = frames_before(history, rows, first)

    assert found.dtype == np.uint8
    for env in range(num_envs):
        stack = [*history[env], rows[0, env]]
        for row in range(num_rows):
            frame = rows[row, env]
            stack = [frame] * (num_frames + 1) if first[row, env] else [*stack[1:], frame] if row else stack
        np.testing.assert_array_equal(found[env], stack[:-1])
