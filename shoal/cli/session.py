"""One session of a run: from a configuration to a finished, interrupted or failed run with its report.

Called by `shoal train`. Owns what must be undone: the run directory's lock, the private socket directory,
the guard. Single-threaded; the event loop lives only inside `run_session`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.cli.files import write_whole
from shoal.cli.guard import Guard
from shoal.cli.history import History
from shoal.cli.live_run import reachable
from shoal.cli.monitor import Monitor
from shoal.cli.plan import TOKEN_VARIABLE, child_environment, plan_processes
from shoal.cli.report import write_report
from shoal.cli.result import complete_result, summary, write_result
from shoal.cli.run_dir import RunDir, unwritable
from shoal.cli.say import complain, say
from shoal.cli.supervisor import End, Outcome, Supervisor
from shoal.cli.view import LiveView, PlainView, View
from shoal.config import Config, to_yaml
from shoal.errors import UserError
from shoal.untrained import encode_untrained

# Unix socket paths end at 107 characters: a long $TMPDIR leaves no room for names.
MAX_SOCKET_DIR = 70


def run_session(config: Config, *, plain: bool, untrained: Mapping[str, Sequence[float]]) -> int:
    """Runs to the end and says how it went. Returns the program's exit code; raises UserError.

    `untrained`: returns of random play, by policy, for the learner to compare with.
    """
    run_dir = RunDir(config.run.dir)
    is_new = run_dir.create()
    lock = run_dir.claim()
    try:
        with _unwritable_as_user_error(run_dir):
            results = (run_dir.result, *run_dir.policy_results)
            before = {path: _content(path) for path in (run_dir.config, *results)}
            last_result = run_dir.read_result()
            write_whole(run_dir.config, to_yaml(_at_home_anywhere(config)).encode())
            if untrained:
                write_whole(run_dir.untrained, encode_untrained(untrained))
            elif not run_dir.has_checkpoints:
                # Of another environment, perhaps.
                run_dir.untrained.unlink(missing_ok=True)
            # Of an earlier session: only this one's end may look like a result.
            for path in results:
                path.unlink(missing_ok=True)
            history = History(run_dir.history)
        monitor = Monitor(history, _view(config, plain))
        was_refused = False
        try:
            with _socket_dir() as sockets:
                outcome = _supervise(config, run_dir, sockets, lock, monitor)
            # Polls may have missed the first steps of a short life, which a checkpoint shows.
            has_trained = monitor.has_trained or (is_new and run_dir.has_checkpoints)
            was_refused = outcome.end is End.USER_ERROR and not has_trained
            record = complete_result(config, run_dir, outcome, monitor.last, monitor.over_s, last_result)
            with _warned():
                if was_refused:
                    _put_back(before)
                else:
                    monitor.add_final(record)
                    write_result(run_dir, record)
        finally:
            monitor.close()
            if was_refused and is_new:
                shutil.rmtree(run_dir.root, ignore_errors=True)
            else:
                with _warned():
                    write_report(run_dir)
    finally:
        os.close(lock)
    return _conclude(outcome, record, run_dir)


def _conclude(outcome: Outcome, record: dict[str, Any], run_dir: RunDir) -> int:
    """The last lines that a user sees of a run."""
    if outcome.end is End.USER_ERROR:
        raise UserError(outcome.message)
    if outcome.end is End.GAVE_UP:
        complain(f"error: {outcome.message}")
    else:
        say(f"stopped: {record['message']}")
    for line in summary(record, run_dir):
        say(line)
    return outcome.exit_code


def _supervise(config: Config, run_dir: RunDir, sockets: Path, lock: int, monitor: Monitor) -> Outcome:
    guard = Guard(sockets, lock)
    try:
        return asyncio.run(_run(config, run_dir, sockets, guard, monitor))
    finally:
        # Nothing is left to interrupt: a second Ctrl-C must not cost the report.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        guard.close()


async def _run(config: Config, run_dir: RunDir, sockets: Path, guard: Guard, monitor: Monitor) -> Outcome:
    environment = child_environment(config, secrets.token_urlsafe(32), os.environ, sockets)
    supervisor = Supervisor(
        plan_processes(config, sockets),
        config_file=run_dir.config,
        run_dir=run_dir,
        environment=environment,
        guard=guard,
        max_restarts=config.launch.max_restarts,
        on_event=monitor.event,
        on_over=monitor.over,
    )
    watching = asyncio.create_task(monitor.watch(supervisor))
    watching.add_done_callback(lambda task: _report_failure(task, supervisor))
    minutes = config.stop.minutes
    try:
        with reachable(run_dir, sockets, environment.get(TOKEN_VARIABLE)):
            return await supervisor.run(None if minutes is None else 60 * minutes)
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


def _report_failure(watching: asyncio.Task[None], supervisor: Supervisor) -> None:
    """A bug in the monitor ends the run in order instead of leaving it unwatched."""
    if not watching.cancelled() and (error := watching.exception()) is not None:
        supervisor.fail(error)


def _view(config: Config, plain: bool) -> View:
    title = f"shoal  {config.run.name}  {config.env.id}  {config.algorithm.name}"
    if plain or sys.stdout is None or not sys.stdout.isatty():
        say(f"{title}  {config.run.dir}")
        return PlainView()
    return LiveView(title, config.stop.until_return)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _put_back(files: dict[Path, bytes | None]) -> None:
    """A refused session leaves a run as it was: it can still be resumed with what it was trained with."""
    for path, content in files.items():
        if content is None:
            path.unlink(missing_ok=True)
        else:
            write_whole(path, content)


def _at_home_anywhere(config: Config) -> Config:
    """The saved config must mean the same directory whatever directory it is used from."""
    run = config.run.model_copy(update={"dir": config.run.dir.absolute()})
    return config.model_copy(update={"run": run})


@contextlib.contextmanager
def _socket_dir() -> Iterator[Path]:
    """A directory that only this user can enter (mkdtemp makes it 0700)."""
    parent = tempfile.gettempdir()
    path = tempfile.mkdtemp(prefix="shoal-", dir=parent if len(parent) <= MAX_SOCKET_DIR else "/tmp")
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _warned() -> Iterator[None]:
    """What cannot be written at the end does not change how the run went."""
    try:
        yield
    except (OSError, UserError) as error:
        complain(f"warning: {error}")


@contextlib.contextmanager
def _unwritable_as_user_error(run_dir: RunDir) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritable(run_dir.root, error) from None
