"""The acting network of a policy as a file that runs without shoal: `torch.export` or ONNX.

One step of B environments: observations, `first` and what the policy remembers go in; the greedy action,
what it was chosen from and the new memory come out. Used by `shoal export`; `shoal.policy.export_check`
compares the file with the policy. One thread at a time.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from shoal.errors import UserError
from shoal.policy.network import Policy
from shoal.records import ACTION, FIRST, ArraySpec, BoxAction

PARAMS = "params"
# In front of the name of a state, after the step.
NEXT = "next."

# Any but 0 and 1, which are taken for constants.
_NUM_TRACED = 3
_MAX_SHOWN = 300


class ActingNetwork(nn.Module):
    """What is exported. Actions are as the environment takes them: those of a Box within its bounds."""

    low: Tensor
    high: Tensor

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = copy.deepcopy(policy).cpu().eval().requires_grad_(False)
        for name in policy.only_for_training:
            delattr(self.policy, name)
        action = policy.spec.action
        self.is_bounded = isinstance(action, BoxAction)
        if isinstance(action, BoxAction):
            for name, bounds in (("low", action.low), ("high", action.high)):
                self.register_buffer(name, torch.tensor(bounds, dtype=torch.float32).reshape(action.shape))

    @property
    def inputs(self) -> tuple[ArraySpec, ...]:
        """In the order of the file."""
        return (*self.policy.spec.observation, ArraySpec(FIRST, "bool", ()), *self.policy.state)

    @property
    def outputs(self) -> tuple[ArraySpec, ...]:
        """In the order of the file."""
        with torch.no_grad():
            found = self(*self.zeros(1))
        return tuple(
            ArraySpec(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape[1:]))
            for name, tensor in found.items()
        )

    def zeros(self, num_envs: int) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        """Arguments of `forward`."""
        observation = {
            array.name: torch.zeros((num_envs, *array.shape), dtype=getattr(torch, array.dtype))
            for array in self.policy.spec.observation
        }
        state = self.policy.initial_state(num_envs, torch.device("cpu"))
        return observation, torch.zeros(num_envs, dtype=torch.bool), state

    def forward(
        self, observation: dict[str, Tensor], first: Tensor, state: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        best = self.policy.best(observation, first, state)
        action = torch.clamp(best.action, self.low, self.high) if self.is_bounded else best.action
        return {
            ACTION: action,
            PARAMS: best.params,
            # Cloned: nothing that comes out may be a view of what went in.
            **{NEXT + name: tensor.clone() for name, tensor in best.state.items()},
        }


def write_torch(network: ActingNetwork, path: Path) -> None:
    """As an `ExportedProgram` for any number of environments. Raises UserError, and OSError."""
    with quiet():
        torch.export.save(_traced(network), path)


def write_onnx(network: ActingNetwork, path: Path) -> None:
    """As an ONNX model for any number of environments. Raises UserError, and OSError."""
    import onnx

    with quiet():
        program = _traced(network)
        try:
            converted = torch.onnx.export(
                program,
                dynamo=True,
                # Gives the open dimension its name; that of the traced program is made up.
                dynamic_shapes=[_any_batch()] * len(network.inputs),
                input_names=[array.name for array in network.inputs],
                output_names=[array.name for array in network.outputs],
                verbose=False,
            )
        except Exception as error:  # an operation that ONNX has no word for
            raise UserError(f"torch.onnx cannot convert this network: {_one_line(error)}") from error
        assert converted is not None
        # Weights inside: one file to carry about.
        converted.save(path, external_data=False)
        onnx.checker.check_model(path, full_check=True)


def _traced(network: ActingNetwork) -> ExportedProgram:
    observation, _, state = arguments = network.zeros(_NUM_TRACED)
    batch = _any_batch()
    shapes = dict.fromkeys(observation, batch), batch, dict.fromkeys(state, batch)
    try:
        with torch.no_grad():
            return torch.export.export(network, arguments, dynamic_shapes=shapes)
    except Exception as error:  # whatever an encoder of the user's own does that cannot be traced
        raise UserError(f"torch.export cannot trace this network: {_one_line(error)}") from error


def _any_batch() -> dict[int, Dim]:
    """The shape of an array whose first dimension, how many environments there are, is left open."""
    return {0: Dim("batch", min=1)}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps back what the exporters say about themselves."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _one_line(error: Exception) -> str:
    """The start of the cause, which the exporters wrap in pages of advice."""
    while error.__cause__ is not None and isinstance(error.__cause__, Exception):
        error = error.__cause__
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
