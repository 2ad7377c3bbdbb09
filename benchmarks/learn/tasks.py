"""The rows of the learning table: what is trained, for how long, and the score asked for. Data only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from benchmarks.learn import published
from benchmarks.learn.published import Published


@dataclass(frozen=True)
class Sb3:
    """What Stable-Baselines3 runs beside a row, with its defaults."""

    algo: str
    steps: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """One row. Nothing is set but what stands here: everything else is a default of `shoal train`."""

    env: str
    # What `--algo` is given; None: shoal chooses.
    algo: str | None = None
    kwargs: Mapping[str, object] = field(default_factory=dict)
    # Environment steps of a run.
    steps: int
    # A mean return over 100 episodes, and the steps within which it is asked for. None: nothing is asked for.
    score: float | None = None
    within: int | None = None
    # The lowest mean is looked for from here on, if the score was reached before.
    held_from: int = 0
    published: tuple[Published, ...] = ()
    sb3: Sb3 | None = None

    @property
    def name(self) -> str:
        """Fit for files and patterns: `ale-pong-v5`, `lunarlander-v3-continuous`, `cartpole-v1-impala`."""
        words = [self.env.replace("/", "-"), *self.kwargs, *([self.algo] if self.algo else [])]
        return "-".join(words).lower()

    @property
    def arguments(self) -> list[str]:
        """Of `shoal train`, without steps and seed."""
        algo = ["--algo", self.algo] if self.algo else []
        values = [
            word
            for key, value in self.kwargs.items()
            for word in ("--set", f"env.kwargs.{key}={json.dumps(value)}")
        ]
        return [self.env, *algo, *values]


def selected(patterns: Sequence[str], tasks: Sequence[Task]) -> list[Task]:
    """Those whose name matches one of the patterns, all without patterns. Raises ValueError."""
    for pattern in patterns:
        if not any(fnmatchcase(task.name, pattern) for task in tasks):
            names = ", ".join(task.name for task in tasks)
            raise ValueError(f"no row is named {pattern!r}; rows: {names}")
    return [
        task for task in tasks if not patterns or any(fnmatchcase(task.name, pattern) for pattern in patterns)
    ]


TASKS = (
    Task(
        env="CartPole-v1",
        score=475,
        within=200_000,
        steps=3_000_000,
        held_from=300_000,
        published=published.CARTPOLE_PPO,
        sb3=Sb3("ppo", 200_000),
    ),
    Task(env="CartPole-v1", algo="impala", score=475, within=500_000, steps=3_000_000),
    Task(env="CartPole-v1", algo="appo", score=475, within=500_000, steps=3_000_000),
    Task(
        env="CartPole-v1",
        algo="apex",
        score=475,
        within=150_000,
        steps=200_000,
        published=published.CARTPOLE_DQN,
        sb3=Sb3("dqn", 150_000),
    ),
    Task(
        env="Acrobot-v1",
        score=-100,
        within=300_000,
        steps=500_000,
        published=published.ACROBOT_PPO,
        sb3=Sb3("ppo", 300_000),
    ),
    Task(
        env="LunarLander-v3",
        score=200,
        within=1_000_000,
        steps=1_000_000,
        published=published.LUNARLANDER_PPO,
    ),
    Task(
        env="LunarLander-v3",
        kwargs={"continuous": True},
        score=200,
        within=1_500_000,
        steps=1_500_000,
        published=published.LUNARLANDER_CONTINUOUS_PPO,
    ),
    # The last 100 episodes are all there were, the random first ones among them: the greedy score tells.
    Task(
        env="Pendulum-v1",
        algo="sac",
        score=-200,
        within=20_000,
        steps=20_000,
        published=published.PENDULUM_SAC,
        sb3=Sb3("sac", 20_000),
    ),
    Task(
        env="Pendulum-v1",
        algo="td3",
        score=-200,
        within=20_000,
        steps=20_000,
        published=published.PENDULUM_TD3,
        sb3=Sb3("td3", 20_000),
    ),
    Task(env="FrozenLake-v1", score=0.70, within=1_000_000, steps=1_000_000),
    Task(
        env="HalfCheetah-v5",
        score=4500,
        within=1_000_000,
        steps=1_000_000,
        published=published.HALFCHEETAH_PPO,
    ),
    Task(
        env="HalfCheetah-v5",
        algo="sac",
        score=4000,
        within=100_000,
        steps=100_000,
        published=published.HALFCHEETAH_SAC,
    ),
    Task(
        env="HalfCheetah-v5",
        algo="td3",
        score=9000,
        within=1_000_000,
        steps=1_000_000,
        published=published.HALFCHEETAH_TD3,
    ),
    Task(env="Hopper-v5", score=2000, within=1_000_000, steps=1_000_000, published=published.HOPPER_PPO),
    Task(
        env="Hopper-v5",
        algo="sac",
        score=3542,
        within=1_000_000,
        steps=1_000_000,
        published=published.HOPPER_SAC,
    ),
    Task(env="Hopper-v5", algo="td3", steps=1_000_000, published=published.HOPPER_TD3),
    Task(env="Walker2d-v5", score=2800, within=1_000_000, steps=1_000_000, published=published.WALKER2D_PPO),
    Task(
        env="Walker2d-v5",
        algo="sac",
        score=5007,
        within=1_000_000,
        steps=1_000_000,
        published=published.WALKER2D_SAC,
    ),
    Task(env="Walker2d-v5", algo="td3", steps=1_000_000, published=published.WALKER2D_TD3),
    Task(env="Ant-v5", score=3258, within=1_000_000, steps=1_000_000, published=published.ANT_PPO),
    Task(
        env="Ant-v5", algo="sac", score=5850, within=1_000_000, steps=1_000_000, published=published.ANT_SAC
    ),
    Task(env="Ant-v5", algo="td3", steps=1_000_000, published=published.ANT_TD3),
    Task(env="ALE/Pong-v5", score=18, within=10_000_000, steps=10_000_000, published=published.PONG_PPO),
    Task(
        env="ALE/Breakout-v5",
        score=390,
        within=10_000_000,
        steps=10_000_000,
        published=published.BREAKOUT_PPO,
    ),
)
