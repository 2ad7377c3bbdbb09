"""`shoal envs check`: what it prints of environments that work, that are odd, and that break."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from shoal.cli.app import run
from shoal.cli.env_check import Check, Measurement, measure
from shoal.cli.env_report import advice, report, warnings
from shoal.config.tree import EnvSection
from shoal.envs.batch import EnvStep, Slots
from shoal.envs.make import make_batch_env
from shoal.records import ArraySpec, DiscreteAction, EnvSpec, MultiDiscreteAction

QUICK = ["--envs", "2", "--seconds", "0.05"]
SYNC = ["--set", "env.vectorization=sync"]

ENVS = """
import gymnasium as gym
import numpy as np
class Base(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(3)
    length = 5
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation(), {}
    def observation(self):
        return np.zeros(2, np.float32)
    def reward(self):
        return 1.0
    def step(self, action):
        self.t += 1
        return self.observation(), self.reward(), self.t == self.length, False, {}
class Masked(Base):
    observation_space = gym.spaces.Dict(x=Base.observation_space, action_mask=gym.spaces.MultiBinary(3))
    def observation(self):
        self.mask = self.np_random.integers(0, 2, 3).astype(np.int8)
        self.mask[self.np_random.integers(3)] = 1
        return {"x": np.zeros(2, np.float32), "action_mask": self.mask}
    def step(self, action):
        assert self.mask[action], "forbidden"
        return super().step(action)
class Random(Base):
    chance = np.random.default_rng()
    def observation(self):
        return self.chance.random(2, np.float32)
class Odd(Base):
    length = -1
    def reward(self):
        return -5000.0
    def observation(self):
        return np.full(2, 1e5, np.float32)
class Idle(Base):
    def reward(self):
        return 0.0
class Breaks(Base):
    def reward(self):
        return float("nan") if self.t == 4 else 1.0
class Dead(Base):
    def step(self, action):
        raise RuntimeError("no power")
class NotMade(Base):
    def __init__(self):
        raise RuntimeError("no licence")
"""


@pytest.fixture
def envs(tmp_path: Path) -> Path:
    path = tmp_path / "odd_envs.py"
    path.write_text(ENVS)
    return path


def test_an_environment_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--set", "env.vectorization=native", "--set", "env.kwargs.max_episode_steps=20"]
    assert run(["envs", "check", "CartPole-v1", *QUICK, *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    for text in ("CartPole-v1", "float32", "[4]", "Discrete(2)", "native", "Use native:"):
        assert text in captured.out
    assert "warning" not in captured.out
    lines = yaml.safe_load(captured.out.split("Use native:")[1])
    section = EnvSection(kwargs={"max_episode_steps": 20}, vectorization="native")
    assert EnvSection.model_validate(lines["env"]) == section


def test_presets_are_known_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["envs", "check", "cartpole", *QUICK]) == 0
    assert "CartPole-v1" in capsys.readouterr().out


def test_masked_actions_are_never_taken(envs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["envs", "check", f"{envs}:Masked", *QUICK, *SYNC]) == 0
    out = capsys.readouterr().out
    assert "action_mask" in out
    assert "allowed actions" in out


@pytest.mark.parametrize(
    ("name", "warnings"),
    [
        ("Random", ["the same seed and the same actions did not show the same twice"]),
        ("Idle", ["no reward other than 0 was seen"]),
        (
            "Odd",
            [
                "rewards went from -5000 to -5000",
                "observation reached 100000",
                "no episode ended within",
            ],
        ),
    ],
)
def test_oddities_are_warned_of(
    envs: Path,
    name: str,
    warnings: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.cli.env_report.MANY_CALLS", 10)
    # Enough calls on any machine: each look at the clock is a millisecond.
    ticks = count()
    monkeypatch.setattr("shoal.cli.env_check.measure", partial(measure, clock=lambda: next(ticks) / 1000))
    assert run(["envs", "check", f"{envs}:{name}", *QUICK, *SYNC]) == 0
    out = capsys.readouterr().out
    told = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert len(told) == len(warnings)
    for line, warning in zip(told, warnings, strict=True):
        assert warning in line


def test_one_that_breaks_is_told_and_still_measured(envs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limit = ["--set", "env.max_restarts=100000"]
    assert run(["envs", "check", f"{envs}:Breaks", *QUICK, *SYNC, *limit]) == 1
    captured = capsys.readouterr()
    assert "warning: environment 'odd_envs.py:Breaks' (seed" in captured.out
    assert "episode 1, step 4) gave a reward of nan; starting it again" in captured.out
    assert "more reports of this kind" in captured.out
    assert captured.err == ""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Dead", "env.max_restarts is 10"),
        ("NotMade", "cannot make environment 'odd_envs.py:NotMade': RuntimeError: no licence"),
        ("Missing", "has no 'Missing'"),
        ("Base|native", "has no batch of its own"),
    ],
)
def test_one_that_never_works_is_an_error(
    envs: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, _, mode = name.partition("|")
    mode_of = ["--set", f"env.vectorization={mode or 'sync'}"]
    assert run(["envs", "check", f"{envs}:{name}", *QUICK, *mode_of]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["CartPol-v1"], "did you mean 'CartPole-v1'?"),
        (["CartPole-v1", "--envs", "0"], "Invalid value for '--envs'"),
        (["CartPole-v1", "--set", "env.kwarks=3"], "did you mean 'env.kwargs'?"),
        ([], "Missing argument 'ENV'"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["envs", "check", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["envs"]) == 0
    assert "check" in capsys.readouterr().out


class Ticking:
    """Two slots that end an episode every third step; each look at the clock is a second."""

    waits = False
    num_restarts = 3

    def __init__(self) -> None:
        spec = EnvSpec("T", (ArraySpec("observation", "float32", (1,)),), DiscreteAction(2))
        self.slots = {"policy": Slots(spec, 2)}
        self._t = 0

    def reset(self, seed: int) -> dict[str, EnvStep]:
        self._t = 0
        return self._shown()

    def step(self, actions: Any) -> dict[str, EnvStep]:
        self._t += 1
        return self._shown()

    def _shown(self) -> dict[str, EnvStep]:
        first, done = np.full(2, self._t % 4 == 0), np.full(2, self._t % 4 == 3)
        reward = np.full(2, 0.0 if first[0] else 2.0, np.float32)
        column = np.full((2, 1), self._t, np.float32)
        return {"policy": EnvStep({"observation": column}, reward, done, done & False, first, done)}

    def close(self) -> None:
        pass


def test_figures_against_a_count_by_hand() -> None:
    found, told, ticks = Measurement("sync"), list[float](), iter(range(1000))
    measure(Ticking(), found, 16.0, 1, told.append, clock=lambda: float(next(ticks)))
    # One step for a start. The clock is read once, then before and after each step: 8 of one second each.
    assert found.num_calls == 8
    assert found.seconds == 8.0
    assert found.num_steps == 2 * 6, "two of eight steps lead to a first observation"
    assert found.steps_per_s == 1.5
    assert found.num_episodes == 4
    assert found.sum_lengths == 2 * (2 + 3), "the step for a start is not counted"
    assert found.sum_returns == 2 * (4.0 + 6.0)
    assert (found.min_reward, found.max_reward) == (0.0, 2.0)
    assert found.max_observation == {"observation": 9.0}
    assert found.num_restarts == 3
    assert found.repeats
    assert told[-1] == 1.0


def check_of(*measurements: Measurement, **slots: Slots) -> Check:
    slots = slots or make_batch_env(EnvSection(), 1).slots  # type: ignore[assignment]
    return Check(EnvSection(), 1, slots, measurements, ())


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({"native": 10, "sync": 5, "async": 12}, "native"),
        ({"native": 10, "sync": 5, "async": 14}, "async"),
        ({"sync": 5, "async": 6}, "sync"),
        ({"sync": 0, "async": 6}, "async"),
    ],
)
def test_the_fastest_mode_is_advised_if_it_is_worth_it(rates: dict[Any, int], best: str) -> None:
    found = check_of(*(Measurement(mode, num_steps=rate, seconds=1.0) for mode, rate in rates.items()))
    assert found.best.mode == best
    assert yaml.safe_load(advice(found)) == {"env": {"id": "CartPole-v1", "vectorization": best}}


def test_a_mode_that_fails_is_told_while_others_work() -> None:
    found = check_of(
        Measurement("sync", num_steps=4, seconds=1.0, num_calls=4, min_reward=1, max_reward=1),
        Measurement("async", error="it hung"),
    )
    assert list(warnings(found)) == ["async does not work: it hung"]
    assert not found.is_sound


def test_agents_are_listed_by_policy() -> None:
    spec = EnvSpec("game", (ArraySpec("observation", "int64", (), 9),), MultiDiscreteAction((2, 3)))
    found = check_of(
        Measurement("sync", num_steps=4, seconds=1.0, min_reward=1, max_reward=1),
        red=Slots(spec, 2),
        blue=Slots(spec, 1),
    )
    rows = [line.split("│") for line in report(found) if "│" in line]
    cells = [[cell.strip() for cell in row[1:-1]] for row in rows]
    assert cells[0] == ["red", "2", "observation", "int64", "[]", "9 categories"]
    assert cells[1] == ["red", "2", "action", "int64", "[2]", "MultiDiscrete([2, 3])"]
    assert cells[2][:2] == ["blue", "1"]
