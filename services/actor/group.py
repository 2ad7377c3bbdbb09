"""One group of environments: acts, records, hands over unrolls; several groups take turns on the event loop.

Started by `services.actor.loop`, one task per group and policy. Environments are stepped inline where that is
possible, which is fastest for vectorised ones.
Knows streams and sinks by their protocols, so that it is tested without sockets.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import numpy as np

from services.actor.link import InferenceLink
from services.actor.lockstep import Part
from services.actor.metrics import ActorMetrics
from services.actor.priorities import FirstPriorities
from services.actor.split import split_by_env, split_by_share
from services.actor.unroll import UnrollBuilder
from services.actor.waiting import WaitLog
from shoal.clients.inference import ActReply, ActStream
from shoal.clients.replay_shard import PAYLOAD_OVERHEAD_BYTES, max_item_bytes
from shoal.config.connections import LimitsSection
from shoal.envs.batch import EnvStep
from shoal.envs.episodes import EpisodeTracker
from shoal.errors import UnavailableError, UserError
from shoal.records import ACTION, Trajectory
from shoal.wire import encode_trajectory

log = logging.getLogger(__name__)

# Of one in a message.
_PRIORITY_BYTES = 4


class Sink(Protocol):
    """Where encoded trajectories go: `ReplayWriter`."""

    async def append(
        self,
        payloads: Sequence[bytes],
        priorities: np.ndarray | None,
        *,
        stream: int | None,
        timeout_s: float | None,
    ) -> None:
        """Returns once they are taken, as a whole; waits while too much is not acknowledged.

        Appends of the same `stream` go to the same shard, in order, as long as that is there.
        """
        ...


class Group:
    """E slots of environments with one stream to inference. `run` ends only by `stop` or an error."""

    def __init__(
        self,
        part: Part,
        link: InferenceLink,
        sink: Sink | None,
        metrics: ActorMetrics,
        waits: WaitLog,
        *,
        seed: int,
        unroll_length: int,
        limits: LimitsSection,
        index: int = 0,
        unrolls: int | None = None,
        priorities: FirstPriorities | None = None,
        synchronous: bool = False,
        shares: Sequence[slice] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Without a sink (an evaluator) unrolls only count episodes.

        `index`: of this group among the actor's. `unrolls`: hand over a trajectory per environment, so many
        of which make a sequence; None: one trajectory of all. `priorities`: for this group alone; None: the
        table sets them. `synchronous`: wait for newer weights after each unroll that was handed over.
        `shares`: hand over a trajectory for each of these parts of the slots, if there are several.
        """
        self._part = part
        self._link = link
        self._sink = sink
        self._metrics = metrics
        self._policy_metrics = metrics.of(part.policy)
        self._waits = waits
        self._seed = seed
        self._unroll_length = unroll_length
        self._limits = limits
        self._index = index
        self._unrolls = unrolls
        self._priorities = priorities
        # Unrolls that make a sequence together belong on one shard; others go wherever there is room.
        self._stream = index if (unrolls or 1) > 1 else None
        self._synchronous = synchronous
        self._shares = shares
        # Of the weights that may act. It follows what was handed over, not what was dropped: nobody trains
        # on that, so nothing newer may ever come of it.
        self._min_version = 0
        # Policies that wait for their versions and for each other's actions would wait in a circle, were
        # their unrolls not those of the same steps.
        self._ends_with_others = synchronous and sink is not None and part.has_others
        self._clock = clock
        self._episodes = EpisodeTracker(part.num_slots)
        self._shown: EnvStep | None = None
        self._builder: UnrollBuilder | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._must_finish = False
        # Transitions: what the replay was given, and what was never recorded to the end.
        self.num_handed_over = 0
        self.num_dropped = 0

    @property
    def policy(self) -> str:
        return self._part.policy

    @property
    def num_recording(self) -> int:
        """Transitions of the open unroll."""
        return 0 if self._builder is None else self._builder.num_transitions

    @property
    def unroll_size(self) -> int:
        """Steps of a whole unroll, autoresets included."""
        return self._unroll_length * self._part.num_slots

    @property
    def is_handing_over(self) -> bool:
        """An unroll waits to be taken: it is neither recorded nor with a writer."""
        return self._must_finish

    async def run(self) -> None:
        """Raises UserError if inference refuses the group."""
        self._task = asyncio.current_task()
        try:
            self._shown = await self._part.reset(self._seed)
            while not self._stopping:
                with self._metrics.phases.measure("wait_action"):
                    stream = await self._link.connect()
                await self._act_until_break(stream, self._builder_for(stream))
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        finally:
            self._drop_open_unroll()
            await self._link.close()

    def stop(self) -> None:
        """Ends `run`: at once, but for a handover or a step in a thread that is under way."""
        self._stopping = True
        if self._task is not None and not self._must_finish:
            self._task.cancel()

    async def _act_until_break(self, stream: ActStream, builder: UnrollBuilder) -> None:
        """Unroll after unroll, until the stream breaks or the group is to move to another replica."""
        try:
            while not self._stopping:
                await self._fill(stream, builder)
                if builder.full and not self._is_lost_by_others():
                    await self._hand_over(builder)
                else:
                    self._drop_open_unroll()
                if self._link.move_ready():
                    return
        except UnavailableError as error:
            self._metrics.reconnects.inc()
            if self._ends_with_others and not builder.starting:
                self._part.lose_unroll(self._end_of_unroll())
            dropped = self._drop_open_unroll()
            log.info("lost inference (%s); dropped %d steps of an open unroll", error, dropped)

    async def _fill(self, stream: ActStream, builder: UnrollBuilder) -> None:
        """The hot loop: everything in it runs once per step."""
        part, episodes, clock = self._part, self._episodes, self._clock
        wait_action = env_step = 0.0
        end = self._end_of_unroll()
        try:
            while episodes.num_steps < end and not self._stopping:
                asked = clock()
                reply = await self._ask(stream, builder)
                answered = clock()
                action = reply.outputs[ACTION]
                shown = part.step_now(action) if part.is_plain else await part.step(action)
                stepped = clock()
                self._shown = shown
                builder.add(reply, shown, episodes.add(shown, reply.policy_version))
                wait_action += answered - asked
                env_step += stepped - answered
        finally:
            self._metrics.phases.add("wait_action", wait_action)
            self._metrics.phases.add("env_step", env_step)

    def _end_of_unroll(self) -> int:
        """The step of the environments that ends an unroll which begins now.

        After one that was dropped it comes early if unrolls are to end with those of the other policies.
        """
        num_steps, length = self._episodes.num_steps, self._unroll_length
        return num_steps + length - (num_steps % length if self._ends_with_others else 0)

    def _is_lost_by_others(self) -> bool:
        """Handed over all the same, it would put this policy ahead of the others by a version, for ever."""
        return self._ends_with_others and self._part.lost_unroll == self._episodes.num_steps

    def _ask(self, stream: ActStream, builder: UnrollBuilder) -> Awaitable[ActReply]:
        starting = builder.starting
        # Of the first step alone: on one stream versions never go back, and once the longest wait is over,
        # the steps that follow must not begin another one each.
        min_version = self._min_version if starting else 0
        asking = stream.act(builder.observation, builder.first, starting, min_version)
        return self._newer(asking) if min_version else asking

    async def _newer(self, asking: Awaitable[ActReply]) -> ActReply:
        """The first step of a synchronous unroll: if it takes long, the log says why."""
        with self._waits.waiting_for(
            "newer weights: the learner trains once it has unrolls of learner.batch_envs environments"
        ):
            return await asking

    async def _hand_over(self, builder: UnrollBuilder) -> None:
        metrics = self._metrics
        num_transitions = builder.num_transitions
        metrics.env_steps.inc(num_transitions)
        metrics.autoreset_steps.inc(self._unroll_length * self._part.num_slots - num_transitions)
        self._policy_metrics.add(builder.episodes)
        self._policy_metrics.policy_version.set(builder.policy_version)
        if self._sink is None:
            builder.carry_over()
            return
        start = self._clock()
        trajectory = builder.trajectory()
        priorities = None if self._priorities is None else self._priorities.of(trajectory.columns)
        payloads = self._encode(trajectory, 0 if priorities is None else priorities.size)
        if self._synchronous:
            # More than the oldest: an unroll that newer weights came in the midst of is not trained on.
            self._min_version = builder.oldest_version + 1
        builder.carry_over()
        encoded = self._clock()
        metrics.phases.add("encode", encoded - start)
        await self._append(self._sink, payloads, priorities)
        self.num_handed_over += num_transitions
        metrics.phases.add("wait_ack", self._clock() - encoded)

    def _encode(self, trajectory: Trajectory, num_priorities: int) -> list[bytes]:
        payloads = [encode_trajectory(part) for part in self._parts(trajectory)]
        num_bytes = sum(map(len, payloads))
        self._check_encoded(payloads, num_bytes + _PRIORITY_BYTES * num_priorities)
        self._metrics.raw_bytes.inc(sum(column.nbytes for column in trajectory.columns.values()))
        self._metrics.encoded_bytes.inc(num_bytes)
        return payloads

    def _parts(self, trajectory: Trajectory) -> list[Trajectory]:
        if self._unrolls is None:
            return [trajectory] if len(self._shares) < 2 else split_by_share(trajectory, self._shares)
        first_step = self._episodes.num_steps - trajectory.unroll_length
        return split_by_env(trajectory, self._index * trajectory.num_envs, first_step)

    def _check_encoded(self, payloads: Sequence[bytes], num_bytes: int) -> None:
        """A shard takes only what fits into one message, on its way in and, as a sequence, on its way out."""
        most, limit = max_item_bytes(self._limits.max_message_bytes), "max_message_bytes less headers"
        longest = max(map(len, payloads))
        _check_size("encoded trajectory", longest, most // (self._unrolls or 1), limit)
        num_bytes += PAYLOAD_OVERHEAD_BYTES * (len(payloads) - 1)
        _check_size("encoded unroll of a group", num_bytes, most, limit)

    async def _append(self, sink: Sink, payloads: Sequence[bytes], priorities: np.ndarray | None) -> None:
        self._must_finish = True
        try:
            with self._waits.waiting_for("replay to take a trajectory"):
                await sink.append(payloads, priorities, stream=self._stream, timeout_s=None)
        finally:
            self._must_finish = False
        self._metrics.unrolls.inc()

    def _builder_for(self, stream: ActStream) -> UnrollBuilder:
        welcome, part, builder = stream.welcome, self._part, self._builder
        if builder is None or (builder.outputs, builder.state) != (welcome.outputs, welcome.state):
            assert self._shown is not None
            builder = self._builder = UnrollBuilder(part.spec, welcome, self._unroll_length, part.num_slots)
            builder.start(self._shown)
            if self._sink is not None:
                self._check_sizes(builder)
        builder.begin_stream()
        return builder

    def _check_sizes(self, builder: UnrollBuilder) -> None:
        """Shards would reject every trajectory beyond these limits: say so before the first step."""
        sizes = builder.column_sizes
        limits = self._limits
        _check_size("trajectory column", max(sizes), limits.max_tensor_bytes, "max_tensor_bytes")
        _check_size("trajectory", sum(sizes), limits.max_trajectory_bytes, "max_trajectory_bytes")

    def _drop_open_unroll(self) -> int:
        """What the environments show now stays; it starts the next unroll."""
        builder = self._builder
        if builder is None:
            return 0
        dropped = builder.num_transitions
        self._metrics.env_steps.inc(dropped)
        self._metrics.dropped_steps.inc(dropped)
        self.num_dropped += dropped
        self._policy_metrics.add(builder.episodes)
        builder.carry_over()
        return dropped


def _check_size(what: str, num_bytes: int, max_bytes: int, limit: str) -> None:
    if num_bytes > max_bytes:
        raise UserError(
            f"{what} of {num_bytes} bytes is above {max_bytes} bytes (limits.{limit}): lower "
            "actor.unroll_length or actor.envs, raise actor.groups, or raise the limit for all services"
        )
