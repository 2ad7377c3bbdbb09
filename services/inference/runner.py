"""Runs one batch: requests into one buffer, one forward pass, outputs split into views.

Owned by the model thread. Buffers are allocated once and grow by powers of two up to `max_batch` rows, so
that a generous limit costs nothing until it is used. On CUDA they are pinned, and copies and computation go
on one side stream; what the policy remembers never leaves the device.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from services.inference.batcher import Request
from services.inference.hot_swap import LoadedPolicy
from services.inference.metrics import InferenceMetrics
from shoal.clients.inference import ActReply, sent_states
from shoal.metrics import Clock
from shoal.policy.network import Choice
from shoal.records import ArraySpec, Columns

State = dict[str, Tensor]


class Runner:
    """The batch buffers of one policy on one device."""

    def __init__(
        self,
        observation: tuple[ArraySpec, ...],
        max_batch: int,
        device: torch.device,
        metrics: InferenceMetrics,
        precision: str = "float32",
        clock: Clock = time.perf_counter,
    ) -> None:
        self._specs = observation
        self._max_batch = max_batch
        self._device = device
        self._metrics = metrics
        self._dtype: torch.dtype = getattr(torch, precision)
        self._clock = clock
        self._on_cuda = device.type == "cuda"
        self._stream = _new_stream(device) if self._on_cuda else None
        self.num_buffered_rows = 0
        self._tensors: dict[str, Tensor] = {}
        self._arrays: Columns = {}
        self._first = torch.empty(0, dtype=torch.bool)

    def run(self, requests: Sequence[Request], loaded: LoadedPolicy) -> list[ActReply]:
        """The answer to each request; its arrays are views of the batch's."""
        clock, phases = self._clock, self._metrics.phases
        start_s = clock()
        num_rows = self._fill(requests)
        filled_s = clock()
        outputs, states = self._forward(requests, num_rows, loaded)
        phases.add("copy", filled_s - start_s)
        phases.add("forward", clock() - filled_s)
        return [
            ActReply(loaded.version, {name: array[rows] for name, array in outputs.items()}, state)
            for rows, state in zip(_rows(requests), states, strict=True)
        ]

    def _fill(self, requests: Sequence[Request]) -> int:
        num_rows = sum(request.num_rows for request in requests)
        if num_rows > self.num_buffered_rows:
            self._grow(num_rows)
        first = self._first.numpy()
        for request, rows in zip(requests, _rows(requests), strict=True):
            for name, array in self._arrays.items():
                array[rows] = request.observation[name]
            # A stream begins like an episode: nothing is known of what was before.
            first[rows] = request.first if request.session.memory is not None else True
        return num_rows

    def _forward(
        self, requests: Sequence[Request], num_rows: int, loaded: LoadedPolicy
    ) -> tuple[Columns, list[Columns]]:
        """Outputs of all rows, and the state before the step for each request that asks for it."""
        policy = loaded.policy
        with torch.inference_mode(), self._side_stream(), self._autocast():
            observation = {name: self._to_device(tensor[:num_rows]) for name, tensor in self._tensors.items()}
            first = self._to_device(self._first[:num_rows])
            before = [
                request.session.memory or policy.initial_state(request.num_rows, self._device)
                for request in requests
            ]
            choice = _joined_choices(requests)
            if loaded.untrained:
                choice = replace(choice, epsilon=torch.ones(num_rows, device=self._device))
            acted = policy.act(observation, first, _joined_states(before), choice)
            names = [spec.name for spec in sent_states(policy.state)]
            # Cloned: a stream's memory is overwritten by its next step.
            sent = [
                {name: self._to_host(state[name].clone()) for name in names} if request.starts_unroll else {}
                for request, state in zip(requests, before, strict=True)
            ]
            outputs = {name: self._to_host(tensor) for name, tensor in acted.outputs.items()}
            if policy.state:
                _remember(requests, acted.state)
        if self._stream is not None:
            self._stream.synchronize()
        return _arrays(outputs), [_arrays(state) for state in sent]

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True) if self._on_cuda else tensor

    def _to_host(self, tensor: Tensor) -> Tensor:
        """On CUDA it is there once the stream is synchronised."""
        if not self._on_cuda:
            return tensor
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return pinned.copy_(tensor, non_blocking=True)

    def _side_stream(self) -> contextlib.AbstractContextManager[object]:
        return torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext()

    def _autocast(self) -> contextlib.AbstractContextManager[object]:
        if self._dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, self._dtype)

    def _grow(self, num_rows: int) -> None:
        self.num_buffered_rows = min(self._max_batch, 1 << (num_rows - 1).bit_length())
        self._tensors = {spec.name: self._allocate(spec.shape, spec.dtype) for spec in self._specs}
        self._arrays = {name: tensor.numpy() for name, tensor in self._tensors.items()}
        self._first = self._allocate((), "bool")

    def _allocate(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        return torch.empty(
            (self.num_buffered_rows, *shape), dtype=_torch_dtype(dtype), pin_memory=self._on_cuda
        )


def _rows(requests: Sequence[Request]) -> Iterator[slice]:
    """Where the rows of each request are in the batch."""
    start = 0
    for request in requests:
        yield slice(start, start + request.num_rows)
        start += request.num_rows


def _joined_states(states: Sequence[State]) -> State:
    if len(states) == 1:
        return states[0]
    return {name: torch.cat([state[name] for state in states]) for name in states[0]}


def _joined_choices(requests: Sequence[Request]) -> Choice:
    choices = [request.session.choice for request in requests]
    if len(choices) == 1:
        return choices[0]
    rows = [request.num_rows for request in requests]
    return Choice(
        greedy=_joined_rows([choice.greedy for choice in choices], rows),
        epsilon=_joined_rows([choice.epsilon for choice in choices], rows),
        noise=_joined_rows([choice.noise for choice in choices], rows),
    )


def _joined_rows(parts: Sequence[Tensor | None], rows: Sequence[int]) -> Tensor | None:
    """Zeros for those that have none; None if nobody has any."""
    one = next((part for part in parts if part is not None), None)
    if one is None:
        return None
    return torch.cat(
        [one.new_zeros(num) if part is None else part for part, num in zip(parts, rows, strict=True)]
    )


def _remember(requests: Sequence[Request], state: State) -> None:
    if len(requests) == 1:
        requests[0].session.memory = state
        return
    for request, rows in zip(requests, _rows(requests), strict=True):
        memory = request.session.memory
        if memory is None:
            # Copied: a view would keep the whole batch alive for as long as a slow stream does not step.
            request.session.memory = {name: tensor[rows].clone() for name, tensor in state.items()}
            continue
        for name, tensor in state.items():
            memory[name].copy_(tensor[rows])


def _arrays(tensors: dict[str, Tensor]) -> Columns:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _torch_dtype(name: str) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=name)).dtype


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
