"""How fast environments of every kind are stepped: alone, and by an actor in a whole run.

The bare rate is that of the `BatchEnv` that actors step, in a loop with random actions: what the environment
allows. The run has all services and a tiny network, on the same cores; its share is what is left of the bare
rate when actions come from a server and every step is stored and trained on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.console import print_table, rate
from benchmarks.local_run import flags, measure_train
from shoal.config.tree import EnvSection
from shoal.records import ActionSpec, BoxAction, DiscreteAction

# Actions drawn before the clock starts, taken in turn.
NUM_DRAWN = 16
BARE_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Kind:
    """One kind of environment; `num_envs` are stepped together, as in one group of an actor."""

    name: str
    env_id: str
    num_envs: int
    vectorization: str = "auto"
    kwargs: Mapping[str, object] = field(default_factory=dict)

    def section(self) -> EnvSection:
        return EnvSection(id=self.env_id, kwargs=dict(self.kwargs), vectorization=self.vectorization)

    def arguments(self, num_slots: int, groups: int) -> list[str]:
        values = {
            "env.vectorization": self.vectorization,
            "env.kwargs": json.dumps(dict(self.kwargs)),
            "actor.groups": groups,
            "learner.batch_envs": num_slots,
            "learner.checkpoint_every_s": 3600,
            "policy.network": "mlp",
            "policy.hidden_sizes": "[16]",
        }
        return [self.env_id, "--envs-per-actor", str(self.num_envs * groups), *flags(values)]


KINDS = (
    Kind("CartPole native, 256", "CartPole-v1", 256, "native"),
    Kind("CartPole native, 1024", "CartPole-v1", 1024, "native"),
    Kind("CartPole sync, 16", "CartPole-v1", 16, "sync"),
    Kind("CartPole async, 16", "CartPole-v1", 16, "async"),
    Kind("Pong, ALE native, 16", "ALE/Pong-v5", 16, "native"),
    Kind("Pong, EnvPool, 16", "envpool:Pong-v5", 16),
    Kind("HalfCheetah sync, 8", "HalfCheetah-v5", 8, "sync"),
    Kind("HalfCheetah, EnvPool, 16", "envpool:HalfCheetah-v4", 16),
    Kind("LunarLander sync, 16", "LunarLander-v3", 16, "sync"),
    Kind(
        "Knights Archers Zombies (PettingZoo), 4",
        "pettingzoo.butterfly.knights_archers_zombies_v11:parallel_env",
        4,
    ),
    Kind("NumPy batch, 4096", "examples/batch_env.py:Points", 4096),
)


@dataclass(frozen=True)
class Settings:
    kinds: Sequence[Kind] = KINDS
    bare_s: float = 3.0
    groups: int = 2
    warm_up_s: float = 3.0
    measure_s: float = 8.0


@dataclass(frozen=True)
class Bare:
    """A slot is one environment, or one agent of one."""

    steps_per_s: float
    num_slots: int


def measure(settings: Settings, directory: Path) -> None:
    """Print the rates. A kind that is not installed is said to be so."""
    rows, notes = [], []
    for number, kind in enumerate(settings.kinds):
        cells = ["-", "-", "-"]
        try:
            bare = _bare_elsewhere(kind, settings.bare_s)
            cells[0] = rate(bare.steps_per_s)
            acted = _acted(kind, bare.num_slots, settings, directory / f"actor-{number}")
            cells[1:] = [rate(acted), f"{acted / bare.steps_per_s:.2f}"]
        except RuntimeError as error:
            # The last line of what was printed says why.
            notes.append(f"{kind.name}: {str(error).strip().splitlines()[-1]}")
        rows.append([kind.name, *cells])
    print_table(
        f"Actor rates, env steps/s: alone, and in a run of all services, {settings.groups} groups, tiny MLP",
        ["environment, envs per group", "alone", "in a run", "share"],
        rows,
        notes,
    )


def _bare_elsewhere(kind: Kind, seconds: float) -> Bare:
    """In a process of its own: environments bring threads, print what they like, and may crash."""
    command = [sys.executable, "-m", "benchmarks.actor_rates", str(KINDS.index(kind)), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BARE_TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(done.stderr or f"ended with code {done.returncode}")
    return Bare(**json.loads(done.stdout.splitlines()[-1]))


def bare_rate(kind: Kind, seconds: float) -> Bare:
    """Steps of all slots per second."""
    from shoal.envs.make import make_batch_env

    env = make_batch_env(kind.section(), kind.num_envs)
    try:
        rng = np.random.default_rng(1)
        drawn = [
            {name: draw(slots.spec.action, slots.num, rng) for name, slots in env.slots.items()}
            for _ in range(NUM_DRAWN)
        ]
        env.reset(1)
        env.step(drawn[0])
        num_slots = sum(slots.num for slots in env.slots.values())
        num_steps, began = 0, time.perf_counter()
        while (elapsed_s := time.perf_counter() - began) < seconds:
            env.step(drawn[num_steps % NUM_DRAWN])
            num_steps += 1
        return Bare(num_steps * num_slots / elapsed_s, num_slots)
    finally:
        env.close()


def draw(action: ActionSpec, num: int, rng: np.random.Generator) -> np.ndarray:
    """`num` random actions, whatever the environment would allow."""
    if isinstance(action, BoxAction):
        low, high = np.maximum(action.low, -1.0), np.minimum(action.high, 1.0)
        return rng.uniform(low, high, (num, len(low))).astype(np.float32).reshape(num, *action.shape)
    if isinstance(action, DiscreteAction):
        return rng.integers(action.n, size=num)
    return rng.integers(action.nvec, size=(num, len(action.nvec)))


def _acted(kind: Kind, num_slots: int, settings: Settings, run_dir: Path) -> float:
    window = measure_train(
        kind.arguments(num_slots, settings.groups),
        run_dir,
        warm_up_s=settings.warm_up_s,
        measure_s=settings.measure_s,
    )
    return window.grown("actor", "shoal_actor_env_steps_total") / window.seconds


if __name__ == "__main__":
    print(json.dumps(asdict(bare_rate(KINDS[int(sys.argv[1])], float(sys.argv[2])))))
