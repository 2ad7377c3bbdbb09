"""The engine of one policy: its sessions, its spec, and the model thread that answers them.

Implements `InferenceBackend`; `services.inference.engines` holds one for each policy of the run. Its
coroutines and methods run on the event loop. The model thread only takes batches, runs them and hands all
answers of a batch back with one `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from services.inference.batcher import Batcher, Request
from services.inference.compiling import compile_now, compiled
from services.inference.held import HeldSteps
from services.inference.hot_swap import HotSwap
from services.inference.metrics import InferenceMetrics
from services.inference.runner import Runner
from services.inference.seats import Seats
from services.inference.session import Session, choice_of, max_wait_of
from shoal.clients.inference import ActHello, ActReply, ActWelcome
from shoal.config.network import PolicySection
from shoal.config.tree import InferenceSection
from shoal.errors import (
    STREAM_ENDED,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    SpecMismatchError,
    UnavailableError,
)
from shoal.metrics import Clock
from shoal.policy.device import fitting_threads
from shoal.policy.network import Policy, build_policy
from shoal.records import DEFAULT_POLICY, Columns, EnvSpec, WeightsSnapshot

_DRAINING = "the inference server is shutting down: dial another replica"


@dataclass(frozen=True)
class _Model:
    """What follows from a spec. Until its first weights have come, that is only what an actor claims."""

    spec: EnvSpec
    weights: HotSwap
    runner: Runner
    # Whether the learner has the same spec: empty if so (or when draining), else its refusal.
    verdict: asyncio.Future[str]


class Engine:
    """Answers the observations of all sessions in batches."""

    def __init__(
        self,
        config: InferenceSection,
        policy: PolicySection,
        device: torch.device,
        metrics: InferenceMetrics,
        name: str = DEFAULT_POLICY,
        seats: Seats | None = None,
        num_threads: int = 1,
        clock: Clock = time.perf_counter,
    ) -> None:
        """`name`: of the policy. Of several engines, all share the `seats`."""
        self.name = name
        self._config = config
        self._policy_config = policy
        self._device = device
        self._metrics = metrics
        self._clock = clock
        self._batcher = Batcher(config.max_batch, config.min_batch, config.max_wait_ms / 1000.0, clock)
        self._thread = threading.Thread(target=self._run_model, name="model", daemon=True)
        self._loop = asyncio.get_running_loop()
        self._crash: asyncio.Future[None] = self._loop.create_future()
        self._model: _Model | None = None
        self._adopting = asyncio.Lock()
        self._installing = asyncio.Lock()
        self._adopted = asyncio.Event()
        self._draining = False
        self._closed = False
        self._version = -1
        metrics.policy_version.labels(name).set(-1)
        self._sessions: dict[int, Session] = {}
        self._held = HeldSteps(self._batcher.submit, clock)
        self._num_slots = 0
        self._seats = seats or Seats(config.max_envs)
        self._num_threads = num_threads

    # Life of the engine.

    def start(self) -> None:
        self._thread.start()

    async def crashed(self) -> None:
        """Never returns; raises whatever ended the model thread."""
        await asyncio.shield(self._crash)

    def drain(self) -> None:
        """No new sessions from now on; whoever waits for weights is told so. Other open ones go on."""
        self._draining = True
        self._settle("")
        self._held.refuse(_DRAINING)

    async def close(self) -> None:
        """Ends the model thread after its current batch; whoever still waits gets UnavailableError."""
        self.drain()
        self._closed = True
        self._batcher.close()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)
        self._fail_waiters("the inference server is shutting down")

    # Sessions, for the servicer and the in-process client.

    async def connect(self, hello: ActHello) -> tuple[int, ActWelcome]:
        if not 1 <= hello.num_envs <= self._config.max_batch:
            raise ResourceExhaustedError(
                f"{hello.num_envs} environments in one group of {hello.life.actor_id}, but the inference "
                f"server takes 1 to {self._config.max_batch}: raise inference.max_batch or use smaller groups"
            )
        model = await self._adopt(hello.spec)
        refusal = "" if self._draining else await asyncio.shield(model.verdict)
        if self._draining:
            raise UnavailableError(_DRAINING)
        if refusal:
            raise SpecMismatchError(refusal)
        model.weights.check_exploration(bool(hello.epsilon), hello.noise > 0)
        choice = choice_of(hello, self._device)
        session = Session(model.spec, hello.num_envs, choice, max_wait_of(hello))
        number = self._seats.take(hello.num_envs)
        self._sessions[number] = session
        self._count_slots(hello.num_envs)
        weights = model.weights
        return number, ActWelcome(self._config.id, self._version, weights.outputs, weights.state)

    async def act(
        self,
        session: int,
        observation: Columns,
        first: np.ndarray,
        starts_unroll: bool = False,
        min_version: int = 0,
    ) -> ActReply:
        state = self._sessions.get(session)
        if state is None or self._closed:
            raise UnavailableError(STREAM_ENDED)
        if state.waiter is not None:
            raise FailedPreconditionError("a second step while one is in flight: wait for its actions first")
        try:
            state.check(observation, first)
        except InvalidArgumentError:
            self._metrics.refused.inc()
            raise
        request = Request(state, observation, first, starts_unroll, self._clock())
        state.waiter = self._loop.create_future()
        try:
            if min_version <= self._version:
                self._batcher.submit(request)
            else:
                self._held.hold(request, min_version)
            return await state.waiter
        except asyncio.CancelledError:
            request.abandoned = True
            raise
        finally:
            state.waiter = None
            self._held.forget(request)

    def disconnect(self, session: int) -> None:
        state = self._sessions.pop(session, None)
        if state is not None:
            state.fail(STREAM_ENDED)
            self._seats.give_back(state.num_envs)
            self._count_slots(-state.num_envs)

    # Weights, for the subscription.

    @property
    def policy_version(self) -> int:
        """Newest version loaded, or -1."""
        return self._version

    async def spec(self) -> EnvSpec:
        """The spec of the run, as soon as an actor has told it."""
        await self._adopted.wait()
        assert self._model is not None
        return self._model.spec

    def refuse_spec(self, text: str) -> None:
        """The learner has another spec, and no weights came: tell who brought this one, wait for the next."""
        assert self._version < 0
        self._settle(text)
        self._model = None
        self._adopted.clear()

    async def install(self, snapshot: WeightsSnapshot) -> bool:
        """Use these weights from the next batch on. False if they are not newer than what is there.

        Raises UserError if they do not fit the policy; the old ones stay in use.
        """
        # One at a time: an older version that is still loading must not overtake a newer one.
        async with self._installing:
            if self._model is None:
                raise FailedPreconditionError("weights before any actor told the environment's spec")
            if snapshot.version <= self._version:
                return False
            start_s = self._clock()
            await asyncio.to_thread(
                self._model.weights.load, snapshot.version, snapshot.data, snapshot.untrained
            )
            self._metrics.weight_load.inc(self._clock() - start_s)
            self._metrics.weight_swaps.inc()
            self._metrics.policy_version.labels(self.name).set(snapshot.version)
            self._version = snapshot.version
            self._settle("")
            self._held.reached(snapshot.version)
            return True

    async def _adopt(self, spec: EnvSpec) -> _Model:
        async with self._adopting:
            if self._model is None:
                self._model = await asyncio.to_thread(self._build_model, spec)
                self._adopted.set()
            model = self._model
        if model.spec == spec:
            return model
        if self._version < 0:
            raise UnavailableError("the spec of the run is not settled yet: retry")
        raise SpecMismatchError(
            f"the run's environment is {model.spec.describe()}; this one is {spec.describe()}. "
            "All actors of a run must use the same environment"
        )

    def _build_model(self, spec: EnvSpec) -> _Model:
        config, device = self._config, self._device
        runner = Runner(
            spec.observation, config.max_batch, device, self._metrics, config.precision, self._clock
        )
        if config.compile:
            compile_now(runner, lambda: self._build_policy(spec).to(device).eval(), spec)
        weights = HotSwap(lambda: self._build_policy(spec), device)
        return _Model(spec, weights, runner, self._loop.create_future())

    def _build_policy(self, spec: EnvSpec) -> Policy:
        policy = build_policy(self._policy_config, spec)
        return compiled(policy) if self._config.compile else policy

    def _settle(self, refusal: str) -> None:
        if self._model is not None and not self._model.verdict.done():
            self._model.verdict.set_result(refusal)

    def _count_slots(self, change: int) -> None:
        self._num_slots += change
        self._batcher.expect_at_most(self._num_slots)
        self._metrics.sessions.labels(self.name).set(len(self._sessions))
        self._metrics.env_slots.labels(self.name).set(self._num_slots)

    # Model thread.

    def _run_model(self) -> None:
        # Set per thread: this is the one that computes.
        num_threads = self._num_threads
        torch.set_num_threads(num_threads)
        try:
            free_s = self._clock()
            while (requests := self._batcher.take()) is not None:
                taken_s = self._clock()
                self._metrics.phases.add("idle", taken_s - free_s)
                assert self._model is not None
                loaded = self._model.weights.newest()
                if not self._config.threads and num_threads != (fitting := self._fitting_threads(requests)):
                    num_threads = fitting
                    torch.set_num_threads(num_threads)
                replies = self._model.runner.run(requests, loaded)
                self._loop.call_soon_threadsafe(self._deliver, requests, replies, taken_s)
                free_s = self._clock()
        except BaseException as error:
            self._loop.call_soon_threadsafe(self._fail, error)

    def _fitting_threads(self, requests: Sequence[Request]) -> int:
        """As many as pay for this batch; after the first ones that hardly ever changes."""
        assert self._model is not None
        num_rows = sum(request.num_rows for request in requests)
        return fitting_threads(self._num_threads, self._model.weights.products_per_row * num_rows)

    # Back on the event loop.

    def _deliver(self, requests: Sequence[Request], replies: Sequence[ActReply], taken_s: float) -> None:
        metrics = self._metrics
        now_s = self._clock()
        queue_wait_s = 0.0
        num_rows = 0
        for request, reply in zip(requests, replies, strict=True):
            queue_wait_s += taken_s - request.submitted_s
            num_rows += request.num_rows
            metrics.request_latency.observe(now_s - request.submitted_s)
            if not request.abandoned:
                request.session.answer(reply)
        metrics.phases.add("queue_wait", queue_wait_s)
        metrics.requests.inc(len(requests))
        metrics.rows.inc(num_rows)
        metrics.batches.inc()
        metrics.batch_rows.observe(num_rows)

    def _fail(self, error: BaseException) -> None:
        self.drain()
        self._closed = True
        if not self._crash.done():
            self._crash.set_exception(error)
        self._fail_waiters("the model thread of the inference server crashed")

    def _fail_waiters(self, text: str) -> None:
        for state in self._sessions.values():
            state.fail(text)
