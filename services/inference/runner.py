"""Runs one batch: requests into one buffer, one forward pass, outputs split into views.

Owned by the model thread. Buffers are allocated once and grow by powers of two up to `max_batch` rows, so
that a generous limit costs nothing until it is used. On CUDA they are pinned, and copies and computation go
on one side stream.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

import numpy as np
import torch

from services.inference.batcher import Request
from services.inference.metrics import InferenceMetrics
from shoal.metrics import Clock
from shoal.policy.network import Policy
from shoal.records import ArraySpec, Columns


class Runner:
    """The batch buffers of one spec on one device."""

    def __init__(
        self,
        observation: tuple[ArraySpec, ...],
        max_batch: int,
        device: torch.device,
        metrics: InferenceMetrics,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._specs = observation
        self._max_batch = max_batch
        self._device = device
        self._metrics = metrics
        self._clock = clock
        self._on_cuda = device.type == "cuda"
        self._stream = _new_stream(device) if self._on_cuda else None
        self.num_buffered_rows = 0
        self._tensors: dict[str, torch.Tensor] = {}
        self._arrays: Columns = {}
        self._greedy = torch.empty(0, dtype=torch.bool)

    def run(self, requests: Sequence[Request], policy: Policy) -> list[Columns]:
        """Outputs of each request, as views of the batch's arrays."""
        clock, phases = self._clock, self._metrics.phases
        start_s = clock()
        num_rows, greedy = self._fill(requests)
        filled_s = clock()
        outputs = self._forward(num_rows, greedy, policy)
        phases.add("copy", filled_s - start_s)
        phases.add("forward", clock() - filled_s)
        return _split(requests, outputs)

    def _fill(self, requests: Sequence[Request]) -> tuple[int, bool]:
        num_rows = sum(request.num_rows for request in requests)
        if num_rows > self.num_buffered_rows:
            self._grow(num_rows)
        start = 0
        for request in requests:
            end = start + request.num_rows
            for name, array in self._arrays.items():
                array[start:end] = request.observation[name]
            start = end
        greedy = any(request.greedy for request in requests)
        if greedy:
            start = 0
            for request in requests:
                self._greedy[start : start + request.num_rows] = request.greedy
                start += request.num_rows
        return num_rows, greedy

    def _forward(self, num_rows: int, greedy: bool, policy: Policy) -> Columns:
        with torch.inference_mode(), self._side_stream():
            observation = {name: self._to_device(tensor[:num_rows]) for name, tensor in self._tensors.items()}
            mask = self._to_device(self._greedy[:num_rows]) if greedy else None
            outputs = policy.act(observation, mask)
            if self._on_cuda:
                outputs = {name: _to_pinned(tensor) for name, tensor in outputs.items()}
        if self._stream is not None:
            self._stream.synchronize()
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, non_blocking=True) if self._on_cuda else tensor

    def _side_stream(self) -> contextlib.AbstractContextManager[object]:
        return torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext()

    def _grow(self, num_rows: int) -> None:
        self.num_buffered_rows = min(self._max_batch, 1 << (num_rows - 1).bit_length())
        self._tensors = {
            spec.name: torch.empty(
                (self.num_buffered_rows, *spec.shape),
                dtype=_torch_dtype(spec.dtype),
                pin_memory=self._on_cuda,
            )
            for spec in self._specs
        }
        self._arrays = {name: tensor.numpy() for name, tensor in self._tensors.items()}
        self._greedy = torch.empty(self.num_buffered_rows, dtype=torch.bool, pin_memory=self._on_cuda)


def _split(requests: Sequence[Request], outputs: Columns) -> list[Columns]:
    if len(requests) == 1:
        return [outputs]
    parts: list[Columns] = []
    start = 0
    for request in requests:
        end = start + request.num_rows
        parts.append({name: array[start:end] for name, array in outputs.items()})
        start = end
    return parts


def _torch_dtype(name: str) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype=name)).dtype


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _to_pinned(tensor: torch.Tensor) -> torch.Tensor:
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)
