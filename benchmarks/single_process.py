"""The reference of P1: the same policy, loss and environment in one plain loop, without services.

Its speed is what the maths and the environment cost; everything that a distributed system adds
or wins shows in comparison with it.
"""

from __future__ import annotations

import os
import time

import numpy as np
import torch

from shoal.algorithms.algorithm import Batch
from shoal.algorithms.impala.loss import impala_loss
from shoal.config.algorithms import ImpalaConfig
from shoal.config.tree import EnvSection, PolicySection
from shoal.envs.vector import make_vector_env
from shoal.policy.network import build_policy
from shoal.records import ACTION, FIRST, LOG_PROB, OBSERVATION, REWARD, TERMINATED, TRUNCATED


def single_process_rate(num_envs: int, unroll_length: int, seconds: float) -> float:
    """Trained env steps per second of the plain loop, with one thread or all cores, whichever is faster."""
    threads = {1, len(os.sched_getaffinity(0))}
    return max(_rate(num_envs, unroll_length, seconds / len(threads), number) for number in threads)


def _rate(num_envs: int, unroll_length: int, seconds: float, num_threads: int) -> float:
    torch.set_num_threads(num_threads)
    env = make_vector_env(EnvSection(), num_envs)
    config = ImpalaConfig()
    policy = build_policy(PolicySection(), env.spec)
    optimiser = torch.optim.Adam(policy.parameters(), lr=config.learning_rate, fused=True)
    rows = _rows(unroll_length, num_envs)
    step = env.reset(seed=1)
    num_trained, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for t in range(unroll_length):
            rows[OBSERVATION][t], rows[FIRST][t] = step.observation[OBSERVATION], step.first
            with torch.inference_mode():
                outputs = policy.act({OBSERVATION: torch.from_numpy(step.observation[OBSERVATION])})
            rows[ACTION][t], rows[LOG_PROB][t] = outputs[ACTION].numpy(), outputs[LOG_PROB].numpy()
            step = env.step(rows[ACTION][t])
            rows[REWARD][t], rows[TERMINATED][t] = step.reward, step.terminated
        rows[OBSERVATION][-1], rows[FIRST][-1] = step.observation[OBSERVATION], step.first
        optimiser.zero_grad()
        impala_loss(policy, _batch(rows), config).loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
        optimiser.step()
        num_trained += int(rows[FIRST][1:].size - np.count_nonzero(rows[FIRST][1:]))
    return num_trained / (time.perf_counter() - began)


def _rows(unroll_length: int, num_envs: int) -> dict[str, np.ndarray]:
    leading = (unroll_length + 1, num_envs)
    return {
        OBSERVATION: np.zeros((*leading, 4), np.float32),
        ACTION: np.zeros(leading, np.int64),
        REWARD: np.zeros(leading, np.float32),
        TERMINATED: np.zeros(leading, np.bool_),
        TRUNCATED: np.zeros(leading, np.bool_),
        FIRST: np.zeros(leading, np.bool_),
        LOG_PROB: np.zeros(leading, np.float32),
    }


def _batch(rows: dict[str, np.ndarray]) -> Batch:
    tensors = {name: torch.from_numpy(array) for name, array in rows.items()}
    return Batch(
        observation={OBSERVATION: tensors[OBSERVATION]},
        action_SB=tensors[ACTION],
        reward_SB=tensors[REWARD],
        terminated_SB=tensors[TERMINATED],
        truncated_SB=tensors[TRUNCATED],
        first_SB=tensors[FIRST],
        behaviour={LOG_PROB: tensors[LOG_PROB]},
    )
