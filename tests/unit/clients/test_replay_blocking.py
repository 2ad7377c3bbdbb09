"""The blocking writer: what is one unroll after another, what was taken, and what is refused at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import numpy as np
import pytest

from shoal.clients.loop_thread import ClientLoop
from shoal.clients.replay_blocking import Writer
from shoal.clients.replay_shard import Ack, Outcome
from shoal.clients.replay_writer import ReplayWriter, WriterStats
from shoal.clients.replay_writer_link import WriterLink
from shoal.config.connections import LimitsSection
from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.records import Episode
from shoal.wire import decode_trajectory
from tests.unit.clients.directories import ChangingDirectory
from tests.unit.clients.writing import PAYLOADS, writing
from tests.unit.replay.virtual_time import run

T = TypeVar("T")
NUM_STEPS = 4


class HereLoop:
    """Runs calls in the caller's thread."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(coroutine)


class ScriptedWriter:
    """Takes every append, or raises what it is told to."""

    def __init__(self) -> None:
        self.stats = WriterStats()
        self.failure = None
        self.error: BaseException | None = None
        self.taken: list[bytes] = []
        self.priorities: list[np.ndarray | None] = []

    async def append(
        self, payloads: list[bytes], priorities: np.ndarray | None, stream: int | None, timeout_s: float
    ) -> None:
        if self.error is not None:
            raise self.error
        self.taken += payloads
        self.priorities.append(priorities)

    async def flush(self, timeout_s: float) -> int:
        return 0

    def reject(self, number: int) -> None:
        self.stats.num_rejected += number
        self.stats.last_rejection = "a NaN"

    @property
    def steps(self) -> list[tuple[int, float]]:
        """First step and value of each unroll of the first environment."""
        decoded = [decode_trajectory(payload, LimitsSection()) for payload in self.taken]
        return [(t.first_step, float(t.columns["reward"][0, 0])) for t in decoded if t.stream == 0]


def blocking(kind: str = "sequence") -> tuple[Writer, ScriptedWriter]:
    inner = ScriptedWriter()
    writer = Writer(
        cast(ClientLoop, HereLoop()),
        cast(ReplayWriter, inner),
        "mine",
        kind,
        lambda closed: None,
        LimitsSection(max_message_bytes=1 << 16),
        sticky=True,
        timeout_s=1.0,
    )
    return writer, inner


def unroll(number: float, num_envs: int | None = 2) -> dict[str, np.ndarray]:
    shape: tuple[int, ...] = (NUM_STEPS + 1,) if num_envs is None else (NUM_STEPS + 1, num_envs)
    return {"reward": np.full(shape, number, np.float32), "first": np.zeros(shape, bool)}


def test_unrolls_continue_each_other_unless_they_say_no() -> None:
    writer, inner = blocking()
    for number, continues in enumerate([True, True, False, True]):
        writer.append(unroll(number), continues=continues)
    assert inner.steps == [(0, 0), (4, 1), (9, 2), (13, 3)]


@pytest.mark.parametrize("num_envs", [None, 2])
def test_the_state_before_an_unroll_goes_with_each_environment(num_envs: int | None) -> None:
    writer, inner = blocking()
    envs = () if num_envs is None else (num_envs,)
    core = np.arange(3 * (num_envs or 1), dtype=np.float32).reshape(1, *envs, 3)
    writer.append({**unroll(0, num_envs), "initial.core": core})
    decoded = [decode_trajectory(payload, LimitsSection()) for payload in inner.taken]
    assert len(decoded) == (num_envs or 1)
    for env, trajectory in enumerate(decoded):
        np.testing.assert_array_equal(trajectory.columns["initial.core"], core.reshape(1, -1, 1, 3)[:, env])
    # A row for each step, and no row for what is no axis of environments either.
    for wrong in (np.repeat(core, NUM_STEPS + 1, axis=0), core[0]):
        with pytest.raises(InvalidArgumentError, match=r"'initial.core' has shape .*: a state has one row"):
            writer.append({**unroll(1, num_envs), "initial.core": wrong})


@pytest.mark.parametrize("error", [UnavailableError("no room"), KeyboardInterrupt()])
def test_an_unroll_that_is_appended_again_continues_the_one_before(error: BaseException) -> None:
    writer, inner = blocking()
    writer.append(unroll(0))
    for _ in range(3):
        inner.error = error
        with pytest.raises(type(error)):
            writer.append(unroll(1))
    inner.error = None
    writer.append(unroll(1))
    writer.append(unroll(2))
    assert inner.steps == [(0, 0), (4, 1), (8, 2)]


def test_the_unroll_after_one_that_was_given_up_does_not_continue_the_one_before_it() -> None:
    writer, inner = blocking()
    writer.append(unroll(0))
    inner.error = UnavailableError("no room")
    with pytest.raises(UnavailableError):
        writer.append(unroll(1))
    inner.error = None
    writer.append(unroll(2))
    with pytest.raises(InvalidArgumentError):
        writer.append({**unroll(3), "first": np.zeros(3)})
    writer.append(unroll(4))
    writer.append(unroll(5))
    assert inner.steps == [(0, 0), (9, 2), (14, 4), (18, 5)]


def test_an_append_that_tells_of_an_earlier_rejection_was_taken() -> None:
    writer, inner = blocking("queue")
    writer.append(unroll(0))
    writer.append(unroll(1))
    inner.reject(1)
    with pytest.raises(
        InvalidArgumentError,
        match=r"^this append was taken, but table 'mine' has rejected 1 of the 2 before it, .*: a NaN$",
    ):
        writer.append(unroll(2))
    writer.append(unroll(3))
    inner.reject(2)
    with pytest.raises(InvalidArgumentError, match=r"^table 'mine' has rejected 2 of 4 appends, .*: a NaN$"):
        writer.flush()
    writer.flush()
    assert [number for _, number in inner.steps] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("kind", "num_envs", "shape"),
    [
        ("transition", 2, (4, 2)),
        ("transition", 1, (4, 1)),
        ("transition", 1, (4,)),
        ("transition", None, (4,)),
        ("sequence", 2, (2,)),
        ("sequence", 1, (1,)),
        ("sequence", None, ()),
    ],
)
def test_shapes_of_priorities(kind: str, num_envs: int | None, shape: tuple[int, ...]) -> None:
    writer, inner = blocking(kind)
    writer.append(unroll(0, num_envs), priorities=np.ones(shape))
    (given,) = inner.priorities
    assert given is not None
    assert given.size == np.prod(shape)


@pytest.mark.parametrize(
    ("kind", "priorities", "complaint"),
    [
        (
            "transition",
            np.ones((2, 4)),
            r"shape \[2, 4\] for 4 steps of 2 .*: a transition table takes \[4, 2\]$",
        ),
        ("transition", np.ones(8), r"shape \[8\]"),
        ("sequence", np.ones((2, 1)), r"shape \[2, 1\] .*: a sequence table takes \[2\]$"),
        ("sequence", 1.0, r"shape \[\]"),
        ("queue", np.ones((4, 2)), "a queue, which has none: leave them out"),
        ("sequence", ["high", "low"], "no array of numbers"),
    ],
)
def test_other_priorities_are_refused_at_once(kind: str, priorities: Any, complaint: str) -> None:
    writer, inner = blocking(kind)
    with pytest.raises(InvalidArgumentError, match=complaint):
        writer.append(unroll(0), priorities=priorities)
    assert not inner.taken


@pytest.mark.parametrize("kind", ["queue", "sequence", "transition"])
def test_more_episodes_than_steps_are_refused(kind: str) -> None:
    writer, inner = blocking(kind)
    writer.append(unroll(0), episodes=[Episode(1.0, 1)] * 8)
    with pytest.raises(InvalidArgumentError, match="9 episodes for 4 steps of 2 environments"):
        writer.append(unroll(0), episodes=[Episode(1.0, 1)] * 9)
    assert len(inner.taken) == (2 if kind == "sequence" else 1)


@pytest.mark.parametrize("at_s", [0.5, 1.0, 1.5])
def test_an_append_is_taken_or_its_time_is_up_but_never_both(at_s: float) -> None:
    """The window gets room before, when and after the time is up."""

    async def main() -> None:
        async with writing(ChangingDirectory(), max_items=1) as writer:
            await writer.append(PAYLOADS[0])
            (first,) = writer._unacked.values()
            loop = asyncio.get_running_loop()
            waiting = loop.create_task(writer.append(PAYLOADS[1], timeout_s=1.0))
            # After the append's own clock, so that on a tie its time is up first.
            await asyncio.sleep(0)
            loop.call_later(
                at_s,
                lambda: writer.settle(cast(WriterLink, None), first, Ack(first.sequence, Outcome.STORED)),
            )
            (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
            assert (outcome is None) == (at_s <= 1.0)
            assert outcome is None or isinstance(outcome, UnavailableError)
            await asyncio.sleep(1.0)
            assert writer.num_unacked == (outcome is None)

    run(main())


@pytest.mark.parametrize("kind", ["sequence", "transition", "queue"])
def test_what_does_not_fit_into_a_message_is_refused_and_everything_else_goes_on(kind: str) -> None:
    writer, inner = blocking(kind)
    large = unroll(0, num_envs=20_000)
    large["reward"] = np.random.default_rng(0).random(large["reward"].shape).astype(np.float32)
    with pytest.raises(InvalidArgumentError, match=r"above 55296 bytes .*append fewer environments"):
        writer.append(large)
    writer.append(unroll(1))
    assert [value for _, value in inner.steps] == [1.0]


def test_a_thread_waits_for_another_ones_append_no_longer_than_it_said() -> None:
    writer, _ = blocking()
    with writer._in_turn(1.0), pytest.raises(UnavailableError, match="another thread's append"):
        writer.append(unroll(0), timeout_s=0.0)
    writer.append(unroll(0), timeout_s=0.0)


def test_columns_that_are_no_arrays_are_named() -> None:
    writer, _ = blocking()
    with pytest.raises(InvalidArgumentError, match="column 'reward' is no array"):
        writer.append({"reward": [[1.0], [1.0, 2.0]], "first": np.zeros(2, bool)})
