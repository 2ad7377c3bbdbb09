"""Pods of a learner group as processes of this machine, started as the manifest says and again when they end.

What a kubelet does, without its growing pauses. The names of pods become loopback, and each pod has sockets
of its own, since all of them are on one machine.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.deploy.k8s_render import ROOT, Object, environment, the_container
from tests.service.learner_rig import kill_with_children

LAUNCHER = {"torchrun": (sys.executable, "-m", "torch.distributed.run")}


def command(workload: Object, index: int) -> list[str]:
    """The arguments of the pod with this index, with the kubelet's `$(NAME)` filled in."""
    values = environment(workload, index)
    return [
        re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], part)
        for part in the_container(workload)["args"]
    ]


def here(arguments: Sequence[str], config: Path, port: int) -> list[str]:
    """The same on this machine."""
    told = {
        "/etc/shoal/run.yaml": str(config),
        "--master-addr=learner-0.learner": "--master-addr=127.0.0.1",
        "--master-port=29500": f"--master-port={port}",
    }
    assert told.keys() <= set(arguments)
    return [*LAUNCHER[arguments[0]], *(told.get(part, part) for part in arguments[1:])]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class Pod:
    """One learner's container, which is started again until it ends well."""

    def __init__(self, arguments: Sequence[str], sockets: Path, index: int) -> None:
        self._arguments = arguments
        self._environ = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": "lo",
            "SHOAL__LEARNER__LISTEN__HEALTH": f"unix:{sockets}/health-{index}",
            "SHOAL__LEARNER__LISTEN__ANNOUNCE": f"{sockets}/learner-{index}.json",
        }
        self.process: asyncio.subprocess.Process | None = None
        self.codes: list[int] = []
        self.log = b""

    async def run(self) -> None:
        while not self.codes or self.codes[-1]:
            self.process = await asyncio.create_subprocess_exec(
                *self._arguments, cwd=ROOT, env=self._environ, stderr=asyncio.subprocess.PIPE
            )
            _, errors = await self.process.communicate()
            self.log += errors
            assert self.process.returncode is not None
            self.codes.append(self.process.returncode)

    def kill(self) -> None:
        """Everything in it at once, as when its node is gone."""
        assert self.process is not None
        if self.process.returncode is None:
            kill_with_children(self.process)


@asynccontextmanager
async def running(pods: Sequence[Pod]) -> AsyncIterator[asyncio.Future[list[None]]]:
    """What is yielded is done when all have ended well."""
    lives = asyncio.gather(*(pod.run() for pod in pods))
    try:
        yield lives
    finally:
        lives.cancel()
        await asyncio.gather(lives, return_exceptions=True)
        for pod in pods:
            pod.kill()
            if pod.process is not None:
                await pod.process.wait()
