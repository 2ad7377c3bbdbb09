"""Scores that others have published: the figure, what was run, and how its source measured it. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Where figures stand, and what they are."""

    name: str
    url: str
    measured_as: str


@dataclass(frozen=True)
class Published:
    """One figure of a source; `spread` is what it writes behind its plus-minus sign."""

    value: float
    spread: float
    # Algorithm, version of the environment, environment steps.
    what: str
    source: Source


TIANSHOU = Source(
    "Tianshou",
    "https://github.com/thu-ml/tianshou/blob/master/examples/mujoco/README.md",
    "10 seeds, each evaluated on 10 test seeds; the best mean within the steps, and the standard deviation "
    "over the seeds.",
)
ZOO = Source(
    "SB3 zoo",
    "https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md",
    "One agent with tuned hyperparameters, evaluated over some 150,000 steps (600,000 of Atari), greedy "
    'except on Atari; the spread is that of episodes. "Not a quantitative benchmark", say its authors.',
)
CLEANRL = Source(
    "CleanRL",
    "https://github.com/vwxyzjn/cleanrl/tree/master/docs/benchmark",
    "Mean return of training episodes, 3 seeds; the spread is that of its tables. Its DQN figure stands in "
    "[another file](https://github.com/vwxyzjn/cleanrl/blob/master/docs/rl-algorithms/dqn.md).",
)
SOURCES = (TIANSHOU, ZOO, CLEANRL)

CARTPOLE_PPO = (
    Published(490.04, 6.12, "PPO, CartPole-v1, 500 k", CLEANRL),
    Published(500.0, 0.0, "PPO, CartPole-v1, 100 k", ZOO),
)
CARTPOLE_DQN = (
    Published(488.69, 16.11, "DQN, CartPole-v1, 500 k", CLEANRL),
    Published(500.0, 0.0, "DQN, CartPole-v1, 50 k", ZOO),
)
ACROBOT_PPO = (
    Published(-86.36, 1.32, "PPO, Acrobot-v1, 500 k", CLEANRL),
    Published(-73.506, 18.201, "PPO, Acrobot-v1, 1 M", ZOO),
)
LUNARLANDER_PPO = (Published(242.119, 31.823, "PPO, LunarLander-v2, 1 M", ZOO),)
LUNARLANDER_CONTINUOUS_PPO = (Published(270.863, 32.072, "PPO, LunarLanderContinuous-v2, 1 M", ZOO),)
PENDULUM_SAC = (Published(-156.995, 88.714, "SAC, Pendulum-v1, 20 k", ZOO),)
PENDULUM_TD3 = (Published(-151.855, 90.227, "TD3, Pendulum-v1, 20 k", ZOO),)
PONG_PPO = (
    Published(20.36, 0.20, "PPO, PongNoFrameskip-v4, 10 M", CLEANRL),
    Published(20.989, 0.105, "PPO, PongNoFrameskip-v4, 10 M", ZOO),
)
BREAKOUT_PPO = (
    Published(414.66, 28.09, "PPO, BreakoutNoFrameskip-v4, 10 M", CLEANRL),
    Published(398.033, 33.328, "PPO, BreakoutNoFrameskip-v4, 10 M", ZOO),
)

HALFCHEETAH_PPO = (
    Published(5783.9, 1244.0, "PPO, HalfCheetah-v3, 1 M", TIANSHOU),
    Published(1442.64, 46.03, "PPO, HalfCheetah-v4, 1 M", CLEANRL),
)
HALFCHEETAH_SAC = (
    Published(12138.8, 1049.3, "SAC, HalfCheetah-v3, 1 M", TIANSHOU),
    Published(9634.89, 1423.73, "SAC, HalfCheetah-v4, 1 M", CLEANRL),
)
HALFCHEETAH_TD3 = (
    Published(10201.2, 772.8, "TD3, HalfCheetah-v3, 1 M", TIANSHOU),
    Published(9583.22, 126.09, "TD3, HalfCheetah-v4, 1 M", CLEANRL),
)
HOPPER_PPO = (
    Published(2609.3, 700.8, "PPO, Hopper-v3, 1 M", TIANSHOU),
    Published(2382.86, 271.74, "PPO, Hopper-v4, 1 M", CLEANRL),
)
HOPPER_SAC = (
    Published(3542.2, 51.5, "SAC, Hopper-v3, 1 M", TIANSHOU),
    Published(2310.46, 342.82, "SAC, Hopper-v4, 1 M", CLEANRL),
)
HOPPER_TD3 = (
    Published(3472.2, 116.8, "TD3, Hopper-v3, 1 M", TIANSHOU),
    Published(3134.61, 360.18, "TD3, Hopper-v4, 1 M", CLEANRL),
)
WALKER2D_PPO = (
    Published(3588.5, 756.6, "PPO, Walker2d-v3, 1 M", TIANSHOU),
    Published(2287.95, 571.78, "PPO, Walker2d-v4, 1 M", CLEANRL),
)
WALKER2D_SAC = (
    Published(5007.0, 251.5, "SAC, Walker2d-v3, 1 M", TIANSHOU),
    Published(3591.45, 911.33, "SAC, Walker2d-v4, 1 M", CLEANRL),
)
WALKER2D_TD3 = (
    Published(3982.4, 274.5, "TD3, Walker2d-v3, 1 M", TIANSHOU),
    Published(4057.59, 658.78, "TD3, Walker2d-v4, 1 M", CLEANRL),
)
ANT_PPO = (Published(3258.4, 1079.3, "PPO, Ant-v3, 1 M", TIANSHOU),)
ANT_SAC = (Published(5850.2, 475.7, "SAC, Ant-v3, 1 M", TIANSHOU),)
ANT_TD3 = (Published(5116.4, 799.9, "TD3, Ant-v3, 1 M", TIANSHOU),)
