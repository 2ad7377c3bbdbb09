"""A whole group without sockets: what it hands over, and what it does when inference breaks."""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest

from services.replay.shard import Shard
from shoal.clients.replay_shard import ITEM_OVERHEAD_BYTES, RESPONSE_OVERHEAD_BYTES, Append, Outcome
from shoal.config.connections import LimitsSection
from shoal.config.tree import ReplaySection
from shoal.envs.batch import EnvStep
from shoal.errors import SpecMismatchError, UserError
from shoal.records import ArraySpec, Life, Trajectory
from tests.unit.actor.harness import DEFAULT_LIMITS, E, Harness, T, breaking_at, run
from tests.unit.actor.twin import Replicas
from tests.unit.envs import counting


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_unrolls_follow_each_other_without_gaps(vectorization: str) -> None:
    async def test(harness: Harness) -> None:
        await harness.sink.until(6)
        await harness.stop()
        trajectories = harness.sink.trajectories
        for trajectory in trajectories:
            assert trajectory.unroll_length == T
            assert trajectory.num_envs == E
            counting.check_rows(trajectory)
        for before, after in pairwise(trajectories):
            for name in ("observation", "first"):
                np.testing.assert_array_equal(before.columns[name][-1], after.columns[name][0])
            assert after.columns["policy_version"][0, 0] == before.columns["policy_version"][-1, 0] + 1
        handed_over = sum(t.num_transitions for t in trajectories)
        assert harness.value("unrolls_total") == len(trajectories)
        assert harness.value("env_steps_total", mode="train") == handed_over + harness.value(
            "dropped_steps_total"
        )
        ends = sum(int((t.columns["terminated"] | t.columns["truncated"]).sum()) for t in trajectories)
        assert sum(len(t.episodes) for t in trajectories) == ends
        assert harness.value("episodes_total", mode="train", policy="policy") >= ends
        assert harness.value("trajectory_raw_bytes_total") > harness.value("trajectory_encoded_bytes_total")

    run(test, vectorization=vectorization)


def test_a_break_drops_the_open_unroll_and_goes_on_from_the_current_observation() -> None:
    """The stream breaks in every place of an unroll; nothing is stored twice, mixed or reset."""

    # Streams live for 1, 2, 3, ... 10 steps: shorter, as long as and longer than an unroll.
    breaks = list(accumulate(range(1, 11)))

    async def test(harness: Harness) -> None:
        await harness.sink.until(12)
        await harness.stop()
        backend = harness.replicas.backends["a"]
        for trajectory in harness.sink.trajectories:
            counting.check_rows(trajectory)
            versions = trajectory.columns["policy_version"]
            np.testing.assert_array_equal(versions[1:T], versions[: T - 1] + 1)
            streams = {bisect_right(breaks, version - 1) for version in versions[:T].ravel().tolist()}
            assert len(streams) == 1, "an unroll never spans two streams"
        assert harness.value("reconnects_total") == len(breaks)
        assert len(backend.hellos) == len(breaks) + 1
        assert len({hello.life for hello in backend.hellos}) == 1
        dropped = harness.value("dropped_steps_total")
        assert dropped > 0
        handed_over = sum(t.num_transitions for t in harness.sink.trajectories)
        autoresets = harness.value("autoreset_steps_total")
        assert harness.value("env_steps_total", mode="train") == handed_over + dropped
        assert autoresets == sum(T * E - t.num_transitions for t in harness.sink.trajectories)
        # Time of the environments only goes on: between two unrolls are the dropped steps.
        for before, after in pairwise(harness.sink.trajectories):
            old, new = before.columns["observation"][-1], after.columns["observation"][0]
            assert ((new[:, 1] > old[:, 1]) | ((new[:, 1] == old[:, 1]) & (new[:, 2] >= old[:, 2]))).all()
        assert not backend.sessions

    run(test, prepare=breaking_at(breaks))


def test_a_dead_replica_is_replaced_by_the_next_one() -> None:
    async def test(harness: Harness) -> None:
        await harness.sink.until(2)
        harness.replicas.kill("a")
        await harness.sink.until(6)
        assert harness.replicas.backends["b"].num_acts >= 2 * T
        await harness.stop()
        assert harness.value("reconnects_total") == 1

    run(test, "a", "b")


def test_a_new_replica_is_moved_to_between_two_unrolls() -> None:
    async def test(harness: Harness) -> None:
        await harness.sink.until(2)
        assert harness.replicas.backends["a"].num_acts == 0
        harness.replicas.down.clear()
        await harness.sink.until(20)
        moved_after = harness.replicas.backends["b"].num_acts
        assert moved_after % T == 0, "the move happened at the end of an unroll"
        assert harness.replicas.backends["a"].num_acts > 0
        assert not harness.replicas.backends["b"].sessions
        await harness.stop()
        assert harness.value("reconnects_total") == 0

    run(test, "a", "b", prepare=lambda replicas: replicas.down.add("a"))


def test_a_refusal_ends_the_group() -> None:
    def prepare(replicas: Replicas) -> None:
        replicas.backends["a"].refusal = SpecMismatchError("the run's spec is another")

    async def test(harness: Harness) -> None:
        with pytest.raises(SpecMismatchError, match="another"):
            await asyncio.wait_for(harness.task, 20)

    run(test, prepare=prepare)


@pytest.mark.parametrize("limit", ["max_tensor_bytes", "max_trajectory_bytes", "max_message_bytes"])
def test_a_trajectory_that_shards_would_refuse_is_the_users_to_mend(limit: str) -> None:
    async def test(harness: Harness) -> None:
        with pytest.raises(UserError, match=rf"bytes is above -?\d+ bytes \(limits\.{limit}.*: lower actor"):
            await asyncio.wait_for(harness.task, 20)
        assert harness.sink.trajectories == []

    run(test, limits=LimitsSection.model_construct(**{**dict(LimitsSection()), limit: 100}))


def test_the_largest_item_of_an_actor_is_the_largest_that_a_shard_takes() -> None:
    """To the byte: what the actor does not refuse the shard does not, either."""

    async def first_item(limits: LimitsSection) -> bytes:
        payloads: list[bytes] = []

        async def append(
            taken: Sequence[bytes],
            priorities: np.ndarray | None,
            *,
            stream: int | None,
            timeout_s: float | None,
        ) -> None:
            assert len(taken) == 1
            assert priorities is None
            assert stream is None
            payloads.extend(taken)
            await asyncio.Event().wait()

        harness = Harness("sync", Replicas("a"), evaluate=False, limits=limits)
        harness.sink.append = append  # type: ignore[method-assign]
        try:
            async with asyncio.timeout(20):
                while not payloads and not harness.task.done():
                    await asyncio.sleep(0)
            if harness.task.done():
                await harness.task
            return payloads[0]
        finally:
            harness.task.cancel()
            await asyncio.wait([harness.task])
            harness.env.close()

    def limits_of(max_message_bytes: int) -> LimitsSection:
        return LimitsSection.model_construct(
            **{**dict(DEFAULT_LIMITS), "max_message_bytes": max_message_bytes}
        )

    async def main() -> None:
        item = await first_item(DEFAULT_LIMITS)
        least = len(item) + RESPONSE_OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES
        assert await first_item(limits_of(least)) == item
        with pytest.raises(UserError, match="max_message_bytes"):
            await first_item(limits_of(least - 1))
        for max_message_bytes, outcome in ((least, Outcome.STORED), (least - 1, Outcome.REJECTED)):
            shard = Shard(ReplaySection(), limits_of(max_message_bytes))
            assert (await shard.append(Life("a", "b"), "train", Append(0, (item,)))).outcome is outcome

    asyncio.run(main())


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_environments_that_wait_for_processes_are_reset_and_stepped_off_the_loop(
    vectorization: str,
) -> None:
    async def test(harness: Harness) -> None:
        env, threads = harness.env, set[int]()

        def spy(call: Callable[[Any], dict[str, EnvStep]], argument: Any) -> dict[str, EnvStep]:
            threads.add(threading.get_ident())
            return call(argument)

        env.reset, env.step = partial(spy, env.reset), partial(spy, env.step)  # type: ignore[method-assign]
        await harness.sink.until(2)
        assert len(threads) == 1
        assert (threads == {threading.get_ident()}) == (vectorization == "sync")

    run(test, vectorization=vectorization)


def test_time_to_connect_counts_as_waiting_for_actions() -> None:
    async def test(harness: Harness) -> None:
        await harness.sink.until(1)
        harness.replicas.kill("a")
        before = harness.value("phase_seconds_total", phase="wait_action")

        async with asyncio.timeout(20):
            while len(harness.slept) < 20:
                await asyncio.sleep(0.001)
        began = time.perf_counter()
        await asyncio.sleep(0.05)
        harness.replicas.down.clear()
        lasted = time.perf_counter() - began
        count = len(harness.sink.trajectories)
        await harness.sink.until(count + 1)
        assert harness.value("phase_seconds_total", phase="wait_action") - before >= lasted

    run(test)


def test_stopping_ends_a_wait_for_actions_at_once() -> None:
    async def test(harness: Harness) -> None:
        await harness.sink.until(1)
        harness.replicas.backends["a"].hold.clear()
        assert not harness.group.is_handing_over
        await harness.stop()
        assert not harness.replicas.backends["a"].sessions

    run(test)


def test_stopping_lets_a_handover_finish() -> None:
    async def test(harness: Harness) -> None:
        await harness.sink.until(1)
        harness.sink.room.clear()
        async with asyncio.timeout(20):
            while not harness.sink.num_waiting:
                await asyncio.sleep(0)
        # What a kill would lose now.
        assert (harness.group.is_handing_over, harness.group.num_recording) == (True, 0)
        assert harness.group.unroll_size == T * E
        harness.group.stop()
        await asyncio.sleep(0)
        assert not harness.task.done()
        before = len(harness.sink.trajectories)
        harness.sink.room.set()
        await asyncio.wait_for(harness.task, 20)
        assert len(harness.sink.trajectories) == before + 1

    run(test)


def test_an_evaluator_is_greedy_and_stores_nothing() -> None:
    async def test(harness: Harness) -> None:
        async with asyncio.timeout(20):
            while harness.replicas.backends["a"].num_acts < 10 * T:
                await asyncio.sleep(0)
        await harness.stop()
        assert all(hello.greedy for hello in harness.replicas.backends["a"].hellos)
        assert harness.sink.trajectories == []
        assert harness.value("episodes_total", mode="evaluate", policy="policy") > 0
        assert harness.value("unrolls_total") == 0

    run(test, evaluate=True)


def test_what_the_policy_remembers_is_stored_once_per_unroll() -> None:
    def prepare(replicas: Replicas) -> None:
        frames = ArraySpec("frames.observation", "float32", (2, 3))
        replicas.backends["a"].state = (ArraySpec("recurrent.h", "float32", (1,)), frames)

    async def test(harness: Harness) -> None:
        await harness.sink.until(12)
        await harness.stop()
        before: Trajectory | None = None
        for trajectory in harness.sink.trajectories:
            columns = trajectory.columns
            # The tiny backend tells the number of its reply, which is that of the first row.
            remembered = columns["initial.recurrent.h"]
            assert remembered.shape == (1, E, 1)
            np.testing.assert_array_equal(remembered[0, :, 0], columns["policy_version"][0])
            history = columns["initial.frames.observation"]
            assert history.shape == (1, E, 2, 3)
            if before is None:
                np.testing.assert_array_equal(history[0, :, 0], columns["observation"][0])
                np.testing.assert_array_equal(history[0, :, 1], columns["observation"][0])
            else:
                np.testing.assert_array_equal(history[0], obvious_history(before, 2))
            before = trajectory

    run(test, prepare=prepare)


def obvious_history(trajectory: Trajectory, num_frames: int) -> np.ndarray:
    """The frames before the last row of an unroll that is longer than the history, env by env."""
    columns = trajectory.columns
    histories = []
    for env in range(trajectory.num_envs):
        shown: list[np.ndarray] = []
        for row in range(trajectory.unroll_length + 1):
            frame = columns["observation"][row, env]
            if columns["first"][row, env] or not shown:
                shown = [frame] * (num_frames + 1)
            shown = [*shown[1:], frame]
        histories.append(shown[:-1])
    return np.array(histories)
