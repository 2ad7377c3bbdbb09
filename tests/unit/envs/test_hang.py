"""An environment that does not come back is reported with where it is, and the process ends."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from shoal.config.tree import EnvSection
from shoal.envs.batch import BatchEnv, EnvStep
from shoal.envs.hang import HangWatch
from shoal.envs.make import make_batch_env
from tests.unit.envs import counting

ROOT = Path(__file__).resolve().parents[3]
COUNTING = EnvSection(id=f"{counting.__name__}:Counting-v0")
ACTIONS = {"policy": np.zeros(2, np.int64)}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Slow:
    """Stands for environments: a step takes until it is let go."""

    waits = False
    num_restarts = 0

    def __init__(self, waits: bool = False) -> None:
        self.waits = waits
        self.slots = make_batch_env(COUNTING, 2).slots
        self.at = "environment 'Slow' (seed 3, episode 1, step 5)"
        self.is_in = threading.Event()
        self.may_go = threading.Event()

    def doing(self) -> str:
        return self.at

    def reset(self, seed: int) -> dict[str, EnvStep]:
        return self.step({})

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, EnvStep]:
        # One line, which is where it is as soon as it is in.
        self.is_in.set() or self.may_go.wait()  # type: ignore[func-returns-value]
        return {}

    def close(self) -> None:
        pass


class Stepping:
    """Steps watched environments in a thread until told."""

    def __init__(self, env: BatchEnv, slow: Slow, reset: bool = False) -> None:
        self._slow = slow
        call = (lambda: env.reset(1)) if reset else (lambda: env.step({}))
        self._thread = threading.Thread(target=call)

    def __enter__(self) -> None:
        self._thread.start()
        self._slow.is_in.wait()

    def __exit__(self, *_: object) -> None:
        self._slow.may_go.set()
        self._thread.join()


@pytest.mark.parametrize("reset", [False, True])
def test_a_step_that_takes_too_long_is_reported_with_the_stack(
    reset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock, slow = Clock(), Slow()
    watch = HangWatch(60.0, clock=clock, start_timeout_s=0)
    env = watch.watch(slow)
    assert not watch.look()
    with Stepping(env, slow, reset), caplog.at_level(logging.ERROR):
        for _ in range(60):
            assert not watch.look()
            clock.now += 1
        assert watch.look()
    (record,) = caplog.records
    message = record.getMessage()
    assert "environment 'Slow' (seed 3, episode 1, step 5) hangs" in message
    assert "60.0 s (env.step_timeout_s is 60)" in message
    assert "in step" in message
    assert "self.may_go.wait()" in message, "where its code is"
    clock.now += 100
    assert not watch.look(), "it came back"


def test_many_slow_environments_one_after_another_do_not_hang() -> None:
    """The batch takes long, each of its environments does not."""
    clock, slow = Clock(), Slow()
    watch = HangWatch(10.0, clock=clock, start_timeout_s=0)
    with Stepping(watch.watch(slow), slow):
        for i in range(50):
            clock.now += 4
            slow.at = f"environment {i // 2}"
            assert not watch.look()


def test_steps_in_a_row_do_not_add_up() -> None:
    clock = Clock()
    watch = HangWatch(10.0, clock=clock, start_timeout_s=0)
    env = watch.watch(make_batch_env(COUNTING, 2))
    env.reset(1)
    for _ in range(20):
        env.step(ACTIONS)
        clock.now += 4
        assert not watch.look()


def test_a_process_that_was_stopped_does_not_blame_the_environment() -> None:
    clock, slow = Clock(), Slow()
    watch = HangWatch(60.0, clock=clock, start_timeout_s=0)
    with Stepping(watch.watch(slow), slow):
        watch.look()
        clock.now += 500
        assert not watch.look()
        for _ in range(30):
            clock.now += 1
            assert not watch.look()


def test_watched_environments_are_the_same_otherwise() -> None:
    plain, watched = make_batch_env(COUNTING, 2), HangWatch(60.0).watch(make_batch_env(COUNTING, 2))
    assert watched.slots == plain.slots
    assert not watched.waits
    assert watched.num_restarts == 0
    plain.reset(3)
    watched.reset(3)
    for _ in range(5):
        one, other = plain.step(ACTIONS)["policy"], watched.step(ACTIONS)["policy"]
        np.testing.assert_array_equal(one.observation["observation"], other.observation["observation"])
    watched.close()


def test_the_first_reset_and_step_may_take_longer() -> None:
    """They may compile something."""
    clock, slow = Clock(), Slow()
    watch = HangWatch(10.0, clock=clock, start_timeout_s=50)
    env = watch.watch(slow)
    after: list[int] = []
    for _ in range(3):
        slow.is_in.clear()
        slow.may_go.clear()
        with Stepping(env, slow):
            begun = clock.now
            while not watch.look():
                clock.now += 1
            after.append(int(clock.now - begun))
    assert after == [50, 50, 10]


def test_environments_that_do_not_tell_are_named(caplog: pytest.LogCaptureFixture) -> None:
    class Silent(Slow):
        doing = None  # type: ignore[assignment]

    clock, slow = Clock(), Silent()
    watch = HangWatch(2.0, clock=clock, start_timeout_s=0)
    with Stepping(watch.watch(slow), slow):
        found = []
        for _ in range(4):
            found.append(watch.look())
            clock.now += 1
    assert found == [False, False, True, False]
    assert "environment 'Counting-v0' hangs" in caplog.text


def test_environments_in_other_processes_are_left_to_them() -> None:
    slow = Slow(waits=True)
    watch = HangWatch(60.0)
    assert watch.watch(slow) is slow


def test_an_error_is_no_hang() -> None:
    clock = Clock()
    watch = HangWatch(1.0, clock=clock, start_timeout_s=0)
    env = watch.watch(make_batch_env(COUNTING, 2))
    with pytest.raises(KeyError):
        env.step({})
    for _ in range(5):
        clock.now += 1
        assert not watch.look()


def test_the_thread_calls_back() -> None:
    slow, called = Slow(), threading.Event()
    watch = HangWatch(0.05, on_hang=called.set, start_timeout_s=0)
    env = watch.watch(slow)
    watch.start()
    try:
        with Stepping(env, slow):
            assert called.wait(20)
    finally:
        watch.close()


PROGRAM = """
import logging, sys, time
import shoal.envs.hang
from shoal.envs.hang import HangWatch
shoal.envs.hang._LOCKED_S = 0.2 if sys.argv[1] == "holds" else 60.0
class Hanging:
    slots, waits, num_restarts = {}, False, 0
    def doing(self):
        return "environment 'H'"
    def step(self, actions):
        ways = {"sleeps": lambda: time.sleep(600), "holds": lambda: sum(range(10**12))}
        ways[sys.argv[1]]()
logging.basicConfig()
watch = HangWatch(0.2, start_timeout_s=0)
env = watch.watch(Hanging())
watch.start()
env.step({})
"""


@pytest.mark.parametrize(
    ("how", "told"), [("sleeps", "environment 'H' hangs"), ("holds", "Timeout (0:00:00.4")]
)
def test_the_process_ends(how: str, told: str) -> None:
    """Also when the environment never lets another thread run: then only the stack is told."""
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert told in done.stderr
    assert re.search(r'File "<string>", line 1\d,? in ', done.stderr), "where its code is"
