"""Several policies in one batch of environments: steps happen together, and only then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import numpy as np
import pytest

from services.actor.lockstep import Lockstep, Part
from shoal.envs.batch import EnvStep, Slots
from shoal.errors import UserError
from shoal.records import ArraySpec, DiscreteAction, EnvSpec

SPEC = EnvSpec("Sum", (ArraySpec("observation", "float32", ()),), DiscreteAction(9))
RED_SLOTS, BLUE_SLOTS = 2, 3


class SumEnv:
    """Shows every slot the sum of all actions."""

    def __init__(self, waits: bool = False) -> None:
        self.slots = {"red": Slots(SPEC, RED_SLOTS), "blue": Slots(SPEC, BLUE_SLOTS)}
        self.waits = waits
        self.num_restarts = 0
        self.threads: set[int] = set()
        self.seeds: list[int] = []
        self.broken = False
        self.gate = threading.Event()
        self.gate.set()

    def reset(self, seed: int) -> dict[str, EnvStep]:
        self.seeds.append(seed)
        return self._show(0.0)

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, EnvStep]:
        self.gate.wait()
        if self.broken:
            raise UserError("the environments broke")
        self.threads.add(threading.get_ident())
        return self._show(float(sum(action.sum() for action in actions.values())))

    def close(self) -> None: ...

    def _show(self, value: float) -> dict[str, EnvStep]:
        return {policy: _step(np.full(slots.num, value, np.float32)) for policy, slots in self.slots.items()}


def _step(values: np.ndarray) -> EnvStep:
    nobody = np.zeros(len(values), np.bool_)
    return EnvStep({"observation": values}, values, nobody, nobody, nobody, nobody)


async def walk(part: Part, actions: list[int]) -> list[float]:
    shown = []
    for action in actions:
        step = await part.step(np.full(part.num_slots, action))
        assert len(step.reward) == part.num_slots
        shown.append(float(step.reward[0]))
    return shown


@pytest.mark.parametrize("waits", [False, True])
def test_a_step_has_the_actions_of_all_policies(waits: bool) -> None:
    async def scenario() -> None:
        env = SumEnv(waits)
        lockstep = Lockstep(env)
        red, blue = lockstep.parts
        assert (red.policy, blue.policy) == ("red", "blue")
        assert not red.is_plain
        await asyncio.gather(red.reset(5), blue.reset(5))
        assert env.seeds == [5]
        shown = await asyncio.gather(walk(red, [1, 2, 3]), walk(blue, [10, 20, 30]))
        expected = [RED_SLOTS * n + BLUE_SLOTS * 10 * n for n in (1, 2, 3)]
        assert shown == [expected, expected]
        assert (threading.get_ident() in env.threads) != waits
        await lockstep.close()

    asyncio.run(scenario())


def test_nobody_is_stepped_before_all_have_acted() -> None:
    async def scenario() -> None:
        env = SumEnv()
        red, blue = Lockstep(env).parts
        waiting = asyncio.ensure_future(walk(red, [4]))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert await walk(blue, [0]) == [RED_SLOTS * 4]
        assert await waiting == [RED_SLOTS * 4]

    asyncio.run(scenario())


@pytest.mark.parametrize("waits", [False, True])
def test_an_error_reaches_every_policy(waits: bool) -> None:
    async def scenario() -> None:
        env = SumEnv(waits)
        env.broken = True
        both = [walk(part, [1]) for part in Lockstep(env).parts]
        for result in await asyncio.gather(*both, return_exceptions=True):
            assert isinstance(result, UserError)

    asyncio.run(scenario())


def test_a_policy_that_stops_while_it_waits_for_another_stops_at_once() -> None:
    async def scenario() -> None:
        red, _ = Lockstep(SumEnv()).parts
        waiting = asyncio.ensure_future(walk(red, [4]))
        await asyncio.sleep(0)
        waiting.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(scenario())


def test_closing_waits_for_a_step_that_a_thread_is_in() -> None:
    """Otherwise the environments would be closed while they are stepped."""

    async def scenario() -> None:
        env = SumEnv(waits=True)
        env.gate.clear()
        lockstep = Lockstep(env)
        red, blue = (asyncio.ensure_future(walk(part, [1])) for part in lockstep.parts)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        blue.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(blue, 5)
        closing = asyncio.ensure_future(lockstep.close())
        await asyncio.sleep(0.01)
        assert not closing.done()
        assert not env.threads
        env.gate.set()
        await asyncio.wait_for(closing, 5)
        assert env.threads
        assert await asyncio.wait_for(red, 5) == [RED_SLOTS + BLUE_SLOTS]

    asyncio.run(scenario())
