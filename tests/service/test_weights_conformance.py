"""Weights: the gRPC client and its in-process twin must behave the same over the learner's own publisher."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from safetensors.numpy import load

from services.learner.metrics import LearnerMetrics
from services.learner.publisher import WeightsPublisher
from services.learner.servicer import CHUNK_BYTES, WeightsServicer
from services.learner.versions import VersionCounter
from shoal.clients.weights import WeightsClient, policy_text
from shoal.clients.weights_grpc import GrpcWeightsClient
from shoal.clients.weights_local import InProcessWeightsClient
from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.config.network import PolicySection
from shoal.errors import FailedPreconditionError, InvalidArgumentError, SpecMismatchError, UnavailableError
from shoal.records import DEFAULT_POLICY, ArraySpec, DiscreteAction, EnvSpec, WeightsSnapshot
from shoal.rpc.addresses import AddressBook
from shoal.rpc.server import RpcServer

SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (3,)),), DiscreteAction(2))
OTHER = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (4,)),), DiscreteAction(2))
POLICY = policy_text(PolicySection())
SECURITY, LIMITS, RPC = SecuritySection(), LimitsSection(), RpcSection()

DEADLINE_S = 30.0


class Rig:
    """A publisher and one client of it."""

    def __init__(self, publisher: WeightsPublisher, versions: VersionCounter, client: WeightsClient) -> None:
        self.publisher = publisher
        self.versions = versions
        self.client = client
        self.subscribers: Callable[[], float] = lambda: 0.0

    def publish(self, num_floats: int = 10, untrained: bool = False) -> int:
        """A new version whose weights are all its number."""
        version = self.versions.next()
        self.publisher.publish(version, {"a": np.full(num_floats, version, np.float32)}, untrained)
        return version


@asynccontextmanager
async def grpc_rig(tmp_path: Path) -> AsyncIterator[Rig]:
    versions = VersionCounter(tmp_path / "v")
    publisher = WeightsPublisher(versions, PolicySection())
    registry = CollectorRegistry()
    server = RpcServer("127.0.0.1:0", "", SECURITY, LIMITS, RPC)
    WeightsServicer({DEFAULT_POLICY: publisher}, LearnerMetrics(registry)).add_to(server)
    await server.start()
    (address,) = await AddressBook([server.address], RPC).resolve()
    client = GrpcWeightsClient(address, SECURITY, LIMITS, RPC)
    rig = Rig(publisher, versions, client)
    labels = {"policy": DEFAULT_POLICY}
    rig.subscribers = lambda: registry.get_sample_value("shoal_learner_subscribers", labels) or 0.0
    try:
        yield rig
    finally:
        await client.close()
        publisher.close()
        await server.drain(1.0)


@asynccontextmanager
async def local_rig(tmp_path: Path) -> AsyncIterator[Rig]:
    versions = VersionCounter(tmp_path / "v")
    publisher = WeightsPublisher(versions, PolicySection())
    client = InProcessWeightsClient(publisher)
    try:
        yield Rig(publisher, versions, client)
    finally:
        await client.close()
        publisher.close()


Body = Callable[[Rig], Awaitable[None]]


@pytest.fixture(params=[grpc_rig, local_rig], ids=["grpc", "in-process"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Body], None]:
    def start(body: Body) -> None:
        async def main() -> None:
            async with request.param(tmp_path) as rig:
                await asyncio.wait_for(body(rig), DEADLINE_S)

        asyncio.run(main())

    return start


Run = Callable[[Body], None]


async def follow(
    rig: Rig, current_version: int = -1, spec: EnvSpec = SPEC, policy: str = POLICY
) -> AsyncIterator[WeightsSnapshot]:
    async for snapshot in rig.client.subscribe("inference-1", spec, policy, current_version):
        assert hashlib.sha256(snapshot.data).digest() == snapshot.sha256
        (array,) = load(snapshot.data).values()
        assert (array == snapshot.version).all()
        yield snapshot


def test_the_newest_comes_at_once_and_then_each_newer_one(run: Run) -> None:
    async def body(rig: Rig) -> None:
        rig.publish()
        newest = rig.publish()
        subscription = follow(rig)
        assert (await anext(subscription)).version == newest
        for _ in range(20):
            version = rig.publish()
            assert (await anext(subscription)).version == version

    run(body)


def test_whether_something_was_learnt_is_told(run: Run) -> None:
    async def body(rig: Rig) -> None:
        subscription = follow(rig)
        for untrained in (True, True, False):
            version = rig.publish(untrained=untrained)
            snapshot = await anext(subscription)
            assert (snapshot.version, snapshot.untrained) == (version, untrained)

    run(body)


def test_a_subscriber_may_come_first(run: Run) -> None:
    async def body(rig: Rig) -> None:
        waiting = asyncio.ensure_future(anext(follow(rig)))
        assert await rig.publisher.spec() == SPEC
        version = rig.publish()
        assert (await waiting).version == version

    run(body)


def test_what_is_in_use_is_not_sent_again(run: Run) -> None:
    async def body(rig: Rig) -> None:
        newest = rig.publish()
        await rig.publisher.newer_than(-1)
        waiting = asyncio.ensure_future(anext(follow(rig, current_version=newest)))
        await rig.publisher.spec()
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()
        version = rig.publish()
        assert (await waiting).version == version

    run(body)


def test_versions_rise_above_what_a_subscriber_has(run: Run) -> None:
    async def body(rig: Rig) -> None:
        rig.publish()
        await rig.publisher.newer_than(-1)
        waiting = asyncio.ensure_future(anext(follow(rig, current_version=5000)))
        await rig.publisher.spec()
        assert rig.publish() == 5001
        assert (await waiting).version == 5001

    run(body)


@pytest.mark.parametrize("num_bytes", [CHUNK_BYTES // 2, CHUNK_BYTES, 10 * CHUNK_BYTES + 123])
def test_weights_of_any_size_arrive_whole(run: Run, num_bytes: int) -> None:
    async def body(rig: Rig) -> None:
        subscription = follow(rig)
        for _ in range(3):
            version = rig.publish(num_floats=num_bytes // 4)
            snapshot = await anext(subscription)
            assert snapshot.version == version
            assert len(snapshot.data) > num_bytes - 4

    run(body)


def test_a_slow_subscriber_skips_to_the_newest(run: Run) -> None:
    """It sees rising versions, none twice, and the last one; not all."""

    async def body(rig: Rig) -> None:
        subscription = follow(rig)
        rig.publish(1 << 18)
        seen = [(await anext(subscription)).version]
        for _ in range(60):
            last = rig.publish(1 << 18)
            await rig.publisher.newer_than(last - 1)
        while seen[-1] < last:
            seen.append((await anext(subscription)).version)
        assert all(a < b for a, b in itertools.pairwise(seen))
        assert len(seen) < 61
        print(f"61 versions of 1 MiB published while asleep, {len(seen)} seen")

    run(body)


def test_several_subscribers_each_get_everything(run: Run) -> None:
    async def body(rig: Rig) -> None:
        subscriptions = [follow(rig) for _ in range(5)]
        for _ in range(5):
            version = rig.publish()
            snapshots = await asyncio.gather(*(anext(subscription) for subscription in subscriptions))
            assert {snapshot.version for snapshot in snapshots} == {version}

    run(body)


def test_another_spec_is_refused_with_both(run: Run) -> None:
    async def body(rig: Rig) -> None:
        rig.publish()
        await anext(follow(rig))
        with pytest.raises(SpecMismatchError) as caught:
            await anext(follow(rig, spec=OTHER))
        assert SPEC.describe() in str(caught.value)
        assert OTHER.describe() in str(caught.value)

    run(body)


@pytest.mark.parametrize("section", [PolicySection(hidden_sizes=(8,)), PolicySection(activation="relu")])
def test_another_policy_is_refused_with_both_before_any_weights(run: Run, section: PolicySection) -> None:
    async def body(rig: Rig) -> None:
        rig.publish()
        with pytest.raises(FailedPreconditionError) as caught:
            await anext(follow(rig, spec=OTHER, policy=policy_text(section)))
        assert POLICY in str(caught.value)
        assert policy_text(section) in str(caught.value)
        await anext(follow(rig))
        assert await rig.publisher.spec() == SPEC

    run(body)


def test_a_wild_version_is_refused(run: Run) -> None:
    async def body(rig: Rig) -> None:
        with pytest.raises(InvalidArgumentError, match="out of range"):
            await anext(follow(rig, current_version=2**63 - 1))

    run(body)


def test_a_learner_that_stops_ends_subscriptions(run: Run) -> None:
    async def body(rig: Rig) -> None:
        rig.publish()
        subscription = follow(rig)
        await anext(subscription)
        rig.publisher.close()
        with pytest.raises(UnavailableError):
            await anext(subscription)
        with pytest.raises(UnavailableError):
            await anext(follow(rig))

    run(body)


def test_closing_the_client_ends_its_subscriptions(run: Run) -> None:
    async def body(rig: Rig) -> None:
        rig.publish()
        subscription = follow(rig)
        await anext(subscription)
        waiting = asyncio.ensure_future(anext(subscription))
        await asyncio.sleep(0)
        await rig.client.close()
        with pytest.raises(UnavailableError):
            await waiting

    run(body)


def test_cancelling_the_reader_is_a_cancellation(run: Run) -> None:
    async def body(rig: Rig) -> None:
        waiting = asyncio.ensure_future(anext(follow(rig)))
        await rig.publisher.spec()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        version = rig.publish()
        assert (await anext(follow(rig))).version == version

    run(body)


def test_subscribers_are_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with grpc_rig(tmp_path) as rig:
            rig.publish()
            subscriptions = [follow(rig) for _ in range(3)]
            for subscription in subscriptions:
                await anext(subscription)
            assert rig.subscribers() == 3
            await rig.client.close()
            while rig.subscribers():
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


def test_each_policy_has_its_own_spec_and_versions(tmp_path: Path) -> None:
    async def main() -> None:
        versions = {name: VersionCounter(tmp_path / name) for name in ("red", "blue")}
        publishers = {name: WeightsPublisher(versions[name], PolicySection()) for name in versions}
        registry = CollectorRegistry()
        server = RpcServer("127.0.0.1:0", "", SECURITY, LIMITS, RPC)
        WeightsServicer(publishers, LearnerMetrics(registry)).add_to(server)
        await server.start()
        (address,) = await AddressBook([server.address], RPC).resolve()
        client = GrpcWeightsClient(address, SECURITY, LIMITS, RPC)
        red = client.subscribe("inference-1", SPEC, POLICY, 40, "red")
        blue = client.subscribe("inference-1", OTHER, POLICY, -1, "blue")
        first = [asyncio.ensure_future(anext(subscription)) for subscription in (red, blue)]
        assert await publishers["red"].spec() == SPEC
        assert await publishers["blue"].spec() == OTHER
        for name, publisher in publishers.items():
            publisher.publish(versions[name].next(), {"a": np.full(2, len(name), np.float32)})
        snapshots = await asyncio.gather(*first)
        assert [snapshot.version for snapshot in snapshots] == [41, 0]
        assert [load(snapshot.data)["a"].tolist() for snapshot in snapshots] == [[3, 3], [4, 4]]
        for name in publishers:
            assert registry.get_sample_value("shoal_learner_subscribers", {"policy": name}) == 1
        # Control: nobody else gets in, and nothing comes of it.
        for unknown in ("green", "", DEFAULT_POLICY):
            with pytest.raises(
                FailedPreconditionError, match=rf"no policy '{unknown}': there are red, blue; .*env\.policies"
            ):
                await anext(client.subscribe("inference-1", SPEC, POLICY, 99, unknown))
        assert versions["blue"].next() == 1
        await client.close()
        for publisher in publishers.values():
            publisher.close()
        await server.drain(1.0)

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))
