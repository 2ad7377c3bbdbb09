"""Games of PettingZoo as they are installed: what slots show is what the game itself said."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pettingzoo
import pytest
from pettingzoo.utils import turn_based_aec_to_parallel

from shoal.config.tree import EnvSection
from shoal.envs.multi_agent import make_multi_agent_env
from shoal.errors import UserError
from shoal.records import ACTION_MASK, ArraySpec, BoxAction, DiscreteAction

# Importing and making games warns of their own old ways.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def make_connect_four() -> Any:
    return turn_based_aec_to_parallel(pettingzoo.make("aec", "classic/connect_four-v3"))


def play_by_itself(game: Any, seed: int | None, choose: Any, num_steps: int) -> list[Any]:
    """Steps of the plain game, episode after episode: None for a reset, else what it returned."""
    told = []
    observations, _ = game.reset(seed=seed)
    told.append((None, observations, list(game.agents)))
    for t in range(1, num_steps + 1):
        if game.agents:
            there = list(game.agents)
            outcome = game.step({agent: choose(agent, t) for agent in there})
            told.append((there, outcome, list(game.agents)))
        else:
            observations, _ = game.reset()
            told.append((None, observations, list(game.agents)))
    return told


@pytest.mark.parametrize(
    ("game_id", "policies", "players", "num_steps"),
    [
        (
            "butterfly/knights_archers_zombies-v11",
            {"archers": ("archer_*",), "knights": ("knight_*",)},
            {"archers": ["archer_0", "archer_1"], "knights": ["knight_0", "knight_1"]},
            300,
        ),
        ("sisl/multiwalker-v9", {}, {"policy": ["walker_0", "walker_1", "walker_2"]}, 160),
        (
            "classic/rps-v2",
            {"second": ("player_1",), "first": ("*",)},
            {"second": ["player_1"], "first": ["player_0"]},
            40,
        ),
    ],
)
def test_slots_show_what_the_game_said(
    game_id: str, policies: dict[str, tuple[str, ...]], players: dict[str, list[str]], num_steps: int
) -> None:
    make = partial(pettingzoo.make, "parallel", game_id)
    env = make_multi_agent_env(EnvSection(id="Game", policies=policies), 1, make, "Game")
    assert {policy: slots.num for policy, slots in env.slots.items()} == {
        policy: len(agents) for policy, agents in players.items()
    }
    row = {agent: (policy, i) for policy, agents in players.items() for i, agent in enumerate(agents)}
    chance = np.random.default_rng(0)
    chosen = [
        {policy: _sample(slots.spec.action, slots.num, chance) for policy, slots in env.slots.items()}
        for _ in range(num_steps + 1)
    ]
    game = make()
    told = play_by_itself(game, 3, lambda agent, t: chosen[t][row[agent][0]][row[agent][1]], num_steps)
    game.close()
    num_ends = num_away = 0
    was_there: set[str] = set()
    with closing(env):
        for t, (actors, outcome, there) in enumerate(told):
            shown = env.reset(3) if t == 0 else env.step(chosen[t])
            for agent, (policy, i) in row.items():
                step = shown[policy]
                seen = {name: column[i] for name, column in step.observation.items()}
                if actors is None:
                    assert step.first[i]
                    assert not step.done[i]
                    _check_seen(seen, outcome.get(agent))
                elif agent in was_there:
                    observations, rewards, terminated, truncated, _ = outcome
                    assert not step.first[i]
                    assert step.reward[i] == np.float32(rewards[agent])
                    assert step.terminated[i] == terminated[agent]
                    assert step.truncated[i] == truncated[agent]
                    assert step.done[i] == (agent not in there)
                    _check_seen(seen, observations[agent])
                    num_ends += int(step.done[i])
                else:
                    assert step.first[i]
                    _check_seen(seen, None)
                    num_away += 1
            was_there = set(there)
        assert env.num_restarts == 0
    assert num_ends >= 4
    # Of these only knights and archers die one by one.
    assert (num_away > 0) == (len(row) == 4)


def _sample(spec: Any, num: int, chance: np.random.Generator) -> np.ndarray:
    if isinstance(spec, DiscreteAction):
        return chance.integers(0, spec.n, num)
    assert isinstance(spec, BoxAction)
    return chance.uniform(spec.low, spec.high, (num, *spec.shape)).astype(np.float32)


def _check_seen(seen: dict[str, np.ndarray], observation: Any) -> None:
    (column,) = seen.values()
    expected = np.zeros_like(column) if observation is None else np.asarray(observation).astype(column.dtype)
    np.testing.assert_array_equal(column, expected)


def test_an_aec_game_is_refused_with_the_way_out() -> None:
    make = partial(pettingzoo.make, "aec", "classic/rps-v2")
    with pytest.raises(
        UserError, match=r"^environment 'rps': it is an AEC environment.*utils\.aec_to_parallel"
    ):
        make_multi_agent_env(EnvSection(id="rps"), 2, make, "rps")


def test_a_game_with_turns_shows_its_masks() -> None:
    """Whose turn it is not is shown no mask that allows something: it may choose anything, to no effect."""
    env = make_multi_agent_env(EnvSection(id="four"), 2, make_connect_four, "four")
    spec = env.slots["policy"].spec
    assert spec.action == DiscreteAction(7)
    assert spec.observation == (
        ArraySpec("observation.observation", "int8", (6, 7, 2), 0, 0.0, 1.0),
        ArraySpec(ACTION_MASK, "int8", (7,)),
    )
    chance = np.random.default_rng(1)
    step = env.reset(0)["policy"]
    num_ends = 0
    with closing(env):
        for _ in range(100):
            masks = step.observation[ACTION_MASK]
            assert masks.any(axis=1).all()
            action = np.array([chance.choice(np.flatnonzero(mask)) for mask in masks])
            step = env.step({"policy": action})["policy"]
            num_ends += int(step.done.sum())
    assert num_ends >= 4
    assert env.num_restarts == 0
