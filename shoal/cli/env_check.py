"""Steps an environment in every vectorisation that it can do, and notes its speed and what is odd about it.

Called by `shoal envs check`. `measure` works on any `BatchEnv` with an injected clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from shoal.cli.say import complain
from shoal.config.tree import EnvSection
from shoal.envs.batch import BatchEnv, EnvStep, Slots
from shoal.envs.episodes import EpisodeTracker
from shoal.envs.hang import HangWatch
from shoal.envs.make import Mode, choose_mode, make_batch_env
from shoal.envs.random_play import chance_beside, random_actions
from shoal.envs.sources import find_source
from shoal.envs.wrappers import load_wrappers
from shoal.errors import UserError
from shoal.records import Episode

# Of the total, from 0 to 1, and what is going on.
Progress = Callable[[float, str], None]

# Steps that are taken twice to see whether a seed means the same twice.
NUM_REPEATED_STEPS = 50
# Other processes cost memory and CPUs that inference wants too: they must be worth it.
WORTH_PROCESSES = 1.3
TELL_EVERY_S = 0.1
LARGE_REWARD = 100.0
LARGE_OBSERVATION = 1000.0


@dataclass
class Measurement:
    """What was seen in one vectorisation."""

    mode: Mode
    # Steps of single environments, or of single agents, that were transitions.
    num_steps: int = 0
    # Of stepping them, without what the check does in between.
    seconds: float = 0.0
    num_calls: int = 0
    num_episodes: int = 0
    sum_returns: float = 0.0
    sum_lengths: int = 0
    min_reward: float = np.inf
    max_reward: float = -np.inf
    max_observation: dict[str, float] = field(default_factory=dict)
    num_restarts: int = 0
    repeats: bool = True
    # Why it could not be done or ended early.
    error: str = ""

    @property
    def steps_per_s(self) -> float:
        return self.num_steps / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Check:
    """All that there is to report."""

    section: EnvSection
    num_envs: int
    slots: Mapping[str, Slots]
    measurements: tuple[Measurement, ...]
    # What environments were reported for, each once.
    faults: tuple[str, ...]

    @property
    def best(self) -> Measurement:
        """The fastest; worker processes only if they are worth it."""

        def worth(measurement: Measurement) -> float:
            return measurement.steps_per_s / (WORTH_PROCESSES if measurement.mode == "async" else 1.0)

        return max(self.measurements, key=worth)

    @property
    def is_sound(self) -> bool:
        return not self.faults and not any(m.error for m in self.measurements)


def check_env(section: EnvSection, num_envs: int, seconds: float, seed: int, progress: Progress) -> Check:
    """Raises UserError if the environment cannot be stepped in any way that the section allows."""
    modes = _possible_modes(section)
    measurements: list[Measurement] = []
    slots: Mapping[str, Slots] = {}
    watch = HangWatch(section.step_timeout_s)
    with _collected_faults() as faults, closing(watch):
        watch.start()
        for index, mode in enumerate(modes):

            def tell(share: float, index: int = index, mode: str = mode) -> None:
                progress((index + share) / len(modes), mode)

            tell(0.0)
            measurement = Measurement(mode)
            measurements.append(measurement)
            chosen = section.model_copy(update={"vectorization": mode})
            try:
                with closing(make_batch_env(chosen, num_envs)) as made:
                    env = watch.watch(made)
                    slots = env.slots
                    measure(env, measurement, seconds, seed, tell)
            except UserError as error:
                measurement.error = str(error)
    if not any(m.num_steps for m in measurements):
        raise UserError(measurements[0].error or "no environment took a step: give it more --seconds")
    return Check(section, num_envs, slots, tuple(measurements), tuple(dict.fromkeys(faults)))


def measure(
    env: BatchEnv,
    found: Measurement,
    seconds: float,
    seed: int,
    tell: Callable[[float], None],
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Steps with random allowed actions for so long, then looks whether the seed repeats itself."""
    chance = chance_beside(seed)
    # The first step may compile something.
    shown = env.step(random_actions(env, env.reset(seed), chance))
    trackers = {policy: EpisodeTracker(slots.num) for policy, slots in env.slots.items()}
    start = told = clock()
    while told - start < seconds or not found.num_calls:
        actions = random_actions(env, shown, chance)
        before = clock()
        shown = env.step(actions)
        now = clock()
        found.seconds += now - before
        found.num_calls += 1
        for policy, step in shown.items():
            _note(found, step, trackers[policy].add(step))
        if now - told > TELL_EVERY_S or now - start >= seconds:
            told = now
            tell(min((now - start) / seconds, 1.0))
    found.max_observation = _largest(shown)
    found.repeats = _repeats(env, seed)
    found.num_restarts = env.num_restarts


def _note(found: Measurement, step: EnvStep, ended: Sequence[Episode]) -> None:
    found.num_steps += int(np.count_nonzero(~step.first))
    found.min_reward = min(found.min_reward, float(step.reward.min()))
    found.max_reward = max(found.max_reward, float(step.reward.max()))
    found.num_episodes += len(ended)
    found.sum_returns += sum(episode.episode_return for episode in ended)
    found.sum_lengths += sum(episode.num_steps for episode in ended)


def _largest(shown: Mapping[str, EnvStep]) -> dict[str, float]:
    """Largest absolute value of each array of floats, at the last step."""
    return {
        name: float(np.abs(column).max())
        for step in shown.values()
        for name, column in step.observation.items()
        if column.dtype.kind == "f" and column.size
    }


def _repeats(env: BatchEnv, seed: int) -> bool:
    """Whether the same seed and the same actions show the same."""
    return _digest(env, seed) == _digest(env, seed)


def _digest(env: BatchEnv, seed: int) -> list[int]:
    chance = chance_beside(seed)
    shown = env.reset(seed)
    digests = [_hash(shown)]
    for _ in range(NUM_REPEATED_STEPS):
        shown = env.step(random_actions(env, shown, chance))
        digests.append(_hash(shown))
    return digests


def _hash(shown: Mapping[str, EnvStep]) -> int:
    return hash(
        tuple(
            array.tobytes()
            for step in shown.values()
            for array in (*step.observation.values(), step.reward, step.first, step.done)
        )
    )


def _possible_modes(section: EnvSection) -> list[Mode]:
    """All that the environment can do, or the one that the section asks for."""
    source, wrappers = find_source(section), load_wrappers(section.wrappers)
    if section.vectorization != "auto":
        return [choose_mode(section, source, wrappers)]
    modes: list[Mode] = []
    refusals: list[UserError] = []
    mode: Literal["native", "sync", "async"]
    for mode in get_args(Mode):
        try:
            chosen = section.model_copy(update={"vectorization": mode})
            modes.append(choose_mode(chosen, source, wrappers))
        except UserError as error:
            refusals.append(error)
    if not modes:
        raise refusals[0]
    return modes


@contextmanager
def _collected_faults() -> Iterator[list[str]]:
    """What is logged of environments meanwhile. Errors are also told at once: the process may end by them."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())
            if record.levelno >= logging.ERROR:
                complain(record.getMessage())

    logger, handler = logging.getLogger("shoal.envs"), Collector(logging.WARNING)
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
