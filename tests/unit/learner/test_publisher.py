"""The publisher: newest only, the spec of the first subscriber, versions above what subscribers have."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from services.learner import publisher as publisher_module
from services.learner.publisher import INLINE_BYTES, WeightsPublisher
from services.learner.versions import VersionCounter
from shoal.clients.weights import policy_text
from shoal.config.network import PolicySection
from shoal.errors import FailedPreconditionError, InvalidArgumentError, SpecMismatchError, UnavailableError
from shoal.records import ArraySpec, DiscreteAction, EnvSpec, WeightsSnapshot

SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (3,)),), DiscreteAction(2))
OTHER = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (4,)),), DiscreteAction(2))
POLICY = policy_text(PolicySection())


def run(tmp_path: Path, body: Callable[[WeightsPublisher, VersionCounter], Awaitable[None]]) -> None:
    async def main() -> None:
        versions = VersionCounter(tmp_path / "v")
        await asyncio.wait_for(body(WeightsPublisher(versions, PolicySection()), versions), 20.0)

    asyncio.run(main())


def weights(value: float, size: int = 4) -> dict[str, np.ndarray]:
    return {"a": np.full(size, value, np.float32), "b": np.full((2, 2), value, np.float32)}


def value_of(snapshot: WeightsSnapshot) -> float:
    """The one value that all weights of a snapshot have; mixed ones would fail."""
    assert WeightsSnapshot.of(snapshot.version, snapshot.data) == snapshot
    values = {float(x) for array in load(snapshot.data).values() for x in np.unique(array)}
    assert len(values) == 1, "weights of several versions in one snapshot"
    return values.pop()


def test_what_is_published_is_handed_out(tmp_path: Path) -> None:
    async def body(publisher: WeightsPublisher, _: VersionCounter) -> None:
        waiting = asyncio.create_task(publisher.newer_than(-1))
        publisher.publish(0, weights(1.5))
        snapshot = await waiting
        assert (snapshot.version, value_of(snapshot)) == (0, 1.5)
        assert (await publisher.newer_than(-1)).version == 0
        assert not (await publisher.newer_than(-1)).untrained
        publisher.publish(1, weights(1.5), untrained=True)
        assert (await publisher.newer_than(0)).untrained

    run(tmp_path, body)


def test_a_version_in_use_waits_for_a_newer_one(tmp_path: Path) -> None:
    async def body(publisher: WeightsPublisher, _: VersionCounter) -> None:
        publisher.publish(3, weights(3.0))
        await publisher.newer_than(2)
        waiting = [asyncio.create_task(publisher.newer_than(version)) for version in (3, 4)]
        publisher.publish(4, weights(4.0))
        assert (await waiting[0]).version == 4
        assert not waiting[1].done()
        publisher.publish(5, weights(5.0))
        assert (await waiting[1]).version == 5

    run(tmp_path, body)


@pytest.mark.parametrize("size", [4, INLINE_BYTES // 4])
def test_from_another_thread_each_snapshot_is_of_one_version(tmp_path: Path, size: int) -> None:
    """A slow reader skips versions; it never sees an older or a mixed one, and ends with the newest."""

    async def body(publisher: WeightsPublisher, _: VersionCounter) -> None:
        def train() -> None:
            for version in range(500):
                publisher.publish(version, weights(float(version), size))

        thread = threading.Thread(target=train)
        thread.start()
        seen = [-1]
        while seen[-1] < 499:
            snapshot = await publisher.newer_than(seen[-1])
            assert snapshot.version > seen[-1]
            assert value_of(snapshot) == snapshot.version
            seen.append(snapshot.version)
        thread.join()
        print(f"500 versions published, {len(seen) - 1} seen, the last one among them")

    run(tmp_path, body)


def test_the_first_spec_is_the_runs(tmp_path: Path) -> None:
    async def body(publisher: WeightsPublisher, _: VersionCounter) -> None:
        waiting = asyncio.create_task(publisher.spec())
        publisher.accept(SPEC, POLICY, -1)
        assert await waiting == SPEC
        publisher.accept(SPEC, POLICY, 0)
        with pytest.raises(SpecMismatchError) as caught:
            publisher.accept(OTHER, POLICY, -1)
        assert SPEC.describe() in str(caught.value)
        assert OTHER.describe() in str(caught.value)
        assert await publisher.spec() == SPEC

    run(tmp_path, body)


def test_versions_rise_above_a_subscribers(tmp_path: Path) -> None:
    async def body(publisher: WeightsPublisher, versions: VersionCounter) -> None:
        publisher.accept(SPEC, POLICY, 1000)
        assert versions.next() == 1001
        with pytest.raises(SpecMismatchError):
            publisher.accept(OTHER, POLICY, 5000)
        with pytest.raises(InvalidArgumentError):
            publisher.accept(SPEC, POLICY, 2**63 - 1)
        assert versions.next() == 1002

    run(tmp_path, body)


def test_a_refused_version_does_not_set_the_spec(tmp_path: Path) -> None:
    async def body(publisher: WeightsPublisher, _: VersionCounter) -> None:
        with pytest.raises(InvalidArgumentError):
            publisher.accept(OTHER, POLICY, -7)
        publisher.accept(SPEC, POLICY, -1)
        assert await publisher.spec() == SPEC

    run(tmp_path, body)


@pytest.mark.parametrize("theirs", ["", policy_text(PolicySection(activation="relu"))])
def test_another_policy_is_refused_with_both_and_changes_nothing(tmp_path: Path, theirs: str) -> None:
    async def body(publisher: WeightsPublisher, versions: VersionCounter) -> None:
        with pytest.raises(FailedPreconditionError) as caught:
            publisher.accept(OTHER, theirs, 1000)
        assert POLICY in str(caught.value)
        assert (theirs or "missing") in str(caught.value)
        publisher.accept(SPEC, POLICY, -1)
        assert await publisher.spec() == SPEC
        assert versions.next() == 0

    run(tmp_path, body)


def test_closing_ends_subscriptions(tmp_path: Path) -> None:
    async def body(publisher: WeightsPublisher, _: VersionCounter) -> None:
        waiting = asyncio.create_task(publisher.newer_than(-1))
        await asyncio.sleep(0)
        publisher.close()
        with pytest.raises(UnavailableError, match="stopping"):
            await waiting
        with pytest.raises(UnavailableError):
            await publisher.newer_than(-1)
        with pytest.raises(UnavailableError):
            publisher.accept(SPEC, POLICY, -1)
        publisher.publish(1, weights(1.0))

    run(tmp_path, body)


@pytest.mark.parametrize("size", [4, INLINE_BYTES // 4])
def test_a_version_that_cannot_be_serialised_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    def fail(weights: dict[str, np.ndarray]) -> bytes:
        raise MemoryError("no room for it")

    async def body(publisher: WeightsPublisher, _: VersionCounter) -> None:
        failure = asyncio.create_task(publisher.failure())
        publisher.publish(1, weights(1.0, size))
        assert (await publisher.newer_than(-1)).version == 1
        assert not failure.done()
        monkeypatch.setattr(publisher_module, "save", fail)
        publisher.publish(2, weights(2.0, size))
        with pytest.raises(MemoryError, match="no room"):
            await failure
        # It is still there for who asks later, and other versions go out.
        with pytest.raises(MemoryError):
            await publisher.failure()
        monkeypatch.undo()
        publisher.publish(3, weights(3.0, size))
        assert (await publisher.newer_than(1)).version == 3

    run(tmp_path, body)
    assert "version 2 of the weights cannot be serialised: no room for it" in caplog.text
