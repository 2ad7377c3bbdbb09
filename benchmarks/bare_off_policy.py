"""The arithmetic of one SAC or TD3 update alone: plain torch networks, losses, fused Adam, target networks.

`python -m benchmarks.bare_off_policy ALGORITHM THREADS SECONDS` prints updates/s, of two separate critics or
of both in one batched product, whichever is faster. P12 compares with it; it is written apart from
`shoal.policy` so that an overhead there shows instead of being part of the reference.

Legend: N transitions.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

# HalfCheetah-v5, and the networks that the papers use there.
NUM_INPUTS, NUM_ACTIONS, HIDDEN, BATCH = 17, 6, 256, 256
DISCOUNT, TARGET_RATE, LEARNING_RATE = 0.99, 0.005, 3e-4
WARM_UP_UPDATES = 10


class Transitions(NamedTuple):
    observation: Tensor
    action: Tensor
    reward: Tensor
    next_observation: Tensor


def made_up_transitions() -> Transitions:
    observation, after = torch.randn(2, BATCH, NUM_INPUTS)
    return Transitions(observation, torch.rand(BATCH, NUM_ACTIONS) * 2 - 1, torch.randn(BATCH), after)


def mlp(num_inputs: int, num_outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(num_inputs, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, num_outputs),
    )


class Separate(nn.Module):
    """Two critics, one after the other; values [2, N]."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ModuleList(mlp(NUM_INPUTS + NUM_ACTIONS, 1) for _ in range(2))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        inputs = torch.cat([observation, action], dim=-1)
        return torch.stack([critic(inputs) for critic in self.each]).squeeze(-1)


class _Batched(nn.Module):
    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, num_outputs, num_inputs) / math.sqrt(num_inputs))
        self.bias = nn.Parameter(torch.zeros(2, 1, num_outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, inputs, self.weight.transpose(1, 2))


class Batched(nn.Module):
    """Both critics in one product; values [2, N]."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (NUM_INPUTS + NUM_ACTIONS, HIDDEN, HIDDEN, 1)
        first, second, last = (_Batched(*pair) for pair in pairwise(sizes))
        self.layers = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        inputs = torch.cat([observation, action], dim=-1)
        values: Tensor = self.layers(inputs.expand(2, -1, -1))
        return values.squeeze(-1)


def fused_adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Adam:
    return torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)


class Update:
    """What both algorithms have: an actor, critics, and targets of the critics."""

    def __init__(self, critics: nn.Module, num_outputs: int) -> None:
        self.actor = mlp(NUM_INPUTS, num_outputs)
        self.critics = critics
        self.target = copy.deepcopy(critics).requires_grad_(False)
        self._actor_adam = fused_adam(self.actor.parameters())
        self._critic_adam = fused_adam(critics.parameters())
        self._learning = list(critics.parameters())

    def step_critics(self, batch: Transitions, target: Tensor) -> None:
        error = self.critics(batch.observation, batch.action) - target
        self._critic_adam.zero_grad()
        torch.autograd.backward(0.5 * error.square().sum(0).mean())
        self._critic_adam.step()

    def step_actor(self, loss: Callable[[], Tensor]) -> None:
        """The critics are held still."""
        for parameter in self._learning:
            parameter.requires_grad_(False)
        self._actor_adam.zero_grad()
        torch.autograd.backward(loss())
        self._actor_adam.step()
        for parameter in self._learning:
            parameter.requires_grad_(True)

    @torch.no_grad()
    def follow(self) -> None:
        torch._foreach_lerp_(list(self.target.parameters()), self._learning, TARGET_RATE)


class Sac(Update):
    def __init__(self, critics: nn.Module) -> None:
        super().__init__(critics, 2 * NUM_ACTIONS)
        self._log_alpha = nn.Parameter(torch.zeros(()))
        self._alpha_adam = fused_adam([self._log_alpha])

    def __call__(self, batch: Transitions) -> None:
        alpha = self._log_alpha.detach().exp()
        with torch.no_grad():
            action, log_pi = self._sample(batch.next_observation)
            value = self.target(batch.next_observation, action).amin(0) - alpha * log_pi
            target = batch.reward + DISCOUNT * value
        self.step_critics(batch, target)
        action, log_pi = self._sample(batch.observation)
        self.step_actor(lambda: (alpha * log_pi - self.critics(batch.observation, action).amin(0)).mean())
        self._alpha_adam.zero_grad()
        torch.autograd.backward(-(self._log_alpha.exp() * (log_pi.detach() - NUM_ACTIONS).mean()))
        self._alpha_adam.step()
        self.follow()

    def _sample(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.actor(observation).chunk(2, dim=-1)
        log_std = log_std.clamp(-5.0, 2.0)
        noise = torch.randn_like(mean)
        latent = torch.addcmul(mean, log_std.exp(), noise)
        log_pi = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_pi = log_pi - 2.0 * (math.log(2.0) - latent - functional.softplus(-2.0 * latent))
        return latent.tanh(), log_pi.sum(-1)


class Td3(Update):
    def __init__(self, critics: nn.Module) -> None:
        super().__init__(critics, NUM_ACTIONS)
        self._target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self._num_updates = 0

    def __call__(self, batch: Transitions) -> None:
        with torch.no_grad():
            noise = (torch.randn_like(batch.action) * 0.2).clamp(-0.5, 0.5)
            action = (self._target_actor(batch.next_observation).tanh() + noise).clamp(-1.0, 1.0)
            target = batch.reward + DISCOUNT * self.target(batch.next_observation, action).amin(0)
        self.step_critics(batch, target)
        self._num_updates += 1
        if self._num_updates % 2 == 0:
            seen = batch.observation
            self.step_actor(lambda: -self.critics(seen, self.actor(seen).tanh())[0].mean())
            self.follow()
            with torch.no_grad():
                learning = list(self.actor.parameters())
                torch._foreach_lerp_(list(self._target_actor.parameters()), learning, TARGET_RATE)


ALGORITHMS: dict[str, Callable[[nn.Module], Callable[[Transitions], None]]] = {"sac": Sac, "td3": Td3}


def updates_per_s(algorithm: str, seconds: float) -> float:
    """Of the faster kind of critics, each for half of the time."""
    batch = made_up_transitions()
    return max(_rate(ALGORITHMS[algorithm](kind()), batch, seconds / 2) for kind in (Separate, Batched))


def _rate(update: Callable[[Transitions], None], batch: Transitions, seconds: float) -> float:
    for _ in range(WARM_UP_UPDATES):
        update(batch)
    num_updates, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds or not num_updates:
        update(batch)
        num_updates += 1
    return num_updates / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare_off_policy", description=__doc__)
    parser.add_argument("algorithm", choices=[*ALGORITHMS])
    parser.add_argument("threads", type=int)
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(json.dumps({"updates_per_s": updates_per_s(given.algorithm, given.seconds)}))


if __name__ == "__main__":
    main()
