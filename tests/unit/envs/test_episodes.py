"""Returns and lengths of episodes, by hand-worked steps."""

from __future__ import annotations

import numpy as np

from shoal.envs.batch import EnvStep
from shoal.envs.episodes import EpisodeTracker
from shoal.records import Episode


def step(reward: list[float], done: list[int], first: list[int]) -> EnvStep:
    ended = np.array(done, np.bool_)
    nobody = np.zeros_like(ended)
    return EnvStep({}, np.array(reward, np.float32), ended, nobody, np.array(first, np.bool_), ended)


def test_hand_worked_episodes_of_two_environments() -> None:
    tracker = EpisodeTracker(2)
    assert tracker.add(step([1, 2], [0, 0], [0, 0])) == ()
    assert tracker.add(step([1, 2], [1, 0], [0, 0])) == (Episode(2.0, 2),)
    # The first environment restarts; whatever an autoreset step earns is no part of an episode.
    assert tracker.add(step([9, 2], [0, 1], [1, 0])) == (Episode(6.0, 3),)
    # An episode of one step, while the second environment restarts.
    assert tracker.add(step([5, 0], [1, 0], [0, 1])) == (Episode(5.0, 1),)
    assert tracker.add(step([0, -1], [0, 0], [1, 0])) == ()
    assert tracker.add(step([4, -1], [1, 1], [0, 0])) == (Episode(4.0, 1), Episode(-2.0, 2))


def test_an_episode_that_breaks_off_without_an_end_counts_for_nothing() -> None:
    """So it is when an environment was started again, or an agent is away for some steps."""
    tracker = EpisodeTracker(1)
    tracker.add(step([7], [0], [0]))
    for _ in range(3):
        assert tracker.add(step([0], [0], [1])) == ()
    assert tracker.add(step([2], [1], [0])) == (Episode(2.0, 1),)


def test_long_returns_do_not_lose_precision() -> None:
    tracker = EpisodeTracker(1)
    tracker.add(step([2.0**25], [0], [0]))
    for _ in range(9):
        tracker.add(step([1.0], [0], [0]))
    assert tracker.add(step([1.0], [1], [0])) == (Episode(2.0**25 + 10, 11),)


def test_an_episode_has_the_version_that_chose_its_first_action() -> None:
    tracker = EpisodeTracker(2)
    assert tracker.add(step([1, 1], [0, 0], [0, 0]), 3) == ()
    assert tracker.add(step([1, 1], [1, 0], [0, 0]), 4) == (Episode(2.0, 2, 3),)
    # The action of an autoreset step, of version 5, is ignored: version 6 chooses the first one.
    tracker.add(step([0, 1], [0, 0], [1, 0]), 5)
    assert tracker.add(step([1, 1], [1, 1], [0, 0]), 6) == (Episode(1.0, 1, 6), Episode(4.0, 4, 3))


def test_what_an_environment_shows_may_be_overwritten() -> None:
    tracker = EpisodeTracker(1)
    reset = step([0], [0], [1])
    tracker.add(reset, 1)
    reset.first[:] = False
    assert tracker.add(step([1], [1], [0]), 2) == (Episode(1.0, 1, 2),)
