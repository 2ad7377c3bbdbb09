"""The environments of a group, shared by one group per policy: a step happens when all of them have acted.

Made by `services.actor.loop`, one for each batch of environments; a group uses its own `Part`. Event loop
only. With one policy and environments in this process a step is a plain call; environments that wait for
processes are stepped in a thread that is never shared, as they must not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from shoal.envs.batch import BatchEnv, EnvStep, Slots

Steps = dict[str, EnvStep]


class Lockstep:
    """One batch of environments. `parts` has one entry for each policy that plays in it."""

    def __init__(self, env: BatchEnv) -> None:
        self._env = env
        self._thread = ThreadPoolExecutor(1) if env.waits else None
        self._arrived: dict[str, Any] = {}
        self._round: asyncio.Future[Steps] | None = None
        self._calling: asyncio.Task[None] | None = None
        # The step that ends the newest unroll of which a policy has lost a part; 0: none.
        self.lost_unroll = 0
        self.parts = [Part(self, env, policy, slots) for policy, slots in env.slots.items()]
        self.is_plain = len(self.parts) == 1 and not env.waits

    async def reset(self, policy: str, seed: int) -> EnvStep:
        return await self._meet(policy, seed, lambda seeds: self._env.reset(seeds[policy]))

    async def step(self, policy: str, action: np.ndarray) -> EnvStep:
        return await self._meet(policy, action, self._env.step)

    async def close(self) -> None:
        """Returns when no step is under way any more: only then may the environments be closed."""
        if self._calling is not None:
            await asyncio.wait({self._calling})
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    async def _meet(self, policy: str, value: Any, call: Callable[[dict[str, Any]], Steps]) -> EnvStep:
        """Whoever comes last makes the call, with what all have brought; each gets its part of the answer."""
        loop = asyncio.get_running_loop()
        if self._round is None:
            self._round = loop.create_future()
        meeting = self._round
        self._arrived[policy] = value
        if len(self._arrived) == len(self.parts):
            values, self._arrived, self._round = self._arrived, {}, None
            # A task of its own: a policy that stops now must not take the step from the others.
            self._calling = loop.create_task(self._call(meeting, call, values))
        return (await asyncio.shield(meeting))[policy]

    async def _call(
        self,
        meeting: asyncio.Future[Steps],
        call: Callable[[dict[str, Any]], Steps],
        values: dict[str, Any],
    ) -> None:
        try:
            if self._thread is None:
                steps = call(values)
            else:
                steps = await asyncio.get_running_loop().run_in_executor(self._thread, call, values)
        except Exception as error:
            meeting.set_exception(error)
            # Maybe nobody is left who waits for it.
            meeting.exception()
        else:
            meeting.set_result(steps)


class Part:
    """The slots of one policy in a batch of environments."""

    def __init__(self, lockstep: Lockstep, env: BatchEnv, policy: str, slots: Slots) -> None:
        self.policy = policy
        self.spec = slots.spec
        self.num_slots = slots.num
        self._lockstep = lockstep
        self._env = env

    @property
    def is_plain(self) -> bool:
        """`step_now` may be called instead of `step`."""
        return self._lockstep.is_plain

    @property
    def has_others(self) -> bool:
        """Other policies play in the same environments."""
        return len(self._lockstep.parts) > 1

    @property
    def lost_unroll(self) -> int:
        """The step that ends the newest unroll of which a policy, this one or another, has lost a part."""
        return self._lockstep.lost_unroll

    def lose_unroll(self, end: int) -> None:
        """Tells the others of the batch."""
        self._lockstep.lost_unroll = end

    async def reset(self, seed: int) -> EnvStep:
        """All parts of a batch come with the same seed."""
        return await self._lockstep.reset(self.policy, seed)

    def step_now(self, action: np.ndarray) -> EnvStep:
        return self._env.step({self.policy: action})[self.policy]

    async def step(self, action: np.ndarray) -> EnvStep:
        """Returns when the environments have been stepped with the actions of all policies."""
        return await self._lockstep.step(self.policy, action)
