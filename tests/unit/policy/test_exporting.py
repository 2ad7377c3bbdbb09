"""Exported networks of every kind do what the policy does, and the check sees it when they do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.config.network import PolicySection
from shoal.errors import UserError
from shoal.policy.export_check import TOLERANCE, Arrays, Step, largest_difference, open_onnx, open_torch
from shoal.policy.exporting import NEXT, PARAMS, ActingNetwork, write_onnx, write_torch
from shoal.policy.network import Choice, Policy, build_policy
from shoal.records import ACTION, ArraySpec, BoxAction, DiscreteAction, EnvSpec, MultiDiscreteAction
from tests.unit.policy.stepping import (
    BOX,
    CPU,
    MIXED,
    PIXELS,
    UNBOUNDED,
    VECTOR,
    episode_starts,
    mask_of,
    observe,
    spec_of,
)

PICTURE = ArraySpec("observation.picture", "uint8", (3, 9, 8))
DEPTH = ArraySpec("observation.depth", "float32", (36, 40), 0, -1.0, 3.0)
MANY = ArraySpec("observation.many", "int64", (2,), 2000)
COUNTS = ArraySpec("observation.counts", "int32", (3,), 0, -5.0, 5.0)
FEW = ArraySpec("observation.few", "uint8", (4, 4), 0, 0.0, 9.0)
LSTM = {"recurrent": "lstm", "recurrent_size": 4}
GRU = {"recurrent": "gru", "recurrent_size": 4}

CASES: dict[str, tuple[dict[str, object], EnvSpec]] = {
    "discrete": ({}, spec_of(DiscreteAction(3))),
    "dict observation": ({}, spec_of(DiscreteAction(3), *MIXED)),
    "mask": ({}, spec_of(DiscreteAction(4), VECTOR, mask_of(4))),
    "multi-discrete, mask": (LSTM, spec_of(MultiDiscreteAction((3, 2, 4)), VECTOR, mask_of(9))),
    "multi-discrete": ({"activation": "relu"}, spec_of(MultiDiscreteAction((3, 3)))),
    "box": ({}, spec_of(BOX)),
    "unbounded box": (GRU, spec_of(UNBOUNDED)),
    "lstm": (LSTM, spec_of(DiscreteAction(3))),
    "gru, stack of a dict": ({**GRU, "frame_stack": 3}, spec_of(DiscreteAction(3), *MIXED)),
    "nature_cnn, stack": ({"frame_stack": 2}, spec_of(DiscreteAction(3), PIXELS)),
    "impala_resnet, dict": ({"network": "impala_resnet"}, spec_of(DiscreteAction(3), PICTURE, VECTOR)),
    "q, mask": ({"kind": "q"}, spec_of(DiscreteAction(4), VECTOR, mask_of(4))),
    "q, lstm": ({"kind": "q", "dueling": False, **LSTM}, spec_of(DiscreteAction(4))),
    "soft_actor_critic": ({"kind": "soft_actor_critic"}, spec_of(BOX)),
    "deterministic, gru": ({"kind": "deterministic", **GRU}, spec_of(BOX)),
    "images of floats": ({}, spec_of(DiscreteAction(3), DEPTH, VECTOR)),
    "embedded, integers": ({}, spec_of(DiscreteAction(3), MANY, COUNTS)),
    "normalised integers": ({"normalise_observations": True, **GRU}, spec_of(DiscreteAction(3), COUNTS, FEW)),
    "normalised": ({"normalise_observations": True, "frame_stack": 2}, spec_of(DiscreteAction(3), *MIXED)),
}
# Slow to write: a second each.
ONNX = (
    "multi-discrete, mask",
    "unbounded box",
    "gru, stack of a dict",
    "nature_cnn, stack",
    "q, mask",
    "images of floats",
    "embedded, integers",
    "normalised integers",
    "normalised",
)


def build(case: str) -> Policy:
    torch.manual_seed(2)
    settings, spec = CASES[case]
    policy = build_policy(PolicySection.model_validate({"hidden_sizes": (8,), **settings}), spec)
    with torch.no_grad():
        # Fresh heads of distributions are near zero: louder ones tell actions apart and leave the bounds.
        for name, parameter in policy.named_parameters():
            if name.startswith("policy_head"):
                parameter.mul_(300.0)
    if policy.normaliser is not None:
        seen = {name: 3 * array + 1 for name, array in observe(spec, 5, 4).items()}
        policy.normaliser.observe(policy.normaliser.moments(seen))
    return policy


def check_against_acting(policy: Policy, step: Step, num_envs: int) -> None:
    """Row by row against greedy rows of `act`, clipped as actors clip; both remember for themselves."""
    seen, first_SB = observe(policy.spec, 6, num_envs), episode_starts(6, max(3, num_envs))[:, :num_envs]
    first_SB[0] = True
    greedy = Choice(greedy=torch.ones(num_envs, dtype=torch.bool))
    ours = theirs = policy.initial_state(num_envs, CPU)
    outside = 0
    for row, first in enumerate(first_SB):
        observation = {name: array[row] for name, array in seen.items()}
        with torch.inference_mode():
            acted = policy.act(observation, first, ours, greedy)
        # The order of names must not matter.
        found = step(dict(reversed(observation.items())), first, dict(reversed(theirs.items())))
        action = acted.outputs[ACTION]
        bounds = policy.spec.action
        if isinstance(bounds, BoxAction):
            low, high = (np.reshape(side, bounds.shape) for side in (bounds.low, bounds.high))
            clipped = torch.from_numpy(np.clip(action.numpy(), low, high).astype(np.float32))
            outside += int((clipped != action).sum())
            action = clipped
        torch.testing.assert_close(found[ACTION], action, atol=TOLERANCE, rtol=TOLERANCE)
        ours = acted.state
        theirs = {name.removeprefix(NEXT): found[name] for name in found if name.startswith(NEXT)}
        assert theirs.keys() == ours.keys()
        for name, tensor in ours.items():
            torch.testing.assert_close(theirs[name], tensor, atol=TOLERANCE, rtol=TOLERANCE)
    if isinstance(policy.spec.action, BoxAction) and type(policy).__name__ == "ActorCritic":
        assert outside or num_envs == 1, "nothing was clipped: the test shows nothing"


@pytest.mark.parametrize("case", CASES)
def test_torch(case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    policy, path = build(case), tmp_path / "x.pt2"
    network = ActingNetwork(policy)
    write_torch(network, path)
    step = open_torch(path)
    assert largest_difference(network, step) <= TOLERANCE
    for num_envs in (1, 7):
        check_against_acting(policy, step, num_envs)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("case", ONNX)
def test_onnx(case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    policy, path = build(case), tmp_path / "x.onnx"
    network = ActingNetwork(policy)
    write_onnx(network, path)
    assert [file.name for file in tmp_path.iterdir()] == ["x.onnx"], "one file, with the weights in it"
    step = open_onnx(path)
    difference = largest_difference(network, step)
    assert difference <= TOLERANCE
    for num_envs in (1, 7):
        check_against_acting(policy, step, num_envs)
    assert capfd.readouterr() == ("", "")
    print(f"{case}: largest difference {difference:.2g}")


def test_names_and_shapes_of_an_onnx_file(tmp_path: Path) -> None:
    import onnxruntime

    network = ActingNetwork(build("mask"))
    write_onnx(network, tmp_path / "x.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "x.onnx")
    assert {array.name: array.shape for array in session.get_inputs()} == {
        "observation": ["batch", 4],
        "action_mask": ["batch", 4],
        "first": ["batch"],
    }
    assert {array.name: array.shape for array in session.get_outputs()} == {
        "action": ["batch"],
        "params": ["batch", 4],
    }


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_exported_that_acting_does_without(case: str) -> None:
    policy = build(case)
    network = ActingNetwork(policy).requires_grad_(True)
    for name in policy.only_for_training:
        assert hasattr(policy, name), "the policy itself stays whole"
    observation, first, state = network.zeros(2)
    outputs = network(observation, first, state)
    sum(tensor.float().sum() for tensor in outputs.values() if tensor.requires_grad).backward()
    unused = [name for name, parameter in network.named_parameters() if parameter.grad is None]
    assert unused == []


def spoil(outputs: Arrays, name: str, change: Callable[[Tensor], Tensor]) -> Arrays:
    return {**outputs, name: change(outputs[name])}


SPOILT: dict[str, Callable[[Arrays], Arrays]] = {
    "another action": lambda o: spoil(o, ACTION, lambda action: (action + 1) % 3),
    "params a little off": lambda o: spoil(o, PARAMS, lambda params: params + 3e-5),
    "NaN": lambda o: spoil(o, PARAMS, lambda params: params * float("nan")),
    "a state off": lambda o: spoil(o, "next.recurrent.h", lambda state: state * 1.001),
    "another dtype": lambda o: spoil(o, ACTION, lambda action: action.int()),
    "another shape": lambda o: spoil(o, PARAMS, lambda params: params[..., None]),
    "a name missing": lambda o: {name: tensor for name, tensor in o.items() if name != PARAMS},
}


@pytest.mark.parametrize("fault", SPOILT)
def test_a_difference_is_seen(fault: str) -> None:
    network = ActingNetwork(build("lstm"))
    assert largest_difference(network, network) == 0.0
    difference = largest_difference(network, lambda *arguments: SPOILT[fault](network(*arguments)))
    assert difference > TOLERANCE


@pytest.mark.parametrize("case", ["lstm", "gru, stack of a dict"])
def test_a_network_that_does_not_forget_is_seen(case: str) -> None:
    network = ActingNetwork(build(case))

    def remembers(observation: Arrays, first: Tensor, state: Arrays) -> Arrays:
        outputs: Arrays = network(observation, torch.zeros_like(first), state)
        return outputs

    assert largest_difference(network, remembers) > TOLERANCE


def test_a_network_for_one_batch_size_only_is_seen() -> None:
    network = ActingNetwork(build("discrete"))

    def of_one(observation: Arrays, first: Tensor, state: Arrays) -> Arrays:
        outputs: Arrays = network(observation, first, state)
        return {name: tensor[:1].expand_as(tensor) for name, tensor in outputs.items()}

    assert largest_difference(network, of_one) > TOLERANCE


OWN = """
import torch

class Encoder(torch.nn.Module):
    num_features = 4
    def forward(self, observation):
        seen = observation["observation"]
        return seen if {condition} else -seen

def build(observation):
    return Encoder()
"""


def test_an_encoder_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(OWN.format(condition="len(observation) == 1"))
    (tmp_path / "bad.py").write_text(OWN.format(condition="float(seen.sum()) >= 0"))
    good, bad = (
        ActingNetwork(
            build_policy(PolicySection(network=f"{tmp_path}/{name}.py:build"), spec_of(DiscreteAction(3)))
        )
        for name in ("good", "bad")
    )
    write_torch(good, tmp_path / "x.pt2")
    assert largest_difference(good, open_torch(tmp_path / "x.pt2")) <= TOLERANCE
    with pytest.raises(UserError, match=r"torch\.export cannot trace this network: ") as caught:
        write_torch(bad, tmp_path / "y.pt2")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
