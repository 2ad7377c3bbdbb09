"""A `BatchEnv` for tests of workers: two policies, known episodes, and faults when an action asks for one.

Each environment is one slot of policy `walker` and two of `flyer`; what they show says which environment,
episode and step it is. The seed of an environment decides the lengths of its episodes.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from shoal.envs.batch import EnvStep, Slots
from shoal.errors import UserError
from shoal.records import ArraySpec, BoxAction, DiscreteAction, EnvSpec

SPECS = {
    "walker": EnvSpec("Parts", (ArraySpec("observation", "float64", (3,)),), DiscreteAction(100)),
    "flyer": EnvSpec(
        "Parts",
        (ArraySpec("observation.image", "uint8", (2, 3)), ArraySpec("observation.place", "int64", (), 7)),
        BoxAction((2,), (-1.0, -1.0), (1.0, 1.0)),
    ),
}
FLYERS = 2

# Actions of a walker that make its environment misbehave.
HANG, HANG_WITH_CHILD, TAKE_TIME, DIE, CRASH, EXIT, RAISE, RAISE_USER_ERROR, RESTART = range(90, 99)


class Part:
    """`num_envs` environments; episodes last 1 to 7 steps, and end each way by turns."""

    waits = False

    def __init__(self, num_envs: int) -> None:
        self.slots = {
            "walker": Slots(SPECS["walker"], num_envs),
            "flyer": Slots(SPECS["flyer"], FLYERS * num_envs),
        }
        self.num_restarts = 0
        self._num_envs = num_envs
        self._seed = self._episode = self._step = np.zeros(num_envs, np.int64)
        self._done = np.zeros(num_envs, np.bool_)

    def reset(self, seed: int) -> dict[str, EnvStep]:
        self._seed = seed + np.arange(self._num_envs)
        self._episode = np.zeros(self._num_envs, np.int64)
        self._step = np.zeros(self._num_envs, np.int64)
        nothing = np.zeros(self._num_envs)
        return self._show(nothing, nothing, np.ones(self._num_envs, np.bool_), nothing > 0)

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, EnvStep]:
        for action in actions["walker"]:
            self._misbehave(int(action))
        first = self._done
        self._episode = self._episode + first
        self._step = np.where(first, 0, self._step + 1)
        self._done = ~first & (self._step > (self._seed * 7 + self._episode * 3) % 7)
        flown = actions["flyer"].reshape(self._num_envs, FLYERS, 2).sum(axis=(1, 2))
        return self._show(np.where(first, 0, actions["walker"]), np.where(first, 0, flown), first, self._done)

    def close(self) -> None:
        pass

    def _show(
        self, walked: np.ndarray, flown: np.ndarray, first: np.ndarray, done: np.ndarray
    ) -> dict[str, EnvStep]:
        self._done = done
        terminated = done & (self._episode % 2 == 0)
        walker = np.stack([self._seed, self._episode, self._step], axis=1).astype(np.float64)
        image = np.broadcast_to((self._seed + self._step)[:, None, None] % 256, (self._num_envs, 2, 3))
        flyer = {
            "observation.image": np.repeat(image.astype(np.uint8), FLYERS, axis=0),
            "observation.place": np.repeat(self._step % 7, FLYERS),
        }
        return {
            "walker": _step({"observation": walker}, walked, terminated, first, done, 1),
            "flyer": _step(flyer, flown, terminated, first, done, FLYERS),
        }

    def _misbehave(self, action: int) -> None:
        if action == HANG:
            signal.pause()
        elif action == HANG_WITH_CHILD:
            subprocess.run([sys.executable, "-c", "import signal; signal.pause()"], check=False)
        elif action == TAKE_TIME:
            time.sleep(0.1)
        elif action == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == CRASH:
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGSEGV)
        elif action == EXIT:
            raise SystemExit(3)
        elif action == RAISE:
            raise ValueError("the part has a bug")
        elif action == RAISE_USER_ERROR:
            raise UserError("the part says what to do")
        elif action == RESTART:
            self.num_restarts += 1
            logging.getLogger("parts").warning("copy 0 broke", exc_info=ValueError("a flat tyre"))


def _step(
    observation: dict[str, np.ndarray],
    reward: np.ndarray,
    terminated: np.ndarray,
    first: np.ndarray,
    done: np.ndarray,
    repeats: int,
) -> EnvStep:
    arrays = (np.asarray(reward, np.float32), terminated, done & ~terminated, first, done)
    return EnvStep(observation, *(np.repeat(array, repeats) for array in arrays))


class HangsAtReset(Part):
    def reset(self, seed: int) -> dict[str, EnvStep]:
        signal.pause()
        raise AssertionError("unreachable")


class HangsWhenClosed(Part):
    def close(self) -> None:
        signal.pause()


class HangsWhenMadeIf(Part):
    """Once there is a certain file."""

    def __init__(self, path: str, num_envs: int) -> None:
        if Path(path).exists():
            signal.pause()
        super().__init__(num_envs)


class DiesWhenMade(Part):
    def __init__(self, num_envs: int) -> None:
        os._exit(5)


class UserErrorWhenMade(Part):
    def __init__(self, num_envs: int) -> None:
        raise UserError("no such map")


class RaisesWhenMade(Part):
    def __init__(self, num_envs: int) -> None:
        raise ValueError("a bug in the constructor")


class OtherSpecs(Part):
    """A part whose spaces follow the number of its environments."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        spec = EnvSpec("Parts", SPECS["walker"].observation, DiscreteAction(num_envs))
        self.slots["walker"] = Slots(spec, num_envs)
