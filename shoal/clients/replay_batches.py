"""Batches from all shards as if they were one table, a few ahead, and the new priorities that go back.

Used by learners and by `shoal.clients.replay`, on their event loop. Every live shard is asked once per
batch: how many items each gives is drawn in proportion to its priority mass, and every answer brings the
mass for the draws to come (`shoal.clients.replay_draw` has the arithmetic). A shard that goes away costs a
batch nothing but a draw among the others; a shard that lets samples wait, because of its own limits, is
waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from shoal.clients.replay_batch_link import SAMPLE_TIMEOUT_S, SHORT_TIMEOUT_S, SILENT_AFTER_S, BatchLink
from shoal.clients.replay_columns import as_numbers
from shoal.clients.replay_draw import ItemRefs, PendingBatch, SampledBatch, Source
from shoal.clients.replay_shard import DEFAULT_TIMEOUT_S, PrioritiesUpdated, ReplayShardClient, Sampled
from shoal.clients.replay_weights import Beta, beta_of
from shoal.config.connections import RpcSection
from shoal.errors import InvalidArgumentError, UnavailableError, UserError, fresh
from shoal.records import Episode
from shoal.rpc.addresses import Address
from shoal.sharding import Directory, LinkSet

log = logging.getLogger(__name__)

# While no shard has anything to sample they are asked this often.
EMPTY_POLL_S = 0.1
# Who waits for this long in `next` finds the reason in the log.
EXPLAIN_AFTER_S = 5.0
# Finished episodes that wait for a batch that tells of them; the newest.
MAX_EPISODES_WAITING = 1 << 16

Connect = Callable[[Address], ReplayShardClient]


@dataclass(slots=True)
class BatchStats:
    """What was sampled and what became of the priorities; plain counters, for metrics.

    `num_updated` and `num_gone` are what shards answered; dropped were those whose connection ended first,
    or that a shard took too slowly. Of several for one item that waited together only the last counts.
    """

    num_batches: int = 0
    # Items that were drawn again, because the shard that should have given them was gone or empty.
    num_redrawn: int = 0
    num_asked_again: int = 0
    num_updated: int = 0
    num_gone: int = 0
    num_updates_dropped: int = 0


class BatchSampler:
    """The samples of one table. `start`, then `next` for ever, at the end `close`."""

    def __init__(
        self,
        directory: Directory,
        connect: Connect,
        table: str,
        batch_size: int,
        rpc: RpcSection,
        rng: np.random.Generator,
        *,
        prefetch_batches: int = 2,
        beta: Beta = 1.0,
    ) -> None:
        """`beta`: exponent of the importance weights; see `anneal` for one that changes with the batches."""
        if batch_size < 1 or prefetch_batches < 1:
            raise UserError(
                f"batch_size {batch_size} and prefetch_batches {prefetch_batches} must be at least 1"
            )
        self.stats = BatchStats()
        # May be set at any time: for draws from then on.
        self.batch_size = batch_size
        self._prefetch_batches = prefetch_batches
        self._beta = beta
        self._rng = rng
        self._pending: list[PendingBatch] = []
        # What came into the table and no batch has told of.
        self._steps_inserted = 0
        self._episodes: deque[Episode] = deque(maxlen=MAX_EPISODES_WAITING)
        # None: see `_failure`.
        self._ready: asyncio.Queue[SampledBatch | None] = asyncio.Queue()
        self._failure: BaseException | None = None
        self._flushers: set[asyncio.Future[None]] = set()
        self._begun = False
        self._explained = False
        self._poll: asyncio.TimerHandle | None = None
        self._links: LinkSet[BatchLink] = LinkSet(
            directory,
            lambda address: BatchLink(address, connect(address), table, rpc.max_backoff_s, self),
            self.on_failure,
            silent_after_s=SILENT_AFTER_S,
            max_backoff_s=rpc.max_backoff_s,
        )

    def start(self) -> None:
        """Begin to dial and to sample. From the event loop."""
        self._links.start()
        self._refill()

    async def next(self, timeout_s: float | None = DEFAULT_TIMEOUT_S) -> SampledBatch:
        """The next batch. Cancel at will: nothing is lost.

        Raises UnavailableError that says why there is none within `timeout_s`. None waits as long as it
        takes, and tells the log why. Raises the UserError of a shard that refuses us, such as a wrong token
        or an unknown table.
        """
        if self._failure is not None:
            raise fresh(self._failure)
        explaining = asyncio.get_running_loop().call_later(EXPLAIN_AFTER_S, self._explain)
        try:
            async with asyncio.timeout(timeout_s):
                batch = await self._ready.get()
        except TimeoutError:
            raise UnavailableError(
                f"no batch of {self.batch_size} items within {timeout_s} s: {self._why()}"
            ) from None
        finally:
            explaining.cancel()
        if batch is None:
            # For whoever else waits.
            self._ready.put_nowait(None)
            assert self._failure is not None
            raise fresh(self._failure)
        self._explained = False
        self._refill()
        return batch

    async def update_priorities(self, sampled: SampledBatch | ItemRefs, priorities: np.ndarray) -> None:
        """Send new priorities (before alpha) for a batch, in its order; does not wait for the shards.

        Those for a connection that is over are dropped and counted; the rest is sent with one call per
        shard, again and again until it is taken. Raises InvalidArgumentError for what no shard would take,
        and as `next` does; the UserError of a shard that refuses them, such as a table without priorities,
        comes with the next call.
        """
        self.send_priorities(sampled.refs if isinstance(sampled, SampledBatch) else sampled, priorities)

    def send_priorities(self, refs: ItemRefs, priorities: np.ndarray) -> None:
        """What `update_priorities` does, as a callback of the event loop."""
        if self._failure is not None:
            raise fresh(self._failure)
        values = as_numbers(priorities)
        if values.shape != (len(refs),):
            raise InvalidArgumentError(
                f"priorities of shape {list(values.shape)} for a batch of {len(refs)} items: give one each"
            )
        wrong = values[~(np.isfinite(values) & (values >= 0))]
        if wrong.size:
            raise InvalidArgumentError(f"priority {wrong[0]} is not a finite number of at least 0")
        live = self._live()
        for index, source in enumerate(refs.sources):
            chosen = refs.where == index
            if (link := live.get(source)) is None:
                self.on_updates_dropped(int(np.count_nonzero(chosen)))
            else:
                link.update(refs.keys[chosen], values[chosen])

    async def flush(self, timeout_s: float) -> int:
        """Wait until all priorities are taken or dropped. Returns how many are not, when time is up.

        Raises as `next` does.
        """
        if self._num_waiting and self._failure is None:
            flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushers.add(flushed)
            try:
                await asyncio.wait([flushed], timeout=timeout_s)
            finally:
                self._flushers.discard(flushed)
        if self._failure is not None:
            raise fresh(self._failure)
        return self._num_waiting

    async def close(self) -> None:
        """Drop the connections, what was not taken and what was not sent. Callers that wait are refused."""
        self.on_failure(UnavailableError("the replay sampler is closed"))
        if self._poll is not None:
            self._poll.cancel()
        await self._links.close()

    # What links call.

    def on_answer(self, link: BatchLink, batch: PendingBatch | None, asked: int, sampled: Sampled) -> None:
        self._steps_inserted += sampled.steps_inserted
        self._episodes.extend(sampled.episodes)
        if batch is not None:
            again = batch.answered(link.source, asked, sampled)
            if again:
                self.stats.num_asked_again += 1
                # One that has items and gives none is held back by its limits: it is waited for.
                held = not sampled.num_sampled
                link.ask(batch, again, SAMPLE_TIMEOUT_S if held else self._first_timeout_s(link))
            elif batch.complete:
                self._finish(batch)
        self._draw()

    def on_lost(self, link: BatchLink, batches: list[tuple[PendingBatch, int]]) -> None:
        for batch, asked in batches:
            batch.lost(link.source, asked)
            if batch.complete:
                self._finish(batch)
        self._draw()

    def on_updated(self, done: PrioritiesUpdated) -> None:
        self.stats.num_updated += done.num_updated
        self.stats.num_gone += done.num_gone
        self._wake_flushers()

    def on_updates_dropped(self, num_keys: int) -> None:
        self.stats.num_updates_dropped += num_keys
        self._wake_flushers()

    def on_failure(self, error: BaseException) -> None:
        """What ends it for all callers: a refusal, a defect, or `close`."""
        if self._failure is None:
            self._failure = error
            self._ready.put_nowait(None)
            self._wake_flushers()

    @property
    def _num_waiting(self) -> int:
        return sum(link.num_waiting for link in self._links)

    def _live(self) -> dict[Source, BatchLink]:
        """In a fixed order, so that the same generator gives the same draws."""
        links = sorted(self._links, key=lambda link: link.address.target)
        return {link.source: link for link in links if link.live}

    def _refill(self) -> None:
        while len(self._pending) + self._ready.qsize() < self._prefetch_batches:
            self._pending.append(PendingBatch(self.batch_size))
        self._draw()

    def _draw(self) -> None:
        """Ask the shards for what no shard was asked for yet."""
        if self._failure is not None or not any(batch.missing for batch in self._pending):
            return
        if not self._begun:
            # The first draw waits until each shard has answered or is known to be away.
            self._begun = any(link.live for link in self._links) and all(link.tried for link in self._links)
            if not self._begun:
                return
        live = self._live()
        masses = {source: link.mass for source, link in live.items()}
        for batch in self._pending:
            if batch.missing:
                lost = batch.missing if batch.drawn else 0
                asked = batch.draw(masses, self._rng)
                self.stats.num_redrawn += lost if asked else 0
                for source, num_items in asked.items():
                    live[source].ask(batch, num_items, self._first_timeout_s(live[source]))
        if live and any(batch.missing for batch in self._pending) and self._poll is None:
            self._poll = asyncio.get_running_loop().call_later(EMPTY_POLL_S, self._ask_for_state)

    def _first_timeout_s(self, link: BatchLink) -> float:
        """A shard may have run dry since: what it has not is then drawn from the others, and soon."""
        others = any(other.mass for other in self._links if other is not link)
        return SHORT_TIMEOUT_S if others else SAMPLE_TIMEOUT_S

    def _ask_for_state(self) -> None:
        self._poll = None
        for link in self._live().values():
            link.ask(None, 0)

    def _finish(self, batch: PendingBatch) -> None:
        self._pending.remove(batch)
        try:
            finished = batch.finish(beta_of(self._beta, self.stats.num_batches))
        except Exception as error:
            # A beta that is none, or shards that do not fit together.
            self.on_failure(error)
            return
        self.stats.num_batches += 1
        self._ready.put_nowait(
            replace(finished, steps_inserted=self._steps_inserted, episodes=tuple(self._episodes))
        )
        self._steps_inserted = 0
        self._episodes.clear()

    def _explain(self) -> None:
        if not self._explained:
            self._explained = True
            log.warning("waiting for a batch of %d items: %s", self.batch_size, self._why())

    def _why(self) -> str:
        return "; ".join(link.describe() for link in self._links) or "no shard is known (yet)"

    def _wake_flushers(self) -> None:
        if not self._num_waiting or self._failure is not None:
            for flushed in self._flushers:
                if not flushed.done():
                    flushed.set_result(None)
