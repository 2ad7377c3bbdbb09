"""A learner as the real program, a replay shard as another, and a test that plays actors and inference."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import psutil
import yaml
from prometheus_client.parser import text_string_to_metric_families
from safetensors.numpy import load

from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_shard import Append, AppendStream
from shoal.clients.weights import policy_text
from shoal.clients.weights_grpc import GrpcWeightsClient
from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.config.load import build_config
from shoal.errors import UnavailableError
from shoal.records import DEFAULT_POLICY, ArraySpec, DiscreteAction, EnvSpec, Episode, Life, Trajectory
from shoal.rpc.addresses import Address
from shoal.wire import encode_trajectory

ROOT = Path(__file__).parents[2]
SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (4,)),), DiscreteAction(2))
SECURITY, LIMITS, RPC = SecuritySection(), LimitsSection(), RpcSection(max_backoff_s=0.2)
LENGTH, NUM_ENVS = 5, 8
TRANSITIONS = LENGTH * NUM_ENVS
PATIENCE_S = 60.0


def payload(
    version: int = 0,
    reward: float = 1.0,
    length: int = LENGTH,
    num_actions: int = 2,
    width: int = 4,
    episode_return: float = 7.0,
    **states: np.ndarray,
) -> bytes:
    leading = (length + 1, NUM_ENVS)
    rng = np.random.default_rng(version + 1)
    return encode_trajectory(
        Trajectory(
            {
                "observation": rng.normal(size=(*leading, width)).astype(np.float32),
                "action": rng.integers(0, num_actions, leading),
                "reward": np.full(leading, reward, np.float32),
                "terminated": np.zeros(leading, bool),
                "truncated": np.zeros(leading, bool),
                "first": np.zeros(leading, bool),
                "policy_version": np.full(leading, max(version, 0), dtype=np.int64),
                "log_prob": np.full(leading, -0.69, np.float32),
                **states,
            },
            (Episode(episode_return, 5),) * 3,
        )
    )


async def opened(client: GrpcReplayClient, table: str) -> AppendStream:
    """Once the shard is there."""
    while True:
        try:
            return await client.open_append(Life("actor-1", "run-1"), table)
        except UnavailableError:
            await asyncio.sleep(0.05)


def kill_with_children(process: asyncio.subprocess.Process) -> None:
    """All at once; any of them may be over by now."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    with suppress(ProcessLookupError):
        process.kill()


class Program:
    """One service in a process of its own."""

    def __init__(self, name: str, config: Path, directory: Path) -> None:
        self._name = name
        self._config = config
        self._announce = directory / f"{name}.json"
        self.process: asyncio.subprocess.Process | None = None

    async def spawn(self, *settings: str, launcher: Sequence[str] = ()) -> asyncio.subprocess.Process:
        """`launcher` are arguments of Python in front of the service's own."""
        overrides = [part for setting in settings for part in ("--set", setting)]
        arguments = [*launcher, "-m", f"services.{self._name}", "--config", str(self._config), *overrides]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, cwd=ROOT, stderr=asyncio.subprocess.PIPE
        )
        return self.process

    async def start(self, *settings: str) -> dict[str, Any]:
        """Returns what it announces once it listens."""
        process = await self.spawn(*settings)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if self._announce.exists():
                    record: dict[str, Any] = json.loads(self._announce.read_text())
                    if record["pid"] == process.pid:
                        return record
                if process.returncode is not None:
                    raise AssertionError(
                        f"{self._name} exited with {process.returncode}: {await self.errors()}"
                    )
                await asyncio.sleep(0.01)

    async def errors(self) -> str:
        """Everything on stderr, once the process has ended."""
        assert self.process is not None
        async with asyncio.timeout(PATIENCE_S):
            _, text = await self.process.communicate()
        return text.decode()

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            # A launcher's would keep stderr open.
            kill_with_children(self.process)
            await self.process.communicate()

    def terminate(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)


@dataclass
class Side:
    """What the test does for one policy, as its actors and its inference."""

    name: str
    table: str
    spec: EnvSpec = SPEC
    versions: list[int] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    num_sent: int = 0
    # Of what its actors send.
    episode_return: float = 7.0

    @property
    def current(self) -> int:
        return self.versions[-1] if self.versions else -1

    def payload(self) -> bytes:
        width = self.spec.observation[0].shape[0]
        return payload(self.current, width=width, episode_return=self.episode_return)


class Rig:
    """The programs, and the test as their actors and inference."""

    def __init__(self, run_dir: Path, sockets: Path, changes: dict[str, Any]) -> None:
        self.run_dir = run_dir
        self.learner_address = f"unix:{sockets}/learner"
        self.replay_address = f"unix:{sockets}/replay"
        tree: dict[str, Any] = {
            "run": {"dir": str(run_dir)},
            "addresses": {"learner": self.learner_address, "replay": [self.replay_address]},
            "actor": {"unroll_length": LENGTH},
            # A step per batch, with a step size that stays, and no statistics besides the weights.
            "policy": {"hidden_sizes": [16], "normalise_observations": False},
            "algorithm": {
                "name": "impala",
                "learning_rate_schedule": "constant",
                "normalise_returns": False,
            },
            "rpc": {"max_backoff_s": 0.2},
            "learner": {
                "batch_envs": NUM_ENVS,
                "listen": {"grpc": self.learner_address, "health": f"unix:{sockets}/lh"}
                | {"announce": str(sockets / "learner.json")},
            },
            "replay": {
                "listen": {"grpc": self.replay_address, "health": f"unix:{sockets}/rh"}
                | {"announce": str(sockets / "replay.json")},
            },
        }
        tree["learner"]["guards"] = changes.pop("guards", {})
        for section, values in changes.items():
            tree[section] = tree.get(section, {}) | values
        config = sockets / "run.yaml"
        config.write_text(yaml.safe_dump(tree, sort_keys=False))
        self.learner = Program("learner", config, sockets)
        self.replay = Program("replay", config, sockets)
        names = tree.get("env", {}).get("policies", {})
        self.sides = {name: Side(name, f"train-{name}") for name in names} or {
            DEFAULT_POLICY: Side(DEFAULT_POLICY, "train")
        }
        self.policy = policy_text(build_config(tree).policy)

    @property
    def only(self) -> Side:
        (side,) = self.sides.values()
        return side

    @property
    def versions(self) -> list[int]:
        return self.only.versions

    @property
    def weights(self) -> dict[str, np.ndarray]:
        return self.only.weights

    @property
    def spec(self) -> EnvSpec:
        return self.only.spec

    @spec.setter
    def spec(self, spec: EnvSpec) -> None:
        self.only.spec = spec

    async def append(self, *payloads: bytes, side: Side | None = None, table: str | None = None) -> None:
        """`table`: another one than the side's own."""
        side = side or self.only
        client = GrpcReplayClient(Address(self.replay_address), SECURITY, LIMITS, RPC)
        stream = await opened(client, table or side.table)
        for data in payloads:
            await stream.send(Append(side.num_sent, (data,), timeout_s=30.0))
            await stream.receive()
            side.num_sent += 1
        await stream.close()
        await client.close()

    async def pump(self, side: Side) -> None:
        """An actor that is always ahead of the learner."""
        while True:
            try:
                await self.append(*[side.payload()] * 20, side=side)
            except UnavailableError:
                await asyncio.sleep(0.05)

    async def follow(self, side: Side) -> None:
        """Inference: subscribes for ever, remembers every version that it was given."""
        while True:
            client = GrpcWeightsClient(Address(self.learner_address), SECURITY, LIMITS, RPC)
            try:
                async for snapshot in client.subscribe(
                    "inference-1", side.spec, self.policy, side.current, side.name
                ):
                    side.weights = load(snapshot.data)
                    assert all(np.isfinite(array).all() for array in side.weights.values())
                    side.versions.append(snapshot.version)
            except UnavailableError:
                await asyncio.sleep(0.05)
            finally:
                await client.close()

    async def version_above(
        self, version: int, side: Side | None = None, patience_s: float = PATIENCE_S
    ) -> int:
        side = side or self.only
        async with asyncio.timeout(patience_s):
            while side.current <= version:
                await asyncio.sleep(0.01)
        return side.current

    async def exited(self, program: Program) -> int:
        assert program.process is not None
        async with asyncio.timeout(PATIENCE_S):
            return await program.process.wait()

    def result(self, where: str = "") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_dir / where / "result.json").read_text())
        return found


async def scrape(address: str) -> dict[str, float]:
    """Metrics by name; with labels as `name{value}`."""

    def get() -> str:
        with urlopen(f"http://{address}/metrics", timeout=10.0) as response:
            return str(response.read(), "utf-8")

    text = await asyncio.to_thread(get)
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@asynccontextmanager
async def rig(run_dir: Path, **changes: Any) -> AsyncIterator[Rig]:
    """A running shard and a learner that the test starts; everything is gone at the end."""
    with tempfile.TemporaryDirectory(prefix="shoal") as sockets:
        made = Rig(run_dir, Path(sockets), changes)
        following = [asyncio.create_task(made.follow(side)) for side in made.sides.values()]
        try:
            await made.replay.start()
            yield made
        finally:
            for task in following:
                task.cancel()
            ends = await asyncio.gather(*following, return_exceptions=True)
            await made.learner.kill()
            await made.replay.kill()
            for end in ends:
                if isinstance(end, AssertionError):
                    raise end


@asynccontextmanager
async def pumping(rig: Rig) -> AsyncIterator[None]:
    """Actors of every policy."""
    tasks = [asyncio.create_task(rig.pump(side)) for side in rig.sides.values()]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
