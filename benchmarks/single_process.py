"""The reference of P1: the same network, loss and environment in one plain loop, without services.

Its speed is what the maths and the environment cost; everything that a distributed system adds
or wins shows in comparison with it.
"""

from __future__ import annotations

import os
import time

import gymnasium as gym
import numpy as np
import torch

from benchmarks.bare_torch import Learner, Unrolls, act, mlp


def single_process_rate(num_envs: int, unroll_length: int, seconds: float) -> float:
    """Trained env steps per second of the plain loop, with one thread or all cores, whichever is faster."""
    threads = {1, len(os.sched_getaffinity(0))}
    return max(_rate(num_envs, unroll_length, seconds / len(threads), number) for number in threads)


def _rate(num_envs: int, unroll_length: int, seconds: float, num_threads: int) -> float:
    torch.set_num_threads(num_threads)
    env = gym.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")
    policy = mlp(4, (64, 64), 2)
    learner = Learner(policy)
    unrolls = _empty(unroll_length, num_envs)
    observation, _ = env.reset(seed=1)
    # An episode that has ended starts again with the next step.
    first = np.ones(num_envs, np.bool_)
    num_trained, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for t in range(unroll_length):
            unrolls.observation_SB[t] = torch.from_numpy(observation)
            unrolls.first_SB[t] = torch.from_numpy(first)
            action, log_prob = act(policy, unrolls.observation_SB[t])
            observation, reward, terminated, truncated, _ = env.step(action.numpy())
            unrolls.action_SB[t], unrolls.log_prob_SB[t] = action, log_prob
            unrolls.reward_SB[t] = torch.from_numpy(reward)
            unrolls.terminated_SB[t] = torch.from_numpy(terminated)
            first = terminated | truncated
        unrolls.observation_SB[-1] = torch.from_numpy(observation)
        unrolls.first_SB[-1] = torch.from_numpy(first)
        learner.step(unrolls)
        num_trained += int(unrolls.first_SB[1:].logical_not().sum())
    elapsed_s = time.perf_counter() - began
    env.close()
    return num_trained / elapsed_s


def _empty(unroll_length: int, num_envs: int) -> Unrolls:
    leading = (unroll_length + 1, num_envs)
    return Unrolls(
        observation_SB=torch.zeros(*leading, 4),
        action_SB=torch.zeros(leading, dtype=torch.int64),
        reward_SB=torch.zeros(leading),
        terminated_SB=torch.zeros(leading, dtype=torch.bool),
        first_SB=torch.zeros(leading, dtype=torch.bool),
        log_prob_SB=torch.zeros(leading),
    )
