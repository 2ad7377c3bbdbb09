"""What PPO's objective (`shoal.algorithms.clipped`) is computed from: GAE with the values before the passes.

The old policy is the one that acted, whose log probabilities came with the data. Synchronous actors act with
the newest version, so that this is also the policy before the passes; otherwise it is some versions behind.
A pure function.

Legend: T transitions, S = T + 1 rows, B environments.
"""

from __future__ import annotations

from torch import Tensor

from shoal.algorithms.batch import Batch
from shoal.algorithms.clipped import ADVANTAGE, OLD_LOG_PROB, OLD_VALUE, RETURN
from shoal.algorithms.gae import gae
from shoal.algorithms.ppo.profile import PpoConfig
from shoal.policy.network import ActorCritic
from shoal.records import LOG_PROB


def ppo_targets(policy: ActorCritic, batch: Batch, config: PpoConfig) -> dict[str, Tensor]:
    value_SB = policy(batch.observation, batch.first_SB, batch.state).value
    advantage_TB, return_TB = gae(
        reward_TB=batch.reward_SB[:-1],
        discount_TB=batch.terminated_SB[:-1].logical_not() * config.discount,
        value_SB=value_SB,
        valid_TB=batch.valid_TB,
        gae_lambda=config.gae_lambda,
    )
    return {
        ADVANTAGE: advantage_TB,
        RETURN: return_TB,
        OLD_LOG_PROB: batch.behaviour[LOG_PROB][:-1],
        OLD_VALUE: value_SB[:-1],
    }
