"""Inference over gRPC: an `InferenceClient` for one server.

Used by actors, on their event loop. `act` runs once per step of each group of environments: it is kept lean.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np

from shoal.clients.inference import ActHello, ActReply, ActStream, ActWelcome, sent_states
from shoal.clients.stream_tensors import ColumnsReader, ColumnsWriter, TensorWriter
from shoal.config.connections import LimitsSection, RpcSection, SecuritySection
from shoal.errors import STREAM_ENDED, InvalidArgumentError, LimitError, ShoalError, UnavailableError
from shoal.records import PROTOCOL_VERSION, Columns
from shoal.rpc.addresses import Address
from shoal.rpc.channel import open_channel
from shoal.rpc.status import from_rpc_error, opened
from shoal.v1 import inference_service_pb2 as pb
from shoal.v1 import inference_service_pb2_grpc as pb_grpc
from shoal.wire import array_spec_from_proto, spec_to_proto

# How long a closed stream may take to end in good order before it is cut.
_CLOSE_S = 1.0


class GrpcInferenceClient:
    """One inference server."""

    def __init__(
        self, address: Address, security: SecuritySection, limits: LimitsSection, rpc: RpcSection
    ) -> None:
        self._channel = open_channel(address, security, limits, rpc)
        self._stub = pb_grpc.InferenceServiceStub(self._channel)
        self._max_bytes = limits.max_tensor_bytes

    async def open(self, hello: ActHello) -> ActStream:
        return await opened(lambda: self._open(hello))

    async def _open(self, hello: ActHello) -> ActStream:
        call = self._stub.Act()
        response = await _exchange(call, _hello_to_proto(hello))
        if not response.HasField("welcome"):
            call.cancel()
            raise InvalidArgumentError("the inference server answered a hello without a welcome")
        welcome = _welcome_from_proto(response.welcome)
        outputs = ColumnsReader(self._max_bytes, welcome.outputs, hello.num_envs)
        state = ColumnsReader(self._max_bytes, sent_states(welcome.state), hello.num_envs)
        return _GrpcActStream(call, welcome, outputs, state)

    async def close(self) -> None:
        await self._channel.close()


class _GrpcActStream:
    def __init__(self, call: Any, welcome: ActWelcome, outputs: ColumnsReader, state: ColumnsReader) -> None:
        self._call = call
        self._welcome = welcome
        self._num_steps = 0
        self._ended = False
        # Filled again for each step: only one is in flight.
        self._request = pb.ActRequest()
        self._step = self._request.step
        self._write_observation = ColumnsWriter(self._step.observation).write
        self._write_first = TensorWriter(self._step.first).write
        self._read_outputs = outputs.read
        self._read_state = state.read

    @property
    def welcome(self) -> ActWelcome:
        return self._welcome

    async def act(
        self, observation: Columns, first: np.ndarray, starts_unroll: bool = False, min_version: int = 0
    ) -> ActReply:
        if self._ended:
            raise UnavailableError(STREAM_ENDED)
        self._write_observation(observation)
        self._write_first(first)
        self._step.starts_unroll = starts_unroll
        self._step.min_version = min_version
        number = self._step.step = self._num_steps
        self._num_steps += 1
        try:
            actions = (await _exchange(self._call, self._request)).actions
            if actions.step != number:
                raise UnavailableError(f"the server answered step {actions.step} instead of {number}")
            outputs = self._read(self._read_outputs, actions.outputs)
            state = self._read(self._read_state, actions.state) if starts_unroll else {}
            return ActReply(actions.policy_version, outputs, state)
        except BaseException:
            self._ended = True
            self._call.cancel()
            raise

    def _read(self, read: Callable[[Any], Columns], tensors: Any) -> Columns:
        try:
            return read(tensors)
        except LimitError:
            # The user's to mend: the limits here are below what the environments need.
            raise
        except InvalidArgumentError as error:
            # Torn, or not what was announced: another stream or replica may do better.
            raise UnavailableError(f"the server's reply is broken: {error}") from None

    async def close(self) -> None:
        self._ended = True
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.TimeoutError, asyncio.InvalidStateError):
            await self._call.done_writing()
            await asyncio.wait_for(self._call.code(), _CLOSE_S)
        self._call.cancel()


async def _exchange(call: Any, request: pb.ActRequest) -> pb.ActResponse:
    """One message there, one back; whatever ends the stream becomes a ShoalError."""
    try:
        await call.write(request)
        response = await call.read()
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from None
    except asyncio.InvalidStateError:
        raise await _ending(call) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # gRPC also raises this when it was the call that somebody cancelled, not the caller.
        raise UnavailableError(STREAM_ENDED) from None
    if response is grpc.aio.EOF:
        raise await _ending(call)
    reply: pb.ActResponse = response
    return reply


async def _ending(call: Any) -> ShoalError:
    """Why a finished call is finished."""
    code, details = await call.code(), await call.details()
    if code in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED):
        return UnavailableError(STREAM_ENDED)
    metadata = await call.initial_metadata(), await call.trailing_metadata()
    return from_rpc_error(grpc.aio.AioRpcError(code, *metadata, details))


def _hello_to_proto(hello: ActHello) -> pb.ActRequest:
    return pb.ActRequest(
        hello=pb.ActHello(
            protocol_version=PROTOCOL_VERSION,
            actor_id=hello.life.actor_id,
            run_id=hello.life.run_id,
            spec=spec_to_proto(hello.spec),
            num_envs=hello.num_envs,
            greedy=hello.greedy,
            policy=hello.policy,
            epsilon=hello.epsilon,
            noise=hello.noise,
            max_wait_s=hello.max_wait_s,
        )
    )


def _welcome_from_proto(welcome: pb.ActWelcome) -> ActWelcome:
    outputs = tuple(array_spec_from_proto(spec) for spec in welcome.outputs)
    state = tuple(array_spec_from_proto(spec) for spec in welcome.state)
    return ActWelcome(welcome.server_id, welcome.policy_version, outputs, state)
