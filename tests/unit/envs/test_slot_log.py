"""Episodes and steps of slots against a count step by step."""

from __future__ import annotations

import numpy as np

from shoal.envs.slot_log import SlotLog


def test_episodes_and_steps_are_those_of_a_plain_count() -> None:
    chance = np.random.default_rng(2)
    log = SlotLog(5)
    episodes, steps = [1] * 5, [0] * 5
    for t in range(500):
        first = chance.random(5) < (0.2, 0.5, 0.01, 0.0, 0.9)
        log.add(first)
        for slot in range(5):
            episodes[slot] += int(first[slot])
            steps[slot] = 0 if first[slot] else steps[slot] + 1
        if t % 97 == 0 or t > 490:
            assert [log.where(slot) for slot in range(5)] == list(zip(episodes, steps, strict=True))


def test_more_episodes_than_a_byte_counts() -> None:
    log = SlotLog(1)
    for _ in range(1000):
        log.add(np.ones(1, np.bool_))
    assert log.where(0) == (1001, 0)
    assert SlotLog(1).where(0) == (1, 0)
