"""Every agent of every copy is a slot, whoever comes and goes; what breaks is replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Space
from hypothesis import given
from hypothesis import strategies as st

from shoal.config.tree import EnvSection
from shoal.envs.batch import EnvStep
from shoal.envs.multi_agent import MultiAgentEnv, make_multi_agent_env
from shoal.envs.restarts import Restarts
from shoal.envs.workers import make_worker_env
from shoal.errors import UserError
from shoal.records import ACTION_MASK, DEFAULT_POLICY, ArraySpec, DiscreteAction, EnvSpec
from tests.unit.envs.scripted import AGENTS, NUM_ACTIONS, Moment, Script, ScriptedEnv

SECTION = EnvSection(id="Scripted", policies={"red": ("a", "c"), "blue": ("b",)})
# Two steps in which all three are there, then the end of all.
PLAIN: Script = [[Moment("abc"), Moment("abc"), Moment("", terminated="abc")]]


class Made:
    """A factory that keeps what it made."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.envs: list[Any] = []

    def __call__(self) -> Any:
        self.envs.append(self._make())
        return self.envs[-1]


def multi_agent(
    make_one: Callable[[], Any], num_envs: int = 1, section: EnvSection = SECTION
) -> MultiAgentEnv:
    env = make_multi_agent_env(section, num_envs, make_one, "Scripted")
    assert isinstance(env, MultiAgentEnv)
    return env


def copied(steps: dict[str, EnvStep]) -> dict[str, EnvStep]:
    return {
        policy: EnvStep(
            {name: column.copy() for name, column in step.observation.items()},
            *(a.copy() for a in (step.reward, step.terminated, step.truncated, step.first, step.done)),
        )
        for policy, step in steps.items()
    }


def actions(env: MultiAgentEnv, number: int = 0) -> dict[str, np.ndarray]:
    return {policy: np.full(slots.num, number) for policy, slots in env.slots.items()}


def rollout(env: MultiAgentEnv, num_steps: int, number: int = 0) -> list[dict[str, EnvStep]]:
    shown = [copied(env.reset(5))]
    shown += [copied(env.step(actions(env, number))) for _ in range(num_steps)]
    return shown


COMING_AND_GOING: Script = [
    [
        Moment("ab"),
        Moment("abc"),  # c comes
        Moment("ac", terminated="b"),  # b ends
        Moment("ac"),
        Moment("a"),  # c vanishes without a word
        Moment("ab"),  # b is back
        Moment("", terminated="a", truncated="b"),
    ],
    [Moment("bc"), Moment("b", sees="bc", terminated=""), Moment("", truncated="b")],
]


def test_agents_come_and_go() -> None:
    """Worked by hand: what the slots of a and c (red) and of b (blue) show, from reset on."""
    red = {
        # per step: a, c
        "first": [(1, 1), (0, 1), (0, 0), (0, 0), (0, 0), (0, 1), (0, 1), (1, 1), (1, 0), (1, 1)],
        "terminated": [(0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (1, 0), (0, 0), (0, 0), (0, 0)],
        "truncated": [(0, 0), (0, 0), (0, 0), (0, 0), (0, 1), (0, 0), (0, 0), (0, 0), (0, 1), (0, 0)],
        "reward": [
            (0, 0),
            (103, 0),
            (203, 203),
            (303, 303),
            (403, 403),
            (503, 0),
            (603, 0),
            (0, 0),
            (0, 103),
            (0, 0),
        ],
        "observation": [
            [(0, 0, 0), (0, 0, 0)],
            [(0, 0, 1), (2, 0, 1)],
            [(0, 0, 2), (2, 0, 2)],
            [(0, 0, 3), (2, 0, 3)],
            [(0, 0, 4), (2, 0, 3)],  # the last that c saw
            [(0, 0, 5), (0, 0, 0)],
            [(0, 0, 6), (0, 0, 0)],
            [(0, 0, 0), (2, 1, 0)],  # the next episode is without a
            [(0, 0, 0), (2, 1, 1)],  # c is not there any more, though it saw that
            [(0, 0, 0), (0, 0, 0)],
        ],
    }
    blue = {
        "first": [1, 0, 0, 1, 1, 1, 0, 1, 0, 0],
        "terminated": [0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
        "truncated": [0, 0, 0, 0, 0, 0, 1, 0, 0, 1],
        "reward": [0, 103, 203, 0, 0, 0, 603, 0, 103, 203],
        "observation": [
            (1, 0, 0),
            (1, 0, 1),
            (1, 0, 2),
            (0, 0, 0),
            (0, 0, 0),
            (1, 0, 5),
            (1, 0, 6),
            (1, 1, 0),
            (1, 1, 1),
            (1, 1, 2),
        ],
    }
    made = Made(partial(ScriptedEnv, COMING_AND_GOING))
    env = multi_agent(made)
    shown = rollout(env, 9, number=3)
    for policy, expected in (("red", red), ("blue", blue)):
        for name, rows in expected.items():
            if name == "observation":
                got = [step[policy].observation[name] for step in shown]
            else:
                got = [getattr(step[policy], name) for step in shown]
            wanted = np.array(rows, float).reshape(np.shape(got))
            np.testing.assert_array_equal(np.array(got, float), wanted, f"{policy} {name}")
        for step in shown:
            np.testing.assert_array_equal(step[policy].done, step[policy].terminated | step[policy].truncated)
            assert step[policy].reward.dtype == np.float32
    # The third reset would be the tenth step; seeds are given once.
    assert made.envs[0].seeds == [5, None]


def test_slots_are_ordered_copy_by_copy_and_get_their_own_actions_and_seeds() -> None:
    made = Made(partial(ScriptedEnv, PLAIN))
    env = multi_agent(made, num_envs=3)
    spec = EnvSpec("Scripted", (ArraySpec("observation", "float32", (3,)),), DiscreteAction(NUM_ACTIONS))
    assert {policy: (slots.spec, slots.num) for policy, slots in env.slots.items()} == {
        "red": (spec, 6),
        "blue": (spec, 3),
    }
    assert not env.waits
    first = env.reset(7)
    assert first["red"].observation["observation"][:, 0].tolist() == [0, 2, 0, 2, 0, 2]
    assert first["blue"].observation["observation"][:, 0].tolist() == [1, 1, 1]
    step = env.step({"red": np.array([0, 1, 2, 3, 4, 5]), "blue": np.array([6, 7, 8])})
    assert [[one.taken[agent] for agent in "acb"] for one in made.envs] == [
        [[0], [1], [6]],
        [[2], [3], [7]],
        [[4], [5], [8]],
    ]
    assert step["red"].reward.tolist() == [100, 101, 102, 103, 104, 105]
    assert [one.seeds for one in made.envs] == [[7], [8], [9]]
    for _ in range(2):
        env.step(actions(env))
    assert [one.seeds for one in made.envs] == [[7, None], [8, None], [9, None]]


def test_without_policies_one_plays_all() -> None:
    env = multi_agent(partial(ScriptedEnv, PLAIN), 2, EnvSection(id="Scripted"))
    assert {policy: slots.num for policy, slots in env.slots.items()} == {DEFAULT_POLICY: 6}
    shown = env.reset(0)[DEFAULT_POLICY].observation["observation"]
    assert shown[:, 0].tolist() == [0, 1, 2, 0, 1, 2]


def test_agents_that_stay_on_the_list_after_their_end() -> None:
    """Against PettingZoo's rules, but some environments do: nobody is played beyond its end."""
    script = [
        [
            Moment("ab"),
            Moment("ab", terminated="a"),
            Moment("ab", terminated="a"),
            Moment("ab"),  # a is alive again
            Moment("ab", terminated="ab"),  # and the list is never empty
        ],
        [Moment("ab"), Moment("ab")],
    ]
    env = multi_agent(partial(ScriptedEnv, script, "ab"), section=EnvSection(id="Scripted"))
    shown = [step[DEFAULT_POLICY] for step in rollout(env, 6)]
    assert [step.first.tolist() for step in shown] == [
        [True, True],
        [False, False],
        [True, False],
        [True, False],
        [False, False],
        [True, True],
        [False, False],
    ]
    assert [step.terminated.tolist() for step in shown][1:5] == [
        [True, False],
        [False, False],
        [False, False],
        [True, True],
    ]
    assert shown[2].observation["observation"][0].tolist() == [0, 0, 0]
    assert shown[3].observation["observation"][0].tolist() == [0, 0, 3]
    assert shown[5].observation["observation"][1].tolist() == [1, 1, 0]


def test_a_flag_without_an_observation_ends_with_the_last_one() -> None:
    script = [[Moment("ab"), Moment("b", sees="b", terminated="a"), Moment("", truncated="b")]]
    env = multi_agent(partial(ScriptedEnv, script, "ab"), section=EnvSection(id="Scripted"))
    step = rollout(env, 1)[1][DEFAULT_POLICY]
    assert step.terminated.tolist() == [True, False]
    assert not step.truncated.any()
    assert step.observation["observation"].tolist() == [[0, 0, 0], [1, 0, 1]]


class MaskedEnv(ScriptedEnv):
    """Allows the action that is the number of the step, and shows it where it is told to."""

    def __init__(self, script: Script, where: str) -> None:
        super().__init__(script, "ab")
        self._where = where

    def observation_space(self, agent: str) -> Space[Any]:
        space = super().observation_space(agent)
        return (
            Dict(observation=space, action_mask=Box(0, 1, (NUM_ACTIONS,), np.int8))
            if self._where == "entry"
            else space
        )

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        observations, infos = super().reset(seed)
        return observations, self._infos(infos)

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        *rest, infos = super().step(actions)
        return (*rest, self._infos(infos))

    def _infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        return {agent: {"action_mask": self._mask()} for agent in infos} if self._where == "info" else infos

    def _observe(self, agent: str) -> Any:
        observation = super()._observe(agent)
        return (
            {"observation": observation, "action_mask": self._mask()}
            if self._where == "entry"
            else observation
        )

    def _mask(self) -> np.ndarray:
        return np.arange(NUM_ACTIONS) == self._step


@pytest.mark.parametrize(("where", "action_mask"), [("entry", "auto"), ("info", "info")])
def test_masks_are_shown_and_those_who_are_away_may_do_anything(where: str, action_mask: Any) -> None:
    script = [[Moment("ab"), Moment("a", terminated="b"), Moment("a"), Moment("", terminated="a")]]
    section = EnvSection(id="Scripted", action_mask=action_mask)
    env = multi_agent(partial(MaskedEnv, script, where), section=section)
    assert ArraySpec(ACTION_MASK, "int8", (NUM_ACTIONS,)) in env.slots[DEFAULT_POLICY].spec.observation
    masks = [step[DEFAULT_POLICY].observation[ACTION_MASK] for step in rollout(env, 2)]
    one_hot = np.eye(NUM_ACTIONS, dtype=np.int8)
    np.testing.assert_array_equal(masks[0], [one_hot[0], one_hot[0]])
    np.testing.assert_array_equal(masks[1], [one_hot[1], one_hot[1]])
    np.testing.assert_array_equal(masks[2], [one_hot[2], np.ones(NUM_ACTIONS)])


@st.composite
def lawful_scripts(draw: st.DrawFn) -> Script:
    """As PettingZoo wants it: everybody comes once per episode at most, and leaves with a flag."""
    episodes = []
    for _ in range(draw(st.integers(1, 3))):
        lives = {}
        for agent in AGENTS:
            start = draw(st.integers(0, 3))
            lives[agent] = (start, start + draw(st.integers(1, 5)), draw(st.booleans()))
        # There must be somebody from the beginning to the end.
        lives["a"] = (0, max(end for _, end, _ in lives.values()), lives["a"][2])
        moments = []
        for t in range(lives["a"][1] + 1):
            there = "".join(agent for agent, (start, end, _) in lives.items() if start <= t < end)
            ends = [(agent, kind) for agent, (_, end, kind) in lives.items() if end == t]
            terminated = "".join(agent for agent, kind in ends if kind)
            truncated = "".join(agent for agent, kind in ends if not kind)
            moments.append(Moment(there, None, terminated, truncated))
        episodes.append(moments)
    return episodes


@given(lawful_scripts(), st.integers(1, 3), st.integers(1, 40))
def test_the_ledger_adds_up(script: Script, num_envs: int, num_steps: int) -> None:
    """Steps that are transitions, per slot, are the steps that its agent took, with what it earned."""
    made = Made(partial(ScriptedEnv, script))
    env = multi_agent(made, num_envs)
    chance = np.random.default_rng(num_steps)
    shown = [copied(env.reset(0))]
    for _ in range(num_steps):
        chosen = {policy: chance.integers(0, NUM_ACTIONS, s.num) for policy, s in env.slots.items()}
        shown.append(copied(env.step(chosen)))
    for policy, agents in (("red", "ac"), ("blue", "b")):
        taken = [made.envs[copy].taken[agent] for copy in range(num_envs) for agent in agents]
        first = np.stack([step[policy].first for step in shown])
        reward = np.stack([step[policy].reward for step in shown])
        done = np.stack([step[policy].done for step in shown])
        observation = np.stack([step[policy].observation["observation"] for step in shown])
        np.testing.assert_array_equal((~first).sum(axis=0), [len(steps) for steps in taken])
        np.testing.assert_array_equal(
            reward.sum(axis=0),
            [sum(steps) + 100 * observation[~first[:, i], i, 2].sum() for i, steps in enumerate(taken)],
        )
        # A step after an end is never a transition, one that goes on from an observation always is.
        assert first[1:][done[:-1]].all()
        assert not (first & done).any()
        went_on = ~first[1:]
        np.testing.assert_array_equal((observation[1:, :, 2] - observation[:-1, :, 2])[went_on], 1)


@st.composite
def lawless_scripts(draw: st.DrawFn) -> Script:
    """Anybody may be on the list, see something or be flagged at any time."""
    some = st.text(AGENTS, max_size=3).map(lambda drawn: "".join(sorted(set(drawn))))
    moments = st.builds(Moment, there=some, sees=some, terminated=some, truncated=some)
    starts = st.builds(Moment, there=some, sees=some)
    episodes = st.builds(
        lambda start, rest: [start, *rest, Moment("")], starts, st.lists(moments, max_size=8)
    )
    return draw(st.lists(episodes, min_size=1, max_size=3))


def told_slowly(env: ScriptedEnv, agent: str) -> list[tuple[bool, bool, bool]]:
    """What one slot must show, read off the moments that the environment went through."""
    told = []
    in_play = False
    for step, moment in env.moments:
        is_there = agent in moment.there and agent in moment.seen
        terminated, truncated = agent in moment.terminated, agent in moment.truncated
        if step > 0 and in_play:
            truncated = truncated or not (is_there or terminated)
            told.append((False, terminated, truncated))
            in_play = not (terminated or truncated)
        else:
            told.append((True, False, False))
            in_play = is_there and not (terminated or truncated)
    return told


@given(lawless_scripts(), st.integers(1, 2), st.integers(1, 30))
def test_any_script_is_shown_as_the_rules_say(script: Script, num_envs: int, num_steps: int) -> None:
    made = Made(partial(ScriptedEnv, script))
    env = multi_agent(made, num_envs)
    shown = rollout(env, num_steps)
    assert env.num_restarts == 0
    for policy, agents in (("red", "ac"), ("blue", "b")):
        slots = [(made.envs[copy], agent) for copy in range(num_envs) for agent in agents]
        for i, (one, agent) in enumerate(slots):
            rows = [
                (
                    bool(step[policy].first[i]),
                    bool(step[policy].terminated[i]),
                    bool(step[policy].truncated[i]),
                )
                for step in shown
            ]
            assert rows == told_slowly(one, agent)


class BrokenEnv(ScriptedEnv):
    """Misbehaves in step 2 of its second episode, if it was made with seed 6."""

    def __init__(self, how: str) -> None:
        super().__init__([[Moment("abc")] * 3 + [Moment("", terminated="abc")]])
        self._how = how

    @property
    def _is_time(self) -> bool:
        return self.seeds[0] == 6 and self._episode == 1 and self._step == 2

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        observations, rewards, *rest = super().step(actions)
        if self._is_time:
            if self._how == "raises":
                raise ValueError("fell over")
            if self._how == "gives an infinite reward":
                rewards["b"] = np.inf
            if self._how == "has a stranger":
                self.agents.append("z")
        return (observations, rewards, *rest)

    def _observe(self, agent: str) -> Any:
        observation = super()._observe(agent)
        if self._is_time and self._how == "shows NaN":
            return observation * np.nan
        if self._is_time and self._how == "shows another shape":
            return observation[:2]
        return observation


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("raises", "raised ValueError: fell over"),
        ("gives an infinite reward", "gave a reward of inf to agent 'b'"),
        ("shows NaN", "showed NaN in observation to agent 'a'"),
        ("shows another shape", "showed observation of shape [2] instead of [3] to agent 'a'"),
        ("has a stranger", "has agents that are not among its possible_agents: 'z'"),
    ],
)
def test_a_copy_that_breaks_is_replaced(how: str, told: str, caplog: pytest.LogCaptureFixture) -> None:
    made = Made(partial(BrokenEnv, how))
    env = multi_agent(made, num_envs=3)
    whole = rollout(multi_agent(Made(partial(BrokenEnv, "does nothing")), num_envs=3), 8)
    shown = rollout(env, 8)
    assert env.num_restarts == 1
    assert len(made.envs) == 4
    assert [one.is_closed for one in made.envs] == [False, True, False, False]
    assert made.envs[3].seeds[0] not in (None, 5, 6, 7)
    expected = (
        f"environment 'Scripted', copy 1 (seed 6, episode 2, step 2) {told}; "
        f"starting it again with seed {made.envs[3].seeds[0]}"
    )
    assert [record.getMessage() for record in caplog.records] == [expected]
    rows = {"red": slice(2, 4), "blue": slice(1, 2)}
    for t, (got, wanted) in enumerate(zip(shown, whole, strict=True)):
        for policy, mine in rows.items():
            others = np.delete(np.arange(len(got[policy].first)), mine)
            for name in ("reward", "terminated", "truncated", "first", "done"):
                expect = getattr(wanted[policy], name)
                np.testing.assert_array_equal(getattr(got[policy], name)[others], expect[others])
                if t < 6:
                    np.testing.assert_array_equal(getattr(got[policy], name), expect)
    # Step 6 is step 2 of the second episode.
    for policy, mine in rows.items():
        step = shown[6][policy]
        assert step.first[mine].all()
        assert not step.done[mine].any()
        assert (step.reward[mine] == 0).all()
        assert (step.observation["observation"][mine, 1:] == 0).all()
        assert not shown[7][policy].first[mine].any()
        assert (shown[7][policy].observation["observation"][mine, 2] == 1).all()


class AlwaysBroken(ScriptedEnv):
    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        raise OSError("no display")


def test_restarts_are_limited() -> None:
    env = multi_agent(partial(AlwaysBroken, PLAIN), section=SECTION.model_copy(update={"max_restarts": 2}))
    env.reset(0)
    for _ in range(2):
        assert env.step(actions(env))["red"].first.all()
    with pytest.raises(UserError, match=r"max_restarts is 2: .*step 1\) raised OSError: no display$"):
        env.step(actions(env))


def test_a_count_can_be_shared() -> None:
    restarts = Restarts(1)
    envs = [
        make_multi_agent_env(SECTION, 1, partial(AlwaysBroken, PLAIN), "Scripted", restarts) for _ in range(2)
    ]
    for env in envs:
        env.reset(0)
    chosen = {policy: np.zeros(slots.num, int) for policy, slots in envs[0].slots.items()}
    envs[0].step(chosen)
    with pytest.raises(UserError, match=r"max_restarts is 1"):
        envs[1].step(chosen)
    assert [env.num_restarts for env in envs] == [1, 0]


class BrokenReset(ScriptedEnv):
    def __init__(self, script: Script, reset_when: Callable[[int | None], bool]) -> None:
        super().__init__(script)
        self._reset_when = reset_when

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if not self._reset_when(seed):
            raise RuntimeError("no map")
        return super().reset(seed)


def test_an_environment_that_never_starts_is_the_users_to_mend() -> None:
    env = multi_agent(partial(BrokenReset, PLAIN, lambda seed: False))
    with pytest.raises(UserError, match=r"^environment 'Scripted', copy 0 .* raised RuntimeError: no map$"):
        env.reset(0)
    assert env.num_restarts == 0


def test_a_restart_that_breaks_too_is_tried_again() -> None:
    starts = iter([True, False, False, False, True, True])
    env = multi_agent(partial(BrokenReset, PLAIN, lambda seed: next(starts)))
    rollout(env, 2)
    # Its own reset and two starts of others break.
    step = env.step(actions(env))
    assert env.num_restarts == 3
    assert step["red"].first.all()
    assert not env.step(actions(env))["red"].first.any()


class NaNAtReset(ScriptedEnv):
    """Shows NaN to b at the start of every episode but the first."""

    num_made = 0

    def __init__(self) -> None:
        super().__init__([[Moment("abc"), Moment("", terminated="abc")]])
        NaNAtReset.num_made += 1
        self._shows_nan = NaNAtReset.num_made in (2, 3)

    def _observe(self, agent: str) -> Any:
        observation = super()._observe(agent)
        return observation * np.nan if agent == "b" and (self._episode or self._shows_nan) else observation


def test_a_restart_that_shows_nan_is_tried_again() -> None:
    NaNAtReset.num_made = 0
    env = multi_agent(NaNAtReset)
    shown = rollout(env, 2)
    assert env.num_restarts == 3
    assert NaNAtReset.num_made == 4
    assert shown[2]["red"].first.all()
    assert np.isfinite(shown[2]["blue"].observation["observation"]).all()


def test_doing_tells_which_copy_is_stepped() -> None:
    told = []

    class Curious(ScriptedEnv):
        def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
            told.append(env.doing())
            return super().step(actions)

    env = multi_agent(partial(Curious, PLAIN), num_envs=2)
    rollout(env, 1)
    assert told == [
        "environment 'Scripted', copy 0 (seed 5, episode 1, step 1)",
        "environment 'Scripted', copy 1 (seed 6, episode 1, step 1)",
    ]


def test_closing_closes_all_copies() -> None:
    made = Made(partial(ScriptedEnv, PLAIN))
    multi_agent(made, 3).close()
    assert [env.is_closed for env in made.envs] == [True] * 3


def test_copies_with_other_agents_are_refused_and_closed() -> None:
    agents = iter(["ab", "abc"])
    made = Made(lambda: ScriptedEnv(PLAIN, next(agents)))
    section = EnvSection(id="Scripted")
    with pytest.raises(
        UserError, match=r"'Scripted': copies differ .* \['a', 'b'\], another \['a', 'b', 'c'\]"
    ):
        make_multi_agent_env(section, 2, made, "Scripted")
    assert [env.is_closed for env in made.envs] == [True, True]


def test_what_the_factory_raises_comes_through() -> None:
    def make_one() -> Any:
        raise ImportError("no pygame")

    with pytest.raises(ImportError, match="no pygame"):
        make_multi_agent_env(SECTION, 2, make_one, "Scripted")


def make_scripted_part(script: Sequence[Sequence[Moment]], num_envs: int) -> Any:
    return make_multi_agent_env(SECTION, num_envs, partial(ScriptedEnv, script), "Scripted")


def test_in_worker_processes_it_is_the_same() -> None:
    part = partial(make_scripted_part, COMING_AND_GOING)
    here = multi_agent(partial(ScriptedEnv, COMING_AND_GOING), 3)
    with closing(make_worker_env(SECTION.model_copy(update={"workers": 2}), 3, part)) as env:
        assert env.slots == here.slots
        expected, shown = here.reset(1), env.reset(1)
        for _ in range(12):
            for policy, step in expected.items():
                np.testing.assert_array_equal(
                    shown[policy].observation["observation"], step.observation["observation"]
                )
                for name in ("reward", "terminated", "truncated", "first", "done"):
                    np.testing.assert_array_equal(getattr(shown[policy], name), getattr(step, name))
            chosen = actions(here, 4)
            expected, shown = here.step(chosen), env.step(chosen)
