"""One Act stream as the engine sees it: its environment slots and the answer that it waits for.

Event loop only.
"""

from __future__ import annotations

import asyncio

import numpy as np

from shoal.clients.inference import ActReply
from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.records import FIRST, Columns, EnvSpec

_BOOL = np.dtype(np.bool_)


class Session:
    """What a step of this stream must look like, and the step in flight."""

    def __init__(self, spec: EnvSpec, num_envs: int, greedy: bool) -> None:
        self.num_envs = num_envs
        self.greedy = greedy
        self.waiter: asyncio.Future[ActReply] | None = None
        self._arrays = tuple(
            (array.name, np.dtype(array.dtype), (num_envs, *array.shape)) for array in spec.observation
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
