"""Worker processes mean the same by a step as the same environments here, and none of their ends is ours."""

from __future__ import annotations

import gc
import itertools
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from shoal.config.tree import EnvSection
from shoal.envs import worker_handle
from shoal.envs import workers as workers_module
from shoal.envs.batch import BatchEnv, EnvStep
from shoal.envs.worker_handle import Worker, await_replies
from shoal.envs.workers import WorkerEnv, _shares, make_worker_env
from shoal.errors import ShoalError, SpecMismatchError, UserError
from tests.unit.envs import parts

SECTION = EnvSection(id="Parts", vectorization="async", workers=2)
ROOT = Path(__file__).resolve().parents[3]


def worker_env(
    make_part: Callable[[int], BatchEnv] = parts.Part, num_envs: int = 5, **fields: object
) -> WorkerEnv:
    env = make_worker_env(SECTION.model_copy(update=fields), num_envs, make_part)
    assert isinstance(env, WorkerEnv)
    return env


def actions(num_envs: int, chance: np.random.Generator | None = None) -> dict[str, np.ndarray]:
    chance = chance or np.random.default_rng(0)
    return {
        "walker": chance.integers(0, 80, num_envs),
        "flyer": chance.normal(size=(num_envs * parts.FLYERS, 2)).astype(np.float32),
    }


def misbehave(env: WorkerEnv, index: int, how: int) -> dict[str, EnvStep]:
    """A step in which one environment does what `how` says."""
    chosen = actions(env.slots["walker"].num)
    chosen["walker"][index] = how
    return env.step(chosen)


def arrays(steps: dict[str, EnvStep]) -> dict[str, np.ndarray]:
    return {
        f"{policy}.{name}": array
        for policy, step in steps.items()
        for name, array in {
            **step.observation,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "first": step.first,
            "done": step.done,
        }.items()
    }


def processes(env: WorkerEnv) -> list[psutil.Process]:
    return [psutil.Process(worker.process.pid) for worker in env._workers]


def gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def env() -> Iterator[WorkerEnv]:
    with closing(worker_env()) as env:
        env.reset(20)
        yield env


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_show_what_the_same_environments_show_here(workers: int) -> None:
    num_envs = 5
    here = parts.Part(num_envs)
    chance = np.random.default_rng(workers)
    ends = np.zeros(2, int)
    with closing(worker_env(num_envs=num_envs, workers=workers)) as env:
        assert len(env._workers) == workers
        assert env.slots == here.slots
        assert env.waits
        expected, shown = here.reset(3), env.reset(3)
        for _ in range(60):
            assert list(shown) == list(expected)
            for name, array in arrays(expected).items():
                np.testing.assert_array_equal(arrays(shown)[name], array, name)
                assert arrays(shown)[name].dtype == array.dtype
            ends += (expected["flyer"].terminated.sum(), expected["flyer"].truncated.sum())
            chosen = actions(num_envs, chance)
            expected, shown = here.step(chosen), env.step(chosen)
        assert env.num_restarts == 0
    assert (ends > 10).all()


def test_environments_are_shared_out_evenly_over_no_more_workers_than_there_are() -> None:
    assert _shares(7, 3) == [(0, 2), (2, 2), (4, 3)]
    assert _shares(2, 8) == [(0, 1), (1, 1)]
    assert _shares(6, 1) == [(0, 6)]


def test_a_worker_that_hangs_is_killed_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    # Long enough for the other, whatever else takes the processors.
    with closing(worker_env(step_timeout_s=5.0)) as env:
        env.reset(20)
        before = env.step(actions(5))["walker"].observation["observation"].copy()
        env._start_timeout_s = 20.0  # is for first steps only
        hanging = processes(env)[1]
        chosen = actions(5)
        chosen["walker"][3] = parts.HANG_WITH_CHILD
        stepping = threading.Thread(target=env.step, args=(chosen,))
        stepping.start()
        wait_until(hanging.children)
        (child,) = hanging.children()
        stepping.join()
        assert gone(hanging)
        wait_until(lambda: gone(child))
        walker, flyer = env._steps["walker"], env._steps["flyer"]
        seeds, _, steps = walker.observation["observation"].T
        # Worker 0 took an ordinary step.
        np.testing.assert_array_equal(seeds[:2], [20, 21])
        assert ((steps == before[:, 2] + 1) | walker.first)[:2].all()
        # Worker 1 starts with other seeds.
        assert not set(seeds[2:]) & {20, 21, 22, 23, 24}
        assert (steps[2:] == 0).all()
        assert walker.first[2:].all()
        assert flyer.first[4:].all()
        assert not walker.done[2:].any()
        assert (walker.reward[2:] == 0).all()
        after = env.step(actions(5))["walker"].observation["observation"]
        np.testing.assert_array_equal(after[2:, 0], seeds[2:])
        assert env.num_restarts == 1
    expected = (
        "environment 'Parts': worker 1 (environments 2 to 4, seed 22) did not answer within 5 s at step 2; "
        "it is started again"
    )
    assert [record.getMessage() for record in caplog.records] == [expected]


def test_first_steps_may_take_as_long_as_a_start(caplog: pytest.LogCaptureFixture) -> None:
    with closing(worker_env(step_timeout_s=0.001)) as env:
        env.reset(0)
        misbehave(env, 0, parts.TAKE_TIME)
        assert env.num_restarts == 0
        misbehave(env, 0, parts.HANG)
        assert "worker 0 (environments 0 to 1, seed 0) did not answer within 0.001 s at step 2" in caplog.text


def test_time_in_which_the_actor_was_stopped_is_not_the_workers(
    env: WorkerEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that comes back much later than it should says nothing about what it waited for."""
    clock = itertools.count(0.0, 1000.0)

    class LatePoll:
        def __init__(self) -> None:
            self._poll, self._num_calls = real_poll(), 0
            self.register, self.unregister = self._poll.register, self._poll.unregister

        def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
            self._num_calls += 1
            return [] if self._num_calls <= 3 else self._poll.poll(timeout_ms)

    real_poll = select.poll
    monkeypatch.setattr(
        "shoal.envs.worker_handle.select", SimpleNamespace(poll=LatePoll, POLLIN=select.POLLIN)
    )
    monkeypatch.setattr("shoal.envs.worker_handle.time", SimpleNamespace(monotonic=lambda: next(clock)))
    env.step(actions(5))
    assert env.num_restarts == 0


@pytest.mark.parametrize(
    ("how", "end"),
    [
        (parts.DIE, "died of signal 9 (Killed) at step 1"),
        (parts.CRASH, "died of signal 11 (Segmentation fault) at step 1"),
        (parts.EXIT, "died with exit code 3 at step 1"),
    ],
)
def test_a_worker_that_dies_is_started_again(
    env: WorkerEnv, how: int, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    step = misbehave(env, 0, how)["walker"]
    np.testing.assert_array_equal(step.first, [True, True, False, False, False])
    assert f"worker 0 (environments 0 to 1, seed 20) {end}" in caplog.text
    assert env.num_restarts == 1


def test_a_death_that_nobody_reports_is_told_too(env: WorkerEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit codes come from the server that forks the workers."""
    monkeypatch.setattr(worker_handle, "_REPORT_TIMEOUT_S", 0.05)
    worker, process = env._workers[0], processes(env)[0]
    server = process.parent()
    assert server is not None
    server.suspend()
    try:
        process.kill()
        wait_until(lambda: gone(process))
        assert worker.death() == "died, and nobody knows how"
    finally:
        server.resume()
    monkeypatch.undo()
    assert worker.death() == "died of signal 9 (Killed)"


def test_workers_that_die_between_steps_are_started_again(env: WorkerEnv) -> None:
    workers = processes(env)
    for worker in workers:
        worker.kill()
    wait_until(lambda: all(map(gone, workers)))
    assert env.step(actions(5))["walker"].first.all()
    assert env.num_restarts == 2
    assert env.reset(1)["walker"].observation["observation"][:, 0].tolist() == [1, 2, 3, 4, 5]


def test_restarts_are_limited() -> None:
    with closing(worker_env(max_restarts=1)) as env:
        env.reset(0)
        misbehave(env, 0, parts.DIE)
        with pytest.raises(UserError, match=r"max_restarts is 1: .* died of signal 9 \(Killed\) at step 1$"):
            misbehave(env, 0, parts.DIE)
        with pytest.raises(ShoalError, match="an earlier call raised"):
            env.step(actions(5))


def test_a_worker_that_does_not_come_up_again_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "_CLOSE_TIMEOUT_S", 0.1)
    hang = tmp_path / "hang"
    with closing(worker_env(partial(parts.HangsWhenMadeIf, str(hang)), max_restarts=1)) as env:
        env.reset(0)
        env._start_timeout_s = 0.3
        hang.touch()
        with pytest.raises(UserError, match=r"did not answer within 0.3 s while it was started again$"):
            misbehave(env, 0, parts.DIE)


def test_a_worker_that_hangs_at_its_reset_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers_module, "_CLOSE_TIMEOUT_S", 0.1)

    def hasty(workers: Sequence[Worker], timeout_s: float) -> dict[int, bytes | str]:
        """Only about resets: a start takes as long as it takes."""
        return await_replies(workers, timeout_s if workers[0].seed is None else 0.3)

    with closing(worker_env(parts.HangsAtReset, workers=1, max_restarts=1)) as env:
        monkeypatch.setattr(workers_module, "await_replies", hasty)
        with pytest.raises(
            UserError, match=r"broke 2 times .* did not answer within 0.3 s at its first reset$"
        ):
            env.reset(0)


def test_what_a_worker_raises_comes_here(env: WorkerEnv) -> None:
    with pytest.raises(
        ShoalError, match=r"(?s)worker 1 .*, seed 22\) raised at step 1:.*ValueError: the part"
    ) as info:
        misbehave(env, 4, parts.RAISE)
    assert not isinstance(info.value, UserError)


def test_a_user_error_stays_one(env: WorkerEnv) -> None:
    with pytest.raises(UserError, match=r"^the part says what to do$"):
        misbehave(env, 4, parts.RAISE_USER_ERROR)


def test_restarts_by_the_parts_count_too(env: WorkerEnv, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        misbehave(env, 0, parts.RESTART)
        misbehave(env, 4, parts.RESTART)
    assert env.num_restarts == 4
    lines = [(record.name, record.getMessage()) for record in caplog.records]
    broke = "copy 0 broke\nValueError: a flat tyre"
    assert lines == [("parts", f"worker 0: {broke}"), ("parts", f"worker 1: {broke}")] * 2
    misbehave(env, 0, parts.DIE)
    assert env.num_restarts == 5
    assert misbehave(env, 0, parts.RESTART)["walker"].first.sum() < 5
    assert env.num_restarts == 6
    for _ in range(4):
        misbehave(env, 0, parts.RESTART)
    with pytest.raises(UserError, match=r"max_restarts is 10: .*worker 0: copy 0 broke$"):
        misbehave(env, 0, parts.RESTART)


@pytest.mark.parametrize(
    ("make_part", "error", "message"),
    [
        (parts.UserErrorWhenMade, UserError, "^no such map$"),
        (parts.RaisesWhenMade, ShoalError, "worker 0 .*ValueError: a bug in the constructor"),
        (
            parts.DiesWhenMade,
            UserError,
            r"worker 0 \(environments 0 to 1\) died with exit code 5 while it made",
        ),
        (
            parts.OtherSpecs,
            SpecMismatchError,
            r"worker 1 .* shows other .* Discrete\(3\).*instead of .*Discrete\(2\)",
        ),
    ],
)
def test_parts_that_cannot_be_made(
    make_part: Callable[[int], BatchEnv], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match="(?s)" + message):
        worker_env(make_part)


def test_signals_to_the_actors_group_do_not_reach_workers(env: WorkerEnv) -> None:
    for worker in env._workers:
        assert worker.process.pid is not None
        assert os.getpgid(worker.process.pid) == worker.process.pid
        os.kill(worker.process.pid, signal.SIGINT)
    assert not env.step(actions(5))["walker"].first.all()
    assert env.num_restarts == 0


def num_blocks() -> int:
    return Path("/proc/self/maps").read_text().count("shoal-envs")


def test_closing_leaves_nothing() -> None:
    with closing(worker_env()):
        pass  # from here on the server that forks workers is there
    gc.collect()  # what the tests before left with their exceptions
    fds, blocks = os.listdir("/proc/self/fd"), num_blocks()
    env = worker_env()
    env.reset(0)
    misbehave(env, 0, parts.DIE)
    workers = processes(env)
    assert num_blocks() == blocks + 1
    env.close()
    assert all(gone(worker) for worker in workers)
    assert os.listdir("/proc/self/fd") == fds
    assert num_blocks() == blocks
    env.close()
    with pytest.raises(ShoalError, match="closed"):
        env.step(actions(5))


def test_closing_does_not_wait_for_workers_that_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    assert workers_module._CLOSE_TIMEOUT_S <= 2.0
    monkeypatch.setattr(workers_module, "_CLOSE_TIMEOUT_S", 0.3)
    env = worker_env(parts.HangsWhenClosed)
    env.reset(0)
    workers = processes(env)
    waits: list[float] = []
    for worker in env._workers:
        monkeypatch.setattr(worker.process, "join", partial(_join, waits, worker.process.join))
    start = time.monotonic()
    env.close()
    assert time.monotonic() - start >= 0.3
    assert all(gone(worker) for worker in workers)
    assert sum(waits[:2]) < 0.31, "the time is for all together"


def _join(waits: list[float], join: Callable[[float], None], timeout_s: float) -> None:
    waits.append(timeout_s)
    join(timeout_s)


def test_closing_ends_a_step_that_is_under_way() -> None:
    env = worker_env()
    env.reset(0)
    raised: list[BaseException] = []

    def step() -> None:
        try:
            misbehave(env, 0, parts.HANG)
        except ShoalError as error:
            raised.append(error)

    workers = processes(env)
    stepping = threading.Thread(target=step)
    stepping.start()
    wait_until(env._calling.locked)
    env.close()
    stepping.join()
    assert "closed" in str(raised[0])
    assert env.num_restarts == 0
    assert all(gone(worker) for worker in workers)


def test_a_worker_started_while_the_actor_closes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    env = worker_env()
    env.reset(0)
    started = []
    start_worker = env._start_worker

    def closed_meanwhile(index: int) -> Worker:
        env._closed = True
        started.append(start_worker(index))
        return started[-1]

    monkeypatch.setattr(env, "_start_worker", closed_meanwhile)
    with pytest.raises(ShoalError, match="closed while they were stepped"):
        misbehave(env, 0, parts.DIE)
    (process,) = (psutil.Process(worker.process.pid) for worker in started)
    env.close()
    assert gone(process)


PROGRAM = """
import sys
import numpy as np
from shoal.config.tree import EnvSection
from shoal.envs.workers import make_worker_env
from tests.unit.envs import parts

if __name__ == "__main__":
    env = make_worker_env(EnvSection(id="Parts", workers=2, step_timeout_s=60), 4, parts.Part)
    env.reset(0)
    print(*(worker.process.pid for worker in env._workers), flush=True)
    env.step({"walker": np.array([0, 0, 0, int(sys.argv[1])]), "flyer": np.zeros((8, 2), np.float32)})
"""


@contextmanager
def program(tmp_path: Path, action: int) -> Iterator[subprocess.Popen[str]]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    command = [sys.executable, str(path), str(action)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=variables, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_killed_actor_leaves_nothing(tmp_path: Path) -> None:
    with program(tmp_path, parts.HANG_WITH_CHILD) as actor:
        assert actor.stdout is not None
        idle, hanging = (psutil.Process(int(pid)) for pid in actor.stdout.readline().split())
        wait_until(hanging.children)
        left = [idle, hanging, *hanging.children()]
        mapped = {area.path for area in idle.memory_maps()}
        actor.kill()
        wait_until(lambda: all(gone(process) for process in left))
    # Memory without a name is gone with those who have it mapped.
    assert any(path.startswith("/memfd:shoal-envs") for path in mapped)
    assert not any(path.startswith("/dev/shm") for path in mapped)


def test_an_actor_that_ends_without_closing_ends(tmp_path: Path) -> None:
    with program(tmp_path, 0) as actor:
        out, err = actor.communicate(timeout=20)
    assert actor.returncode == 0, err
    workers = [int(pid) for pid in out.split()]
    assert len(workers) == 2
    assert not any(psutil.pid_exists(pid) for pid in workers)
