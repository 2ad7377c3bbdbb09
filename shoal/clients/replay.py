"""The replay as a library: write trajectories, sample batches, send priorities back.

`docs/replay-client.md` shows how. For programs that use nothing else of shoal. `ReplayClient` is for
ordinary, blocking code: the connections live on an event loop in a thread of their own, and every object
here may be used from any thread. Programs with an event loop use what it is made of: `ReplayWriter`,
`BatchSampler` and `ReplaySampler`, which are exported here too. Whatever goes wrong is a `ShoalError`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from types import TracebackType

import numpy as np
from pydantic import SecretStr, ValidationError

from shoal.clients.loop_thread import ClientLoop
from shoal.clients.replay_batches import BatchSampler, BatchStats
from shoal.clients.replay_blocking import Batch, Sampler, Writer
from shoal.clients.replay_draw import ItemRefs, SampledBatch
from shoal.clients.replay_grpc import GrpcReplayClient
from shoal.clients.replay_sampler import ReplaySampler
from shoal.clients.replay_shard import DEFAULT_TIMEOUT_S, TableStats
from shoal.clients.replay_stats import ReplayStats, gather_stats
from shoal.clients.replay_weights import Beta, anneal, importance_weights
from shoal.clients.replay_writer import ReplayWriter, WriterStats
from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.config.tree import ActorSection
from shoal.errors import (
    ConfigError,
    InvalidArgumentError,
    NotFoundError,
    ShoalError,
    UnavailableError,
    UserError,
)
from shoal.records import ArraySpec, Episode, Life, Trajectory
from shoal.rpc.addresses import Address, AddressBook
from shoal.wire import array_spec_to_proto, decode_sequence, encode_trajectory

__all__ = [
    "ActorSection",
    "AddressBook",
    "ArraySpec",
    "Batch",
    "BatchSampler",
    "BatchStats",
    "Episode",
    "GrpcReplayClient",
    "InvalidArgumentError",
    "ItemRefs",
    "Life",
    "LimitsSection",
    "ReplayClient",
    "ReplaySampler",
    "ReplayStats",
    "ReplayWriter",
    "RpcSection",
    "SampledBatch",
    "Sampler",
    "SecuritySection",
    "ShoalError",
    "TableStats",
    "Trajectory",
    "UnavailableError",
    "UserError",
    "Writer",
    "WriterStats",
    "anneal",
    "decode_sequence",
    "encode_trajectory",
    "importance_weights",
]

# How long to wait before shards that were not there are asked again.
RETRY_S = 0.1


class ReplayClient:
    """All shards of a replay. A context manager: at its end writers are flushed and everything is closed."""

    def __init__(
        self,
        addresses: str | Sequence[str],
        token: str | None = None,
        *,
        security: SecuritySection | None = None,
        limits: LimitsSection | None = None,
        rpc: RpcSection | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """`addresses`: `host:port` or `unix:/path` of each shard; a name with several records is several.

        `security` instead of `token` for TLS or a token in a file. `timeout_s` is how long calls wait that
        name no other time; what takes longer raises UnavailableError.
        """
        if token is not None and security is not None:
            raise ConfigError("give a token or a security section, not both")
        self._security = security or SecuritySection(token=None if token is None else SecretStr(token))
        self._limits = limits or LimitsSection()
        self._rpc = rpc or RpcSection()
        self._timeout_s = timeout_s
        self._addresses = (addresses,) if isinstance(addresses, str) else tuple(addresses)
        if not self._addresses:
            raise ConfigError("no address: give that of each shard")
        # Changed on the event loop alone.
        self._open: list[Writer | Sampler] = []
        # Before there is a thread: what cannot be dialled is told at once.
        self._directory()
        self._loop = ClientLoop()

    def writer(
        self,
        table: str,
        *,
        actor_id: str = "client",
        declared: Sequence[ArraySpec] = (),
        sticky: bool | None = None,
        max_unacked_items: int = 64,
        max_unacked_bytes: int = 64 << 20,
        failover_after_s: float = 5.0,
    ) -> Writer:
        """Appends to one table, under a new run id. Asks the shards what kind of table it is.

        `declared`: what is known of columns beforehand, such as the number of actions. `sticky`: everything
        goes to one shard, one append after another, as long as that is there; by default so for tables
        whose sequences are made of consecutive appends (`unrolls` above 1).
        """
        try:
            actor = ActorSection(
                max_unacked_items=max_unacked_items,
                max_unacked_bytes=max_unacked_bytes,
                failover_after_s=failover_after_s,
            )
        except ValidationError as error:
            wrong = error.errors()[0]
            raise ConfigError(f"{wrong['loc'][0]} is {wrong['input']}: {wrong['msg']}") from None
        for spec in declared:
            array_spec_to_proto(spec)
        found = self._loop.run(self._find(table))
        life = Life(actor_id, secrets.token_hex(8))

        async def start() -> Writer:
            writer = ReplayWriter(
                self._directory(), self._connect, life, table, actor, self._rpc, tuple(declared)
            )
            writer.start()
            opened = Writer(
                self._loop,
                writer,
                table,
                found.kind,
                self._forget,
                self._limits,
                sticky=found.unrolls > 1 if sticky is None else sticky,
                timeout_s=self._timeout_s,
            )
            self._open.append(opened)
            return opened

        return self._loop.run(start())

    def sampler(
        self, table: str, batch_size: int, *, beta: Beta = 1.0, prefetch: int = 2, seed: int | None = None
    ) -> Sampler:
        """Batches of one table, `prefetch` of them ahead.

        `beta`: exponent of the importance weights, a number or a function of the number of batches before;
        see `anneal`. `seed`: of the draws among shards.
        """
        rng = np.random.default_rng(seed)

        async def start() -> Sampler:
            sampler = BatchSampler(
                self._directory(),
                self._connect,
                table,
                batch_size,
                self._rpc,
                rng,
                prefetch_batches=prefetch,
                beta=beta,
            )
            sampler.start()
            opened = Sampler(self._loop, sampler, self._limits, self._forget, timeout_s=self._timeout_s)
            self._open.append(opened)
            return opened

        return self._loop.run(start())

    def stats(self) -> ReplayStats:
        """Counters of every table of every shard that is there, and their totals."""
        return self._loop.run(self._stats_in_time())

    def close(self) -> None:
        """Closes its writers and samplers too; what is not acked is dropped. May be called again.

        Calls of other threads that wait end with an UnavailableError.
        """
        self._loop.close(self._close_all())

    def __enter__(self) -> ReplayClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        errors: list[Exception] = []
        try:
            if kind is None:
                errors = self._flush_all()
        finally:
            self.close()
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"and {type(other).__name__}: {other}")
            raise errors[0]

    def _flush_all(self) -> list[Exception]:
        """Every writer has its chance, and all of them together `timeout_s`."""
        errors: list[Exception] = []
        deadline = time.monotonic() + self._timeout_s
        for writer in [opened for opened in tuple(self._open) if isinstance(opened, Writer)]:
            try:
                writer.flush(max(deadline - time.monotonic(), 0.0))
            except Exception as error:
                errors.append(error)
        return errors

    async def _close_all(self) -> None:
        for opened in tuple(self._open):
            await opened.end()

    def _forget(self, opened: Writer | Sampler) -> None:
        if opened in self._open:
            self._open.remove(opened)

    async def _stats_in_time(self) -> ReplayStats:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._stats()
        except TimeoutError:
            raise UnavailableError(f"the shards have not answered within {self._timeout_s:g} s") from None

    async def _stats(self) -> ReplayStats:
        return await gather_stats(await self._directory().resolve(), self._connect)

    async def _find(self, table: str) -> TableStats:
        problem = "no shard has answered"
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        totals = (await self._stats()).totals
                        break
                    except UnavailableError as error:
                        problem = str(error)
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            raise UnavailableError(f"{problem} (for {self._timeout_s:g} s)") from None
        if table not in totals:
            raise NotFoundError(f"no replay table {table!r} there: there are {', '.join(totals)}")
        return totals[table]

    def _directory(self) -> AddressBook:
        return AddressBook(self._addresses, self._rpc)

    def _connect(self, address: Address) -> GrpcReplayClient:
        return GrpcReplayClient(address, self._security, self._limits, self._rpc)
