"""Where a network runs: the `device` and `threads` settings of a service."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from shoal.cpus import num_cpus
from shoal.errors import UserError

# Multiplications of a forward pass from which on two threads beat one (services/learner/README.md).
_WORTH_SHARING = 1 << 23


def pick_device(name: str, setting: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or `cuda:N` as a device; `setting` is the key to name in the error.

    Raises UserError if the GPU is not there, at once instead of at the first batch.
    """
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if num_gpus else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= num_gpus:
        built = "" if torch.version.cuda else "; this torch was built without CUDA"
        raise UserError(
            f"{setting} is {name!r}, but torch sees {num_gpus} GPUs here{built}: set {setting} to 'cpu' or "
            "'auto', or start the service where the GPU is"
        )
    return device


def cpu_threads(setting: int, part: float, share: int = 1) -> int:
    """For `torch.set_num_threads`: `setting`, or for 0 a `part` of the CPUs that this process may use.

    The part is divided among `share` threads that compute side by side; each gets at least one.
    """
    return setting or max(1, int(num_cpus() * part) // share)


def products_per_row(network: nn.Module) -> float:
    """Multiplications of a forward pass: one per weight of a dense layer; infinite with convolutions."""
    if any(isinstance(module, _ConvNd) for module in network.modules()):
        return math.inf
    return sum(parameter.numel() for parameter in network.parameters())


def fitting_threads(most: int, products: float) -> int:
    """How many of `most` threads pay for a pass with so many multiplications: all of them or one.

    Threads that share small operations wait for each other longer than they compute.
    """
    return most if products >= _WORTH_SHARING else 1
