"""The actor's process: builds the groups, runs them until told to stop, and drains.

`run_actor` is what `__main__` hands to `run_service`. Everything is on the one event loop. An actor keeps
nothing: it can be killed at any time, and a new life under a new run_id takes its place.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing

from services.actor.assignment import Seat
from services.actor.exploration import epsilons
from services.actor.group import Group, Sink
from services.actor.link import InferenceLink
from services.actor.lockstep import Lockstep, Part
from services.actor.metrics import ActorMetrics
from services.actor.priorities import first_priorities
from services.actor.shares import DividedSink, slots_by_rank
from services.actor.waiting import WaitLog
from shoal.clients.inference import ActHello
from shoal.clients.inference_grpc import GrpcInferenceClient
from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_writer import ReplayWriter
from shoal.config import Config
from shoal.config.policies import policy_places, replay_tables, share_tables
from shoal.config.ranks import env_shares
from shoal.config.tables import SequenceTable
from shoal.envs.batch import BatchEnv
from shoal.envs.hang import HangWatch
from shoal.envs.make import make_batch_env
from shoal.envs.previous import show_previous
from shoal.envs.restarts import Restarts
from shoal.heap import keep_freed_memory
from shoal.metrics import start_metrics_server
from shoal.records import EnvSpec, Life
from shoal.rpc.addresses import Address, AddressBook
from shoal.rpc.process import ServiceContext
from shoal.rpc.server import RpcServer

log = logging.getLogger(__name__)

REPORT_EVERY_S = 1.0
# Of rpc.drain_s: kept for closing after the last ack.
CLOSING_S = 1.0


async def run_actor(config: Config, context: ServiceContext) -> None:
    """Steps environments until `context.stopping`. Raises UserError for what only the user can mend."""
    keep_freed_memory()
    section = config.actor
    metrics = ActorMetrics(context.registry, section.mode)
    metrics.envs.set(section.envs)
    async with AsyncExitStack() as stack:
        # One per group, and before anything that threads or forks could disturb.
        restarts, watch = Restarts(config.env.max_restarts), HangWatch(config.env.step_timeout_s)
        envs = []
        for _ in range(section.groups):
            env = make_batch_env(config.env, section.envs // section.groups, restarts)
            watched = stack.enter_context(closing(watch.watch(env)))
            envs.append(show_previous(watched) if config.policy.needs_previous else watched)
        watch.start()
        stack.callback(watch.close)
        endpoint = start_metrics_server(section.listen.metrics, context.registry)
        stack.callback(endpoint.close)
        server = RpcServer("", section.listen.health, config.security, config.limits, config.rpc)
        stack.push_async_callback(server.drain, 0)
        await server.start()
        await context.announce(health=server.health_address, metrics=endpoint.address)
        actor = Actor(config, envs, metrics)
        await actor.run(context.stopping, server)


def group_seed(run_seed: int, life: Life, group: int) -> int:
    """Differs between groups and between lives: an actor that is killed often must not begin with the same
    episodes every time. Environments of a group count on from it."""
    digest = hashlib.sha256(f"{run_seed}/{group}/{life.actor_id}/{life.run_id}".encode()).digest()
    # Some simulators take seeds of 31 bits only.
    return int.from_bytes(digest[:8], "big") % (1 << 30)


class Actor:
    """One life of an actor: its groups, one for each policy in each batch of environments, and the writers
    that the groups of a policy share."""

    def __init__(self, config: Config, envs: Sequence[BatchEnv], metrics: ActorMetrics) -> None:
        self._config = config
        self._metrics = metrics
        self._waits = WaitLog()
        self._life = Life(config.actor.id, secrets.token_hex(8))
        self._inference = AddressBook(config.addresses.inference, config.rpc)
        self._envs = envs
        # By policy, and of each by rank of the learner if its unrolls are divided among several.
        self._tables = {place.name: share_tables(config, place) for place in policy_places(config)}
        slots = envs[0].slots if config.actor.mode == "train" else {}
        self._writers = {
            table: self._make_writer(table, slots[policy].spec)
            for policy in slots
            for table in self._tables[policy]
        }
        # Of the largest trajectory that goes to a table.
        self._num_slots: dict[str, int] = {}
        self._locksteps = [Lockstep(env) for env in envs]
        self._groups = [
            self._make_group(index, part)
            for index, lockstep in enumerate(self._locksteps)
            for part in lockstep.parts
        ]

    async def run(self, stopping: asyncio.Event, server: RpcServer) -> None:
        log.info(
            "life %s: %d environments in %d groups, %s",
            self._life.run_id,
            self._config.actor.envs,
            len(self._envs),
            self._config.actor.mode,
        )
        for writer in self._writers.values():
            writer.start()
        groups = [asyncio.create_task(group.run()) for group in self._groups]
        others = [
            asyncio.create_task(self._inference.watch(_log_change)),
            asyncio.create_task(self._report()),
            asyncio.create_task(stopping.wait()),
        ]
        try:
            done, _ = await asyncio.wait([*groups, *others], return_when=asyncio.FIRST_COMPLETED)
            # Groups only end by errors. While stopping those are no news: the same signal may have ended
            # the processes of asynchronous environments.
            if not stopping.is_set():
                for task in done:
                    task.result()
            server.set_serving(False)
            await self._drain(groups)
        finally:
            for task in (*groups, *others):
                task.cancel()
            await asyncio.gather(*groups, *others, return_exceptions=True)
            for writer in self._writers.values():
                await writer.close()
            for lockstep in self._locksteps:
                await lockstep.close()

    async def _drain(self, groups: Sequence[asyncio.Task[None]]) -> None:
        """Stop stepping; then wait for the acks of what was handed over, as long as there is time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(self._config.rpc.drain_s - CLOSING_S, 0.0)
        for group in self._groups:
            group.stop()
        await asyncio.wait(groups, timeout=deadline - loop.time())
        unacked: dict[str, int] = {}
        for table, writer in self._writers.items():
            unacked[table] = await writer.flush(max(deadline - loop.time(), 0.0))
            self._metrics.follow_writer(table, writer.stats)
        for policy in sorted({group.policy for group in self._groups} if self._writers else ()):
            tables = self._tables[policy]
            mine = [group for group in self._groups if group.policy == policy]
            log.info(
                "drained %s: %d trajectories acked, %d not; %d steps handed over, %d dropped",
                policy,
                sum(self._writers[table].stats.num_acked for table in tables),
                sum(unacked[table] for table in tables),
                sum(group.num_handed_over for group in mine),
                sum(group.num_dropped for group in mine),
            )

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            self._waits.report()
            self._metrics.follow_envs(sum(env.num_restarts for env in self._envs))
            for table, writer in self._writers.items():
                self._metrics.follow_writer(table, writer.stats)
            self._report_open()

    def _report_open(self) -> None:
        """What would be lost if this process were killed now. An evaluator stores nothing anyway."""
        recording = sum(group.num_recording for group in self._groups) if self._writers else 0
        unacked = sum(group.unroll_size for group in self._groups if group.is_handing_over)
        for table, writer in self._writers.items():
            unacked += writer.num_unacked * self._num_slots[table] * self._config.actor.unroll_length
        self._metrics.follow_open(recording=recording, unacked=unacked)

    def _make_group(self, index: int, part: Part) -> Group:
        config, section = self._config, self._config.actor
        link = InferenceLink(
            Seat(section.id, index, section.groups),
            self._hello(index, part),
            lambda: self._inference.current,
            self._dial_inference,
            max_backoff_s=config.rpc.max_backoff_s,
            retry_home_s=config.rpc.resolve_every_s,
            waits=self._waits,
        )
        table = replay_tables(config)[self._tables[part.policy][0]]
        sink, shares = self._sink(index, part)
        return Group(
            part,
            link,
            sink,
            self._metrics,
            self._waits,
            seed=group_seed(config.run.seed, self._life, index),
            unroll_length=section.unroll_length,
            limits=config.limits,
            index=index,
            unrolls=table.unrolls if isinstance(table, SequenceTable) else None,
            priorities=first_priorities(config.algorithm, table),
            synchronous=config.algorithm.is_synchronous,
            shares=shares,
        )

    def _sink(self, index: int, part: Part) -> tuple[Sink | None, Sequence[slice]]:
        """Where a group's unrolls go, and the parts of its slots that they are divided into."""
        if not self._writers:
            return None, ()
        section, tables = self._config.actor, self._tables[part.policy]
        per_group = section.envs // section.groups
        envs = range(index * per_group, (index + 1) * per_group)
        slots = slots_by_rank(env_shares(section.envs, len(tables)), envs, part.num_slots)
        for rank, share in slots.items():
            largest = self._num_slots.get(tables[rank], 0)
            self._num_slots[tables[rank]] = max(largest, share.stop - share.start)
        writers = [self._writers[tables[rank]] for rank in slots]
        return writers[0] if len(writers) == 1 else DividedSink(writers), tuple(slots.values())

    def _hello(self, index: int, part: Part) -> ActHello:
        section, exploration = self._config.actor, self._config.exploration
        if section.mode == "evaluate":
            return ActHello(self._life, part.spec, part.num_slots, greedy=True, policy=part.policy)
        epsilon = epsilons(
            exploration, section.id, index * part.num_slots, part.num_slots, section.groups * part.num_slots
        )
        return ActHello(
            self._life,
            part.spec,
            part.num_slots,
            policy=part.policy,
            epsilon=epsilon,
            noise=exploration.noise,
            max_wait_s=self._config.algorithm.version_wait_s,
        )

    def _make_writer(self, table: str, spec: EnvSpec) -> ReplayWriter:
        config = self._config
        return ReplayWriter(
            AddressBook(config.addresses.replay, config.rpc),
            self._dial_replay,
            self._life,
            table,
            config.actor,
            config.rpc,
            declared=(*spec.observation, spec.action.array_spec()),
        )

    def _dial_inference(self, address: Address) -> GrpcInferenceClient:
        return GrpcInferenceClient(address, self._config.security, self._config.limits, self._config.rpc)

    def _dial_replay(self, address: Address) -> GrpcReplayClient:
        return GrpcReplayClient(address, self._config.security, self._config.limits, self._config.rpc)


def _log_change(addresses: tuple[Address, ...]) -> None:
    log.info("inference is at %s", ", ".join(address.target for address in addresses))
