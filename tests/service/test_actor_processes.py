"""The real actor process against real inference and replay processes; only training is left out.

Weights come from the learner's own publisher, running in the test. Observations of the counting environment
say which step they are, so that a trajectory that mixed two lives or two streams would be seen.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import yaml
from prometheus_client import CollectorRegistry

from services.learner.metrics import LearnerMetrics
from services.learner.publisher import WeightsPublisher
from services.learner.servicer import WeightsServicer
from services.learner.versions import VersionCounter
from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_sampler import ReplaySampler
from shoal.config import Config
from shoal.errors import UnavailableError
from shoal.policy.network import build_policy
from shoal.records import DEFAULT_POLICY, Item
from shoal.rpc.addresses import Address, AddressBook
from shoal.rpc.server import RpcServer
from shoal.wire import decode_trajectory
from tests.unit.envs import counting

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
T, ENVS, GROUPS = 5, 6, 2


class Cluster:
    """Processes of one run over unix sockets in a private directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = Config.model_validate(
            {
                "run": {"dir": str(directory / "run")},
                "env": {"id": f"{counting.__name__}:Counting-v0"},
                "addresses": {
                    "inference": [self.socket("inference-0"), self.socket("inference-1")],
                    "replay": [self.socket("replay-0"), self.socket("replay-1")],
                    "learner": self.socket("learner"),
                },
                "actor": {"envs": ENVS, "groups": GROUPS, "unroll_length": T},
                # Actors that wait for nobody.
                "algorithm": {"name": "impala"},
                "rpc": {"max_backoff_s": 0.2, "resolve_every_s": 0.5},
            }
        )
        self.file = directory / "run.yaml"
        self.file.write_text(yaml.safe_dump(self.config.model_dump(mode="json", exclude={"security"})))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def socket(self, name: str) -> str:
        return f"unix:{self.directory}/{name}.sock"

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def start(self, name: str, *overrides: str) -> subprocess.Popen[bytes]:
        """`name` is a service and a number: `actor-0`."""
        service = name.rpartition("-")[0]
        settings = [f"{service}.id={name}", f"{service}.listen.health={self.socket(name + '.health')}"]
        settings += [f"{service}.listen.announce={self.directory}/{name}.json", *overrides]
        if service != "actor":
            settings.append(f"{service}.listen.grpc={self.socket(name)}")
        command = [sys.executable, "-m", f"services.{service}", "--config", str(self.file)]
        for setting in settings:
            command += ["--set", setting]
        (self.directory / f"{name}.json").unlink(missing_ok=True)
        with (self.directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )
        self.processes[name] = process
        return process

    async def metric(self, name: str, sample: str) -> float:
        """A value of a live scrape; 0 while the process does not listen yet."""
        path = self.directory / f"{name}.json"
        if not path.exists():
            return 0.0
        address = json.loads(path.read_text())["metrics"]
        reader, writer = await asyncio.open_connection(*address.rsplit(":", 1))
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    async def exit_code(self, name: str) -> int:
        process = self.processes[name]
        await until(lambda: process.poll() is not None, f"{name} to end")
        return process.returncode


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    # Paths of unix sockets are short; pytest's own directories can be long.
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        cluster = Cluster(Path(directory))
        try:
            yield cluster
        finally:
            for process in cluster.processes.values():
                process.kill()
                process.wait()


async def until(condition: Callable[[], bool], what: str) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.02)
            return
    raise AssertionError(f"waited {PATIENCE_S} s for {what}")


@asynccontextmanager
async def published_weights(cluster: Cluster) -> AsyncIterator[None]:
    """The learner's side of the weights service, with untrained weights."""
    config = cluster.config
    versions = VersionCounter(cluster.directory / "versions")
    publisher = WeightsPublisher(versions, config.policy)

    async def publish() -> None:
        policy = build_policy(config.policy, await publisher.spec())
        weights = {name: value.numpy().copy() for name, value in policy.state_dict().items()}
        publisher.publish(versions.next(), weights)

    server = RpcServer(config.addresses.learner, "", config.security, config.limits, config.rpc)
    WeightsServicer({DEFAULT_POLICY: publisher}, LearnerMetrics(CollectorRegistry())).add_to(server)
    await server.start()
    publishing = asyncio.create_task(publish())
    try:
        yield
    finally:
        publishing.cancel()
        publisher.close()
        await server.drain(1.0)


@asynccontextmanager
async def collected_items(cluster: Cluster) -> AsyncIterator[list[Item]]:
    """Everything that the shards hand out, as it comes."""
    config = cluster.config

    def dial(address: Address) -> GrpcReplayClient:
        return GrpcReplayClient(address, config.security, config.limits, config.rpc)

    items: list[Item] = []
    sampler = ReplaySampler(AddressBook(config.addresses.replay, config.rpc), dial, "train", 2, config.rpc)
    sampler.start()

    async def collect() -> None:
        while True:
            items.append(await sampler.next())

    collecting = asyncio.create_task(collect())
    try:
        yield items
    finally:
        collecting.cancel()
        await sampler.close()


async def num_inserted(cluster: Cluster, shard: str) -> int:
    config = cluster.config
    client = GrpcReplayClient(Address(cluster.socket(shard)), config.security, config.limits, config.rpc)
    try:
        return sum(table.num_inserted for table in await client.stats())
    except UnavailableError:
        return 0  # it is slow to start
    finally:
        await client.close()


def test_lives_replicas_shards_and_drain() -> None:
    """One story, as starting processes is slow: start order, kills, an evaluator, a stranger, a drain."""

    async def story(cluster: Cluster) -> None:
        cluster.start("actor-0")
        await until((cluster.directory / "actor-0.json").exists, "the actor to be up before all others")
        for name in ("replay-0", "replay-1", "inference-0", "inference-1"):
            cluster.start(name)
        async with published_weights(cluster), collected_items(cluster) as items:
            await until(lambda: len(items) >= 20, "trajectories")
            (first_life,) = {item.life for item in items}
            for shard in ("replay-0", "replay-1"):
                async with asyncio.timeout(PATIENCE_S):
                    while not await num_inserted(cluster, shard):
                        await asyncio.sleep(0.05)
            await both_replicas_are_acted_through(cluster)

            cluster.processes["actor-0"].kill()
            assert await cluster.exit_code("actor-0") == -signal.SIGKILL
            cluster.start("actor-0")
            await until(lambda: items[-1].life != first_life, "a new life")
            second_life = items[-1].life
            assert second_life.actor_id == first_life.actor_id == "actor-0"
            await both_replicas_are_acted_through(cluster)

            await inference_dies_and_returns(cluster, items)
            await what_a_kill_would_lose_is_told(cluster)
            await strangers_are_refused_and_harm_nobody(cluster)
            await an_evaluator_stores_nothing(cluster, items)

            cluster.processes["actor-0"].send_signal(signal.SIGTERM)
            assert await cluster.exit_code("actor-0") == 0
            drained = re.search(
                r"drained policy: (\d+) trajectories acked, (\d+) not", cluster.log("actor-0")
            )
            assert drained is not None
            assert drained[2] == "0"
            await until(
                lambda: sum(item.life == second_life for item in items) == int(drained[1]), "what was acked"
            )
            assert {item.life for item in items} == {first_life, second_life}
            check_items(items, cluster)
        assert cluster.log("actor-0").count(" ERROR ") == 0

    with running_cluster() as cluster:
        asyncio.run(story(cluster))


async def both_replicas_are_acted_through(cluster: Cluster) -> None:
    """By the groups of this life of the actor."""
    for name in ("inference-0", "inference-1"):
        line = f"acts through {cluster.socket(name)}"
        await until(lambda line=line: line in cluster.log("actor-0"), f"a group at {name}")


async def inference_dies_and_returns(cluster: Cluster, items: list[Item]) -> None:
    cluster.processes["inference-0"].kill()
    assert await cluster.exit_code("inference-0") == -signal.SIGKILL
    before = len(items)
    await until(lambda: len(items) >= before + 40, "trajectories through the other replica")
    assert await cluster.metric("actor-0", "shoal_actor_reconnects_total") == 1
    connected = cluster.log("actor-0").count(f"acts through {cluster.socket('inference-0')}")
    cluster.start("inference-0")
    await until(
        lambda: cluster.log("actor-0").count(f"acts through {cluster.socket('inference-0')}") > connected,
        "the group to go back to its own replica",
    )


async def what_a_kill_would_lose_is_told(cluster: Cluster) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await cluster.metric("actor-0", 'shoal_actor_open_steps{state="recording"}'):
            await asyncio.sleep(0.02)


async def an_evaluator_stores_nothing(cluster: Cluster, items: list[Item]) -> None:
    """It acts through the replica that has only heard of a stranger's spec so far."""
    settings = "actor.mode=evaluate", "actor.envs=2", "actor.groups=1"
    cluster.start("actor-9", *settings, f"addresses.inference=[{cluster.socket('inference-2')}]")
    episodes = 0.0
    async with asyncio.timeout(PATIENCE_S):
        while episodes < 10:
            episodes = await cluster.metric(
                "actor-9", 'shoal_actor_episodes_total{mode="evaluate",policy="policy"}'
            )
            await asyncio.sleep(0.02)
    cluster.processes["actor-9"].send_signal(signal.SIGTERM)
    assert await cluster.exit_code("actor-9") == 0
    assert all(item.life.actor_id == "actor-0" for item in items)


async def strangers_are_refused_and_harm_nobody(cluster: Cluster) -> None:
    """By a replica that has weights, and by the learner when they are a new replica's first actors."""
    cluster.start("inference-2")
    await until((cluster.directory / "inference-2.json").exists, "a new replica")
    for actor, replica in (("actor-7", "inference-1"), ("actor-8", "inference-2")):
        cluster.start(actor, "env.id=Acrobot-v1", f"addresses.inference=[{cluster.socket(replica)}]")
    for actor in ("actor-7", "actor-8"):
        assert await cluster.exit_code(actor) == 2
        line = cluster.log(actor).splitlines()[-1]
        assert line.startswith("error: ")
        assert "Counting-v0: observation float32[3] -> Discrete(5)" in line
        assert "Acrobot-v1: observation float32[6] within -28.2743..28.2743 -> Discrete(3)" in line
    assert "an actor brought another spec" in cluster.log("inference-2")


def check_items(items: list[Item], cluster: Cluster) -> None:
    """No trajectory is there twice, none mixes lives, and none of a drained life is missing."""
    assert len({(item.life, item.sequence) for item in items}) == len(items)
    last_life = items[-1].life
    sequences = {item.sequence for item in items if item.life == last_life}
    assert sequences == set(range(len(sequences)))
    for item in items:
        trajectory = decode_trajectory(item.payloads[0], cluster.config.limits)
        assert trajectory.unroll_length == T
        assert trajectory.num_envs == ENVS // GROUPS
        counting.check_rows(trajectory)


def test_the_users_mistakes_end_the_actor_with_one_line() -> None:
    cases = {
        "env.id=CartPol-v1": "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?",
        "env.id=no_such_module:X-v0": "cannot import 'no_such_module' for environment 'no_such_module:X-v0'",
        "env.kwargs={gravitas: 1}": "got an unexpected keyword argument 'gravitas'",
    }

    async def story(cluster: Cluster) -> None:
        for number, setting in enumerate(cases):
            cluster.start(f"actor-{number}", setting)
        for number, text in enumerate(cases.values()):
            assert await cluster.exit_code(f"actor-{number}") == 2
            (line,) = cluster.log(f"actor-{number}").splitlines()
            assert line.startswith("error: ")
            assert text in line

    with running_cluster() as cluster:
        asyncio.run(story(cluster))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_of_asynchronous_environments_outlives_the_actor(number: signal.Signals) -> None:
    async def story(cluster: Cluster) -> None:
        process = cluster.start("actor-0", "env.vectorization=async")
        await until((cluster.directory / "actor-0.json").exists, "the actor")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= ENVS
        if number == signal.SIGINT:
            # Ctrl-C in a terminal reaches every process.
            for child in children:
                child.send_signal(number)
        process.send_signal(number)
        code = await cluster.exit_code("actor-0")
        assert code == (-number if number == signal.SIGKILL else 0)
        await until(lambda: not any(child.is_running() for child in children), "the workers to end")
        if number != signal.SIGKILL:
            assert "Traceback" not in cluster.log("actor-0")

    with running_cluster() as cluster:
        asyncio.run(story(cluster))
