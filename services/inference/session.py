"""One Act stream as the engine sees it: its environment slots, what the policy remembers of them, and the
answer that it waits for.

Event loop only, but for what the model thread reads and writes while a step is in flight.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from shoal.clients.inference import ActHello, ActReply
from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.policy.network import Choice
from shoal.records import FIRST, Columns, EnvSpec

_BOOL = np.dtype(np.bool_)


@dataclass(eq=False)
class Session:
    """What a step of this stream must look like, and the step in flight."""

    spec: EnvSpec
    num_envs: int
    choice: Choice = field(default_factory=Choice)
    # Of a step for its version; 0: no limit.
    max_wait_s: float = 0.0
    # What the policy remembers of the environments, [E, ...] each; None before the first step. Model thread.
    memory: dict[str, Tensor] | None = None
    waiter: asyncio.Future[ActReply] | None = None

    def __post_init__(self) -> None:
        self._arrays = tuple(
            (array.name, np.dtype(array.dtype), (self.num_envs, *array.shape))
            for array in self.spec.observation
        )

    def check(self, observation: Columns, first: np.ndarray) -> None:
        """Names, dtypes and shapes; values are not looked at, as that would cost a pass over the data."""
        fits = first.shape == (self.num_envs,) and first.dtype == _BOOL
        fits = fits and len(observation) == len(self._arrays)
        for name, dtype, shape in self._arrays:
            array = observation.get(name)
            fits = fits and array is not None and array.shape == shape and array.dtype == dtype
        if not fits:
            wanted = ", ".join(f"{name} {dtype}{list(shape)}" for name, dtype, shape in self._arrays)
            got = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in observation.items())
            raise InvalidArgumentError(
                f"a step of {got or 'nothing'} and {FIRST} {first.dtype}{list(first.shape)}; "
                f"this stream takes {wanted} and {FIRST} bool[{self.num_envs}]"
            )

    def answer(self, reply: ActReply) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(reply)

    def fail(self, text: str) -> None:
        """Whoever waits gets UnavailableError."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(UnavailableError(text))


def max_wait_of(hello: ActHello) -> float:
    """Raises InvalidArgumentError."""
    if not 0 <= hello.max_wait_s < float("inf"):
        raise InvalidArgumentError(f"max_wait_s {hello.max_wait_s}: seconds, at least 0, are needed")
    return hello.max_wait_s


def choice_of(hello: ActHello, device: torch.device) -> Choice:
    """How the actions of a stream are chosen, one row per environment. Raises InvalidArgumentError."""
    num_envs, epsilon = hello.num_envs, torch.tensor(hello.epsilon, dtype=torch.float32)
    if len(epsilon) not in (0, num_envs) or not ((epsilon >= 0) & (epsilon <= 1)).all():
        raise InvalidArgumentError(
            f"{len(epsilon)} epsilons for {num_envs} environments: none, or one from 0 to 1 for each"
        )
    if not 0 <= hello.noise < float("inf"):
        raise InvalidArgumentError(f"noise {hello.noise}: a deviation of at least 0 is needed")
    return Choice(
        greedy=torch.ones(num_envs, dtype=torch.bool, device=device) if hello.greedy else None,
        epsilon=epsilon.to(device) if epsilon.any() else None,
        noise=torch.full((num_envs,), hello.noise, device=device) if hello.noise else None,
    )
