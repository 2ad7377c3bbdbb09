"""The Act RPC: protocol buffers on one side, the `InferenceBackend` on the other.

One coroutine per stream, on the event loop. The loop of `_serve` is the hottest path of the whole
system: it is run once for each step of each group of environments.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import grpc

from services.inference.metrics import InferenceMetrics
from shoal.clients.inference import ActHello, ActWelcome, InferenceBackend
from shoal.clients.stream_tensors import ColumnsReader, ColumnsWriter, TensorReader
from shoal.config.connections import LimitsSection
from shoal.errors import InvalidArgumentError, UnavailableError
from shoal.records import Life
from shoal.rpc.server import RpcServer
from shoal.rpc.status import abort
from shoal.v1 import inference_service_pb2 as pb
from shoal.v1 import inference_service_pb2_grpc as pb_grpc
from shoal.wire import (
    array_spec_to_proto,
    check_protocol_version,
    spec_from_proto,
)

_DRAINING = "the inference server is shutting down: dial another replica"


@dataclass(slots=True, eq=False)
class _Stream:
    """An open stream, so that a drain can end it while it is idle."""

    context: Any
    idle: bool = True


class InferenceServicer(pb_grpc.InferenceServiceServicer):
    """Translates; decides nothing."""

    def __init__(self, backend: InferenceBackend, limits: LimitsSection, metrics: InferenceMetrics) -> None:
        self._backend = backend
        self._max_bytes = limits.max_tensor_bytes
        self._phases = metrics.phases
        self._refused = metrics.refused
        self._streams: set[_Stream] = set()
        self._draining = False

    def add_to(self, server: RpcServer) -> None:
        server.add(pb_grpc.add_InferenceServiceServicer_to_server, self, "shoal.v1.InferenceService")

    async def Act(self, _requests: Any, context: Any) -> None:
        if self._draining:
            raise UnavailableError(_DRAINING)
        stream = _Stream(context)
        self._streams.add(stream)
        try:
            request = await context.read()
            if request is grpc.aio.EOF:
                return
            stream.idle = False
            hello = _hello_from_proto(request)
            session, welcome = await self._backend.connect(hello)
            try:
                await context.write(_welcome_to_proto(welcome))
                await self._serve(session, stream, hello)
            finally:
                self._backend.disconnect(session)
        finally:
            self._streams.discard(stream)

    async def drain(self) -> None:
        """Ends every stream with UNAVAILABLE: idle ones now, the others after their outstanding reply."""
        self._draining = True
        idle = [stream.context for stream in self._streams if stream.idle]
        # Each abort also raises here what it raises in the stream's own coroutine.
        await asyncio.gather(
            *(abort(context, UnavailableError(_DRAINING)) for context in idle), return_exceptions=True
        )

    async def _serve(self, session: int, stream: _Stream, hello: ActHello) -> None:
        context, act, phases, clock = stream.context, self._backend.act, self._phases, time.perf_counter
        read_observation = ColumnsReader(self._max_bytes, hello.spec.observation, hello.num_envs).read
        read_first = TensorReader(self._max_bytes).read
        # Filled again for each reply: it has been serialised when `write` first yields.
        response = pb.ActResponse()
        actions = response.actions
        write_outputs = ColumnsWriter(actions.outputs).write
        write_state = ColumnsWriter(actions.state).write
        while not self._draining:
            stream.idle = True
            request = await context.read()
            if request is grpc.aio.EOF:
                return
            stream.idle = False
            received_s = clock()
            step = request.step
            if not request.HasField("step"):
                raise InvalidArgumentError("expected a step: `hello` comes once, at the start of a stream")
            try:
                observation, first = read_observation(step.observation), read_first(step.first)
            except InvalidArgumentError:
                self._refused.inc()
                raise
            phases.add("decode", clock() - received_s)
            reply = await act(session, observation, first, step.starts_unroll, step.min_version)
            answered_s = clock()
            actions.step, actions.policy_version = step.step, reply.policy_version
            write_outputs(reply.outputs)
            write_state(reply.state)
            await context.write(response)
            phases.add("reply", clock() - answered_s)
        raise UnavailableError(_DRAINING)


def _hello_from_proto(request: pb.ActRequest) -> ActHello:
    if not request.HasField("hello"):
        raise InvalidArgumentError("expected a hello: it comes first on every stream")
    hello = request.hello
    check_protocol_version(hello.protocol_version)
    return ActHello(
        life=Life(hello.actor_id, hello.run_id),
        spec=spec_from_proto(hello.spec),
        num_envs=hello.num_envs,
        greedy=hello.greedy,
        policy=hello.policy,
        epsilon=tuple(hello.epsilon),
        noise=hello.noise,
        max_wait_s=hello.max_wait_s,
    )


def _welcome_to_proto(welcome: ActWelcome) -> pb.ActResponse:
    return pb.ActResponse(
        welcome=pb.ActWelcome(
            server_id=welcome.server_id,
            policy_version=welcome.policy_version,
            outputs=[array_spec_to_proto(spec) for spec in welcome.outputs],
            state=[array_spec_to_proto(spec) for spec in welcome.state],
        )
    )
