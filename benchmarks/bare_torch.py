"""The arithmetic alone: plain torch networks, acting and one IMPALA update, without anything of a service.

What P1, P2 and P4 are compared with. It is written apart from `shoal.policy` so that an overhead there shows
instead of being part of the reference; only the V-trace targets are shoal's own.

Legend: T transitions, S = T + 1 rows, B environments, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.algorithms.vtrace import vtrace

NUM_FRAMES = 4
FRAME_SHAPE = (84, 84)


class ActorCritic(nn.Module):
    """Features, logits of the actions, value."""

    def __init__(self, body: nn.Module, num_features: int, num_actions: int) -> None:
        super().__init__()
        self.body = body
        self.logits = nn.Linear(num_features, num_actions)
        self.value = nn.Linear(num_features, 1)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(observation)
        return self.logits(features), self.value(features).squeeze(-1)


class _Pixels(nn.Module):
    """Bytes to floats from 0 to 1, in the memory layout that is asked for."""

    def __init__(self, layout: torch.memory_format) -> None:
        super().__init__()
        self._layout = layout

    def forward(self, frames: Tensor) -> Tensor:
        return frames.to(torch.float32, memory_format=self._layout).mul_(1.0 / 255.0)


def mlp(num_inputs: int, hidden_sizes: tuple[int, ...], num_actions: int) -> ActorCritic:
    layers: list[nn.Module] = []
    width = num_inputs
    for units in hidden_sizes:
        layers += [nn.Linear(width, units), nn.Tanh()]
        width = units
    return ActorCritic(nn.Sequential(*layers), width, num_actions)


def nature_cnn(num_actions: int, layout: torch.memory_format = torch.contiguous_format) -> ActorCritic:
    """Three convolutions and 512 units (Mnih et al. 2015), for stacks of four frames of 84x84 bytes."""
    body = nn.Sequential(
        _Pixels(layout),
        nn.Conv2d(NUM_FRAMES, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 512),
        nn.ReLU(),
    )
    return ActorCritic(body, 512, num_actions).to(memory_format=layout)


@torch.inference_mode()
def act(policy: ActorCritic, observation: Tensor) -> tuple[Tensor, Tensor]:
    """Sampled actions and their log-probabilities; the value is not computed, as nobody asks for it."""
    log_probs = torch.log_softmax(policy.logits(policy.body(observation)), dim=-1)
    # The first of A exponential clocks to ring; multinomial takes ten times as long.
    p = log_probs.exp()
    action = torch.rand_like(p).log_().div_(p).argmax(-1)
    return action, log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class Unrolls:
    """What is trained on."""

    observation_SB: Tensor
    action_SB: Tensor
    reward_SB: Tensor
    terminated_SB: Tensor
    first_SB: Tensor
    log_prob_SB: Tensor


class Learner:
    """Loss, gradients, clipping, Adam."""

    def __init__(self, policy: ActorCritic) -> None:
        self._policy = policy
        self._optimiser = torch.optim.Adam(policy.parameters(), lr=1e-4, fused=True)

    def step(self, unrolls: Unrolls) -> None:
        self._optimiser.zero_grad()
        _impala_loss(self._policy, unrolls).backward()
        torch.nn.utils.clip_grad_norm_(self._policy.parameters(), 40.0)
        self._optimiser.step()


def _impala_loss(policy: ActorCritic, unrolls: Unrolls) -> Tensor:
    num_rows, num_envs = unrolls.first_SB.shape
    logits, value = policy(unrolls.observation_SB.flatten(0, 1))
    value_SB = value.unflatten(0, (num_rows, num_envs))
    log_probs_TBA = torch.log_softmax(logits.unflatten(0, (num_rows, num_envs))[:-1], dim=-1)
    log_pi_TB = log_probs_TBA.gather(-1, unrolls.action_SB[:-1].unsqueeze(-1)).squeeze(-1)
    valid_TB = unrolls.first_SB[1:].logical_not().to(value.dtype)
    targets = vtrace(
        log_rho_TB=log_pi_TB.detach() - unrolls.log_prob_SB[:-1],
        reward_TB=unrolls.reward_SB[:-1],
        discount_TB=unrolls.terminated_SB[:-1].logical_not() * 0.99,
        value_SB=value_SB.detach(),
        valid_TB=valid_TB,
        rho_clip=1.0,
        c_clip=1.0,
        trace_lambda=1.0,
    )
    policy_loss = -(targets.advantage_TB * log_pi_TB).sum()
    value_loss = 0.5 * (targets.vs_TB - value_SB[:-1]).square().sum()
    entropy = -((log_probs_TBA.exp() * log_probs_TBA).sum(-1) * valid_TB).sum()
    return (policy_loss + 0.5 * value_loss - 0.01 * entropy) / valid_TB.sum().clamp(min=1.0)


def made_up_unrolls(unroll_length: int, num_envs: int, num_actions: int) -> Unrolls:
    """Stacks of frames as they reach a learner, one episode each."""
    leading = (unroll_length + 1, num_envs)
    generator = torch.Generator().manual_seed(1)
    return Unrolls(
        observation_SB=torch.randint(
            0, 256, (*leading, NUM_FRAMES, *FRAME_SHAPE), dtype=torch.uint8, generator=generator
        ),
        action_SB=torch.randint(0, num_actions, leading, generator=generator),
        reward_SB=torch.randn(leading, generator=generator),
        terminated_SB=torch.zeros(leading, dtype=torch.bool),
        first_SB=torch.zeros(leading, dtype=torch.bool),
        log_prob_SB=torch.full(leading, -1.0),
    )
