"""The supervisor and its guard over real processes; small scripts stand in for the services."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from shoal.cli.guard import Guard
from shoal.cli.plan import ProcessSpec
from shoal.cli.run_dir import RunDir
from shoal.cli.supervisor import End, Outcome, Supervisor
from shoal.config.ranks import Ranks, ranks_of

PATIENCE_S = 60.0
START = "import json, os, pathlib, signal, subprocess, sys, time\n"
ANNOUNCE = 'pathlib.Path({announce!r}).write_text(json.dumps(dict(pid=os.getpid(), metrics="127.0.0.1:1")))\n'
SLEEP = "time.sleep(600)\n"
STAND_BY = ANNOUNCE + SLEEP


@dataclass(frozen=True)
class Script(ProcessSpec):
    """A process that runs a few lines of Python."""

    code: str = ""

    def command(self, config_file: Path) -> list[str]:
        code = START + textwrap.dedent(self.code).replace("{announce!r}", repr(str(self.announce)))
        return [sys.executable, "-I", "-S", "-c", code]


class Scene:
    """A supervisor with scripts, its events, and what a test does meanwhile."""

    def __init__(self, directory: Path, **scripts: str | list[str]) -> None:
        """By role; a list is of learners that train together."""
        self.run_dir = RunDir(directory / "run")
        self.run_dir.create()
        self.sockets = directory / "sockets"
        self.sockets.mkdir()
        self.events: list[str] = []
        self._specs = [spec for role, code in scripts.items() for spec in self._specs_of(role, code)]

    def _specs_of(self, role: str, code: str | list[str]) -> list[Script]:
        codes = [code] if isinstance(code, str) else code
        return [
            Script(
                role,
                rank,
                self.sockets / f"{role}-{rank}.json",
                (),
                ranks=Ranks(rank, len(codes), rank, len(codes)),
                code=one,
            )
            for rank, one in enumerate(codes)
        ]

    def play(
        self,
        act: Callable[[Supervisor], Awaitable[None]] | None = None,
        *,
        max_restarts: int = 20,
        time_limit_s: float | None = None,
    ) -> Outcome:
        lock = self.run_dir.claim()
        guard = Guard(self.sockets, lock)
        try:
            return asyncio.run(self._play(guard, act, max_restarts, time_limit_s))
        finally:
            guard.close()
            os.close(lock)

    async def _play(
        self,
        guard: Guard,
        act: Callable[[Supervisor], Awaitable[None]] | None,
        max_restarts: int,
        time_limit_s: float | None,
    ) -> Outcome:
        supervisor = Supervisor(
            self._specs,
            config_file=self.run_dir.config,
            run_dir=self.run_dir,
            environment=os.environ,
            guard=guard,
            max_restarts=max_restarts,
            on_event=self.events.append,
            on_over=lambda outcome: None,
        )
        watching = asyncio.create_task(_watch(supervisor))
        acting = asyncio.create_task(_nothing() if act is None else _as_coroutine(act(supervisor)))
        try:
            async with asyncio.timeout(PATIENCE_S):
                outcome = await supervisor.run(time_limit_s)
                await acting
        finally:
            watching.cancel()
            acting.cancel()
        return outcome


async def _nothing() -> None:
    return None


async def _as_coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable


async def _watch(supervisor: Supervisor) -> None:
    while True:
        supervisor.check()
        await asyncio.sleep(0.02)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.02)


def up(supervisor: Supervisor) -> bool:
    return all(child.announcement is not None for child in supervisor.children)


def test_a_crashed_process_comes_back(tmp_path: Path) -> None:
    scene = Scene(tmp_path, learner=STAND_BY, actor=STAND_BY)

    async def act(supervisor: Supervisor) -> None:
        await until(lambda: up(supervisor))
        (learner, actor) = supervisor.children
        before = (learner.pid, actor.pid)
        actor.send(signal.SIGKILL)
        await until(lambda: actor.num_restarts == 1 and up(supervisor))
        assert learner.pid == before[0]
        assert actor.pid != before[1]
        os.kill(os.getpid(), signal.SIGTERM)

    outcome = scene.play(act)
    assert (outcome.end, outcome.exit_code) == (End.INTERRUPTED, 143)
    assert scene.events == ["actor-0 was killed by SIGKILL; restarting in 0.2 s"]


def test_a_users_mistake_stops_all_and_is_repeated(tmp_path: Path) -> None:
    code = 'sys.stderr.write("error: first\\nerror: no such env\\n")\nsys.exit(2)'
    scene = Scene(tmp_path, learner=STAND_BY, actor=code)
    outcome = scene.play()
    assert outcome == Outcome(End.USER_ERROR, 2, "no such env")


def test_giving_up_says_why(tmp_path: Path) -> None:
    crash = ANNOUNCE + "time.sleep(0.3)\nraise RuntimeError('boom')"
    scene = Scene(tmp_path, learner=STAND_BY, replay=crash)
    outcome = scene.play(max_restarts=1)
    assert (outcome.end, outcome.exit_code) == (End.GAVE_UP, 1)
    assert outcome.message.startswith("replay-0 crashed 2 times in ten minutes (launch.max_restarts is 1);")
    assert "RuntimeError: boom" in outcome.message
    assert str(scene.run_dir.log("replay-0")) in outcome.message


def test_what_never_comes_up_is_given_up_soon(tmp_path: Path) -> None:
    outcome = Scene(tmp_path, learner=STAND_BY, actor="import no_such_module").play()
    assert "actor-0 crashed 3 times before it came up" in outcome.message
    assert "No module named 'no_such_module'" in outcome.message


def result(run_dir: RunDir, reason: str) -> str:
    text = json.dumps({"reason": reason})
    return f"pathlib.Path({str(run_dir.result)!r}).write_text({text!r})\n"


def test_a_learner_with_a_result_ends_the_run(tmp_path: Path) -> None:
    write = result(RunDir(tmp_path / "run"), "until_return")
    outcome = Scene(tmp_path, learner=ANNOUNCE + write, actor=STAND_BY).play()
    assert (outcome.end, outcome.exit_code) == (End.FINISHED, 0)


def test_a_learner_that_somebody_else_stopped_is_started_again(tmp_path: Path) -> None:
    write = result(RunDir(tmp_path / "run"), "stopped")
    once = f"if os.path.exists({str(tmp_path / 'run/result.json')!r}):\n    time.sleep(600)\n"
    scene = Scene(tmp_path, learner=ANNOUNCE + once + write, actor=STAND_BY)

    async def act(supervisor: Supervisor) -> None:
        await until(lambda: supervisor.children[0].num_restarts == 1 and up(supervisor))
        os.kill(os.getpid(), signal.SIGINT)

    assert scene.play(act).exit_code == 130
    assert scene.events == ["learner-0 ended with code 0; restarting in 0.2 s"]


def test_learners_live_and_die_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is killed; the other, which is frozen, has to be."""
    monkeypatch.setattr("shoal.cli.unit.GRACE_S", 0.2)
    notes = tmp_path / "notes"
    notes.mkdir()
    note = f"pathlib.Path({str(notes)!r}, str(os.getpid())).write_text(json.dumps(dict(os.environ)))\n"
    scene = Scene(tmp_path, learner=[note + STAND_BY] * 2, actor=STAND_BY)

    async def act(supervisor: Supervisor) -> None:
        await until(lambda: up(supervisor))
        first, second, actor = supervisor.children
        before = [child.pid for child in supervisor.children]
        first.send(signal.SIGSTOP)
        second.send(signal.SIGKILL)
        await until(lambda: first.num_restarts == second.num_restarts == 1 and up(supervisor))
        assert not {first.pid, second.pid} & set(before)
        assert actor.pid == before[2]
        os.kill(os.getpid(), signal.SIGTERM)

    assert scene.play(act).exit_code == 143
    assert scene.events == ["learner-1 was killed by SIGKILL; restarting all 2 learners in 0.2 s"]
    lives = [json.loads(path.read_text()) for path in notes.iterdir()]
    assert sorted(ranks_of(life).rank for life in lives) == [0, 0, 1, 1]
    assert {life["MASTER_ADDR"] for life in lives} == {"127.0.0.1"}
    assert len({life["MASTER_PORT"] for life in lives}) == 2, "a port for each life of all"


def test_the_learner_that_knows_the_reason_is_heard(tmp_path: Path) -> None:
    """The others end at once because it has gone; their ends say nothing."""
    knows = "time.sleep(0.3)\nsys.stderr.write('error: no such table\\n')\nsys.exit(2)"
    # However long the other takes to start.
    follows = f"while not os.path.exists({str(tmp_path / 'sockets/learner-1.json')!r}): time.sleep(0.01)\n"
    outcome = Scene(tmp_path, learner=[ANNOUNCE + follows + "sys.exit(1)", ANNOUNCE + knows]).play()
    assert outcome == Outcome(End.USER_ERROR, 2, "no such table")


def test_learners_that_finish_one_after_the_other_end_the_run(tmp_path: Path) -> None:
    """The first still writes its checkpoint."""
    late = ANNOUNCE + "time.sleep(0.5)\n" + result(RunDir(tmp_path / "run"), "steps")
    scene = Scene(tmp_path, learner=[late, ANNOUNCE], actor=STAND_BY)
    outcome = scene.play()
    assert (outcome.end, outcome.exit_code) == (End.FINISHED, 0)
    assert scene.events == []


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    """nohup."""

    async def act(supervisor: Supervisor) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        outcome = Scene(tmp_path, learner=STAND_BY).play(act, time_limit_s=0.5)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert outcome.end is End.TIME_LIMIT


def test_a_closing_terminal_may_say_so_twice(tmp_path: Path) -> None:
    scene = Scene(tmp_path, learner=STAND_BY)

    async def act(supervisor: Supervisor) -> None:
        await until(lambda: up(supervisor))
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGHUP)

    assert scene.play(act).exit_code == 129
    assert scene.events == []


def test_code_2_without_a_line_is_a_crash(tmp_path: Path) -> None:
    outcome = Scene(tmp_path, learner=STAND_BY, actor="sys.exit(2)").play()
    assert outcome.end is End.GAVE_UP
    assert str(tmp_path) in outcome.message, "the log is all there is"


def test_time_limit(tmp_path: Path) -> None:
    outcome = Scene(tmp_path, learner=STAND_BY).play(time_limit_s=0.5)
    assert outcome == Outcome(End.TIME_LIMIT, 0, "time limit of 0.00833333 min reached")


def test_second_signal_kills_at_once(tmp_path: Path) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STAND_BY
    scene = Scene(tmp_path, learner=deaf, actor=deaf)
    took: list[float] = []

    async def act(supervisor: Supervisor) -> None:
        await until(lambda: up(supervisor))
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: all(child.stopping.is_set() for child in supervisor.children[1:]))
        began = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
        await until(lambda: all(child.gone.is_set() for child in supervisor.children))
        took.append(time.monotonic() - began)

    assert scene.play(act).exit_code == 130
    assert "killing everything" in scene.events
    assert not any("did not stop in time" in event for event in scene.events), took


def test_what_is_not_up_yet_is_not_waited_for(tmp_path: Path) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    scene = Scene(tmp_path, learner=STAND_BY, actor=deaf + SLEEP)

    async def act(supervisor: Supervisor) -> None:
        learner, _ = supervisor.children
        await until(lambda: learner.announcement is not None)
        os.kill(os.getpid(), signal.SIGTERM)

    assert scene.play(act).exit_code == 143
    assert scene.events == []


def test_strays_of_a_service_end_with_the_run(tmp_path: Path) -> None:
    """Such as an environment's worker that its actor did not stop."""
    note = tmp_path / "stray"
    spawn = f"""
stray = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({str(note)!r}).write_text(str(stray.pid))
"""
    scene = Scene(tmp_path, learner=STAND_BY, actor=spawn + STAND_BY)

    async def act(supervisor: Supervisor) -> None:
        await until(lambda: up(supervisor))
        os.kill(os.getpid(), signal.SIGTERM)

    scene.play(act)
    assert not scene.sockets.exists()
    _await_end_of([int(note.read_text())])


def test_guard_that_is_killed_ends_the_run_in_order(tmp_path: Path) -> None:
    scene = Scene(tmp_path, learner=STAND_BY)

    async def act(supervisor: Supervisor) -> None:
        await until(lambda: up(supervisor))
        (learner,) = supervisor.children
        assert learner.pid is not None
        os.kill(os.getpgid(learner.pid), signal.SIGKILL)

    outcome = scene.play(act)
    assert (outcome.end, outcome.exit_code) == (End.GAVE_UP, 1)


GUARDED = """
import os, sys, time
from pathlib import Path
from shoal.cli.guard import Guard
import subprocess
guard = Guard(Path(sys.argv[1]), os.open(sys.argv[2], os.O_RDWR | os.O_CREAT))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=guard.group)
print(child.pid, guard.group, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_guard_acts_however_its_owner_dies(tmp_path: Path, number: signal.Signals) -> None:
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    (sockets / "a.sock").touch()
    command = [sys.executable, "-c", GUARDED, str(sockets), str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert all(_lives(pid) for pid in pids)
        began = time.monotonic()
        owner.send_signal(number)
        owner.wait(PATIENCE_S)
        _await_end_of(pids)
        print(f"gone after {time.monotonic() - began:.3f} s")
        assert not sockets.exists()


def _await_end_of(pids: list[int]) -> None:
    """A process needs a moment to die of SIGKILL, more of them on a busy machine."""
    until = time.monotonic() + PATIENCE_S
    while left := [pid for pid in pids if _lives(pid)]:
        assert time.monotonic() < until, f"still running: {left}"
        time.sleep(0.01)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
