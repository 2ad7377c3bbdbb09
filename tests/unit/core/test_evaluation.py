"""Which episodes count, against environments that follow a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from shoal.envs.batch import EnvStep, Slots
from shoal.evaluation import Scores, play_episodes, quotas
from shoal.records import ArraySpec, DiscreteAction, EnvSpec, Episode

SPEC = EnvSpec("Script-v0", (ArraySpec("observation", "float32", (1,)),), DiscreteAction(2))


class ScriptedEnv:
    """Slot i plays episodes of `lengths[i]` steps; each step earns its action plus the number of the episode.

    Negative numbers are steps that the slot is away before its next episode; 0 breaks the episode off.
    """

    waits = False

    def __init__(self, **lengths: Sequence[Sequence[int]]) -> None:
        self._scripts = {policy: [list(script) for script in scripts] for policy, scripts in lengths.items()}
        self.slots = {policy: Slots(SPEC, len(scripts)) for policy, scripts in lengths.items()}
        self.num_restarts = 0
        self.seed = -1

    def reset(self, seed: int) -> dict[str, EnvStep]:
        self.seed = seed
        self._plays = {p: [self._play(script) for script in scripts] for p, scripts in self._scripts.items()}
        return {policy: self._shown([next(play) for play in plays]) for policy, plays in self._plays.items()}

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, EnvStep]:
        shown = {}
        for policy, plays in self._plays.items():
            rows = [play.send(int(a)) for play, a in zip(plays, actions[policy], strict=True)]
            shown[policy] = self._shown(rows)
        return shown

    def close(self) -> None: ...

    def _play(self, script: list[int]):  # type: ignore[no-untyped-def]
        """Yields (reward, first, done), and is sent actions."""
        number = 0
        while True:
            length = script[min(number, len(script) - 1)]
            number += 1
            if length < 0:
                for _ in range(-length):
                    yield 0.0, True, False
                continue
            action = yield 0.0, True, False
            for step in range(length or 3):
                is_broken_off = length == 0 and step == 2
                if is_broken_off:
                    break
                action = yield number + action, False, step == length - 1

    def _shown(self, rows: list[tuple[float, bool, bool]]) -> EnvStep:
        reward, first, done = (np.array(column) for column in zip(*rows, strict=True))
        nothing = np.zeros(len(rows), np.bool_)
        return EnvStep(
            {"observation": np.zeros((len(rows), 1), np.float32)},
            reward.astype(np.float32), done, nothing, first, done,
        )  # fmt: skip


class Always:
    """Takes the same action, and counts how often it is asked."""

    def __init__(self, num: int, action: int = 0) -> None:
        self._actions = np.full(num, action)
        self.num_asked = 0

    def act(self, shown: EnvStep) -> np.ndarray:
        self.num_asked += 1
        return self._actions


def play(env: ScriptedEnv, num_episodes: int, num_envs: int, action: int = 0) -> dict[str, Scores]:
    players = {policy: Always(slots.num, action) for policy, slots in env.slots.items()}
    return play_episodes(env, players, num_episodes, num_envs, seed=7)


def test_long_episodes_count_as_much_as_short_ones() -> None:
    """The first four to end would be four of one step."""
    env = ScriptedEnv(policy=[[1], [10]])
    found = play(env, 4, 2)["policy"]
    assert [episode.num_steps for episode in found.episodes] == [1, 1, 10, 10]
    assert env.seed == 7


def test_returns_are_sums_over_the_episode() -> None:
    found = play(ScriptedEnv(policy=[[2, 3], [1, 1]]), 4, 2, action=1)["policy"]
    assert found.episodes == (Episode(4.0, 2), Episode(9.0, 3), Episode(2.0, 1), Episode(3.0, 1))


def test_what_broke_off_is_no_episode() -> None:
    found = play(ScriptedEnv(policy=[[0, 4]]), 1, 1)["policy"]
    assert found.episodes == (Episode(8.0, 4),)


def test_each_agent_of_an_environment_has_its_quota() -> None:
    """Two copies; red has two agents in each. One of them is away at times, one of blue never comes."""
    never = [-1000]
    env = ScriptedEnv(red=[[3], [-2, 3, -2, 3, -2, 3], [3], [3]], blue=[[2], never])
    found = play(env, 3, 2)
    # The first copy plays two episodes, the second one.
    assert [episode.num_steps for episode in found["red"].episodes] == [3, 3, 3, 3, 3, 3]
    assert [episode.num_steps for episode in found["blue"].episodes] == [2, 2]


def test_nobody_is_there_at_first() -> None:
    found = play(ScriptedEnv(policy=[[-5, 2]]), 1, 1)["policy"]
    assert found.episodes == (Episode(4.0, 2),)


def test_it_ends_with_the_last_episode_and_tells_how_many_are_missing() -> None:
    env, told = ScriptedEnv(policy=[[2], [3]]), []
    player = Always(2)
    play_episodes(env, {"policy": player}, 3, 2, 1, told.append)
    # Two episodes of two steps and the start between them; one of three.
    assert player.num_asked == 5
    assert told == [3, 2, 1, 1, 0]


@pytest.mark.parametrize(
    ("num_episodes", "num_envs", "num_slots", "expected"),
    [(4, 2, 2, [2, 2]), (5, 3, 3, [2, 2, 1]), (3, 3, 6, [1] * 6), (3, 2, 4, [2, 2, 1, 1])],
)
def test_quotas(num_episodes: int, num_envs: int, num_slots: int, expected: list[int]) -> None:
    assert quotas(num_episodes, num_envs, num_slots).tolist() == expected


def test_summary_by_hand() -> None:
    scores = Scores((Episode(1.0, 10), Episode(2.0, 20), Episode(6.0, 60), Episode(7.0, 70)))
    # Squared deviations from 4: 9 + 4 + 4 + 9 = 26; 26 / 3 = 8.667; / 4 = 2.167; root 1.472.
    assert scores.summary() == {
        "episodes": 4, "mean_return": 4.0, "standard_error": pytest.approx(1.47196), "median_return": 4.0,
        "min_return": 1.0, "max_return": 7.0, "mean_length": 40.0,
    }  # fmt: skip
    one = Scores((Episode(1.0, 10),)).summary()
    assert (one["mean_return"], one["standard_error"]) == (1.0, None)
    none = Scores(()).summary()
    assert none["episodes"] == 0
    assert none["mean_return"] is None
