"""The frame of a service's process: arguments, logging, signals, exit codes. For `services/*/__main__.py`.

The service's `main` runs on the one event loop; `shoal.rpc.watchdog` sees to signals and to a timely end.
Exit codes: 0 done or drained, 1 crash, 2 the user's mistake, 130/143 at the second SIGINT/SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from prometheus_client import CollectorRegistry, ProcessCollector

from shoal.config import Config, load_config, to_yaml
from shoal.config.connections import ListenSection
from shoal.errors import UserError
from shoal.rpc.auth import TokenSource, channel_credentials
from shoal.rpc.watchdog import EXIT_CRASH, Watchdog

log = logging.getLogger(__name__)

EXIT_USER_ERROR = 2


@dataclass
class ServiceContext:
    """What a service's main gets besides its configuration."""

    name: str
    config: Config
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    _drain_until: float = field(default=float("inf"), init=False, repr=False)

    @property
    def id(self) -> str:
        """The configured name of this replica; the learner has none."""
        return str(getattr(getattr(self.config, self.name), "id", self.name))

    def stop(self) -> None:
        """Set `stopping`; the time for draining runs from the first call."""
        if not self.stopping.is_set():
            self._drain_until = time.monotonic() + self.config.rpc.drain_s
            self.stopping.set()

    def grace_s(self) -> float:
        """What is left of rpc.drain_s: for `RpcServer.drain`."""
        return max(0.0, min(self.config.rpc.drain_s, self._drain_until - time.monotonic()))

    async def announce(self, *, grpc: str = "", health: str = "", metrics: str = "") -> None:
        """Log the bound addresses and write them to listen.announce, as a whole or not at all."""
        log.info("listening: grpc %s, health %s, metrics %s", grpc or "-", health or "-", metrics or "-")
        listen: ListenSection = getattr(self.config, self.name).listen
        if listen.announce is None:
            return
        record = {"service": self.name, "id": self.id, "pid": os.getpid()}
        record |= {"grpc": grpc, "health": health, "metrics": metrics}
        temporary = listen.announce.with_name(f"{listen.announce.name}.{os.getpid()}")
        try:
            listen.announce.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(record) + "\n")
            os.replace(temporary, listen.announce)
        except OSError as error:
            raise UserError(f"cannot write the announce file {listen.announce}: {error.strerror}") from None


Main = Callable[[Config, ServiceContext], Awaitable[None]]


def run_service(name: str, main: Main, argv: Sequence[str] | None = None) -> NoReturn:
    """Run `main` until it returns; `name` is the service's section in the configuration."""
    watchdog = Watchdog()
    watchdog.install()
    # Users keep environments and networks in the working directory, which comes last: nothing there hides
    # what we import.
    sys.path.append("")
    try:
        code = _run(name, main, argv, watchdog)
    except UserError as error:
        code = _user_error(error)
    watchdog.finished(code)
    logging.shutdown()
    sys.stdout.flush()
    # Everything is closed by now. Python's own teardown takes a second once torch has been imported.
    os._exit(code)


def _run(name: str, main: Main, argv: Sequence[str] | None, watchdog: Watchdog) -> int:
    arguments = _parse(name, argv)
    config = with_id(name, load_config(arguments.config, arguments.set), socket.gethostname())
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    # A token or certificate that cannot be used is found here rather than at the first call.
    TokenSource(config.security)
    channel_credentials(config.security)
    if arguments.check:
        print("ok")
        return 0
    context = ServiceContext(name, config)
    # CPU seconds, memory and file descriptors of this process, under Prometheus' usual names.
    ProcessCollector(registry=context.registry)
    set_up_logging(name, context.id)
    return asyncio.run(_serve(main, context, watchdog))


def with_id(name: str, config: Config, host: str) -> Config:
    """The configuration of a service that is called as its host unless it was given a name.

    Replicas are then told apart wherever each has a host of its own, as containers and pods do.
    """
    section = getattr(config, name)
    if getattr(section, "id", None) != "":
        return config
    return config.model_copy(update={name: section.model_copy(update={"id": host})})


async def _serve(main: Main, context: ServiceContext, watchdog: Watchdog) -> int:
    loop = asyncio.get_running_loop()
    drain_s = context.config.rpc.drain_s

    def on_signal(number: int) -> None:
        log.info("%s: draining, at most %g s", signal.Signals(number).name, drain_s)
        context.stop()

    watchdog.attach(drain_s, lambda number: loop.call_soon_threadsafe(on_signal, number))
    code = await _outcome(main(context.config, context))
    # Now, because asyncio.run waits for threads of the loop's executor, which may hang in a look-up.
    watchdog.finished(code)
    return code


async def _outcome(running: Awaitable[None]) -> int:
    """Wait for main and say how it went, as an exit code."""
    try:
        await running
    except UserError as error:
        return _user_error(error)
    except BaseExceptionGroup as group:
        mistake = _first_user_error(group)
        if mistake is not None:
            return _user_error(mistake)
        log.critical("crashed", exc_info=group)
        return EXIT_CRASH
    except (Exception, asyncio.CancelledError) as error:
        log.critical("crashed: %r", error, exc_info=error)
        return EXIT_CRASH
    log.info("stopped")
    return 0


class LineFormatter(logging.Formatter):
    """`time level service id message` on one line; a traceback follows on lines of its own."""

    def __init__(self, name: str, service_id: str) -> None:
        super().__init__(
            f"%(asctime)s.%(msecs)03dZ %(levelname)s {name} {service_id.replace('%', '%%')} %(message)s",
            "%Y-%m-%dT%H:%M:%S",
        )
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:
        # Texts from peers must not be able to forge a record.
        return super().formatMessage(record).replace("\r", "\\r").replace("\n", "\\n")


def set_up_logging(name: str, service_id: str) -> None:
    """One line per record, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(name, service_id))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


def _parse(name: str, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m services.{name}", description=f"shoal's {name} service")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the run's YAML file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a value, like rpc.drain_s=5"
    )
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    parser.add_argument("--print-config", action="store_true", help="print the effective config and exit")
    return parser.parse_args(argv)


def _user_error(error: UserError) -> int:
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
    return EXIT_USER_ERROR


def _first_user_error(group: BaseExceptionGroup[BaseException]) -> UserError | None:
    """A task group wraps what its tasks raise. The rest is logged: it may be what followed from it."""
    mistakes, rest = group.split(UserError)
    if mistakes is None:
        return None
    if rest is not None:
        log.error("failed together with the error below", exc_info=rest)
    first: BaseException = mistakes
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    assert isinstance(first, UserError)
    return first
