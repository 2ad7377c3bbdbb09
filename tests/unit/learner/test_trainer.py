"""The learner step: kernels, clipping, the guard against NaN and infinity, save and load."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from services.learner.flat import FlatParameters
from services.learner.optimiser import Adam
from services.learner.trainer import Trainer
from shoal.algorithms.algorithm import Algorithm, LossOutput, build_algorithm
from shoal.algorithms.batch import Batch
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.config.network import PolicySection
from shoal.errors import CheckpointError, NonFiniteError
from shoal.policy.network import Policy, build_policy
from shoal.policy.weights import load_policy_bytes
from shoal.records import ArraySpec, DiscreteAction, EnvSpec

SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (3,)),), DiscreteAction(2))


def make_policy(seed: int = 1, hidden: tuple[int, ...] = (5, 5)) -> Policy:
    torch.manual_seed(seed)
    return build_policy(PolicySection(hidden_sizes=hidden), SPEC)


def make_batch(reward: float = 1.0) -> Batch:
    generator = torch.Generator().manual_seed(3)
    shape = (5, 4)
    none = torch.zeros(shape, dtype=torch.bool)
    ends = none.clone()
    ends[-2] = True
    return Batch(
        observation={"observation": torch.randn(*shape, 3, generator=generator)},
        action_SB=torch.randint(0, 2, shape, generator=generator),
        reward_SB=torch.full(shape, reward),
        terminated_SB=ends,
        truncated_SB=none,
        first_SB=none,
        weight_B=torch.ones(shape[1]),
        behaviour={"log_prob": torch.full(shape, -0.7)},
    )


def make_trainer(policy: Policy, learning_rate: float = 1e-2, max_grad_norm: float = 0.5) -> Trainer:
    return Trainer(build_algorithm(ImpalaConfig(learning_rate=learning_rate), policy), max_grad_norm)


class Scripted(Algorithm[Policy]):
    """An algorithm whose loss the test chooses, a function of the first parameter."""

    def __init__(self, policy: Policy, *factors: float) -> None:
        super().__init__(ImpalaConfig(learning_rate=0.1), policy)
        self._factors = list(factors)

    def loss(self, batch: Batch) -> LossOutput:
        loss = self._factors.pop(0) * next(self.policy.parameters()).sum()
        return LossOutput(loss, {"value_loss": loss.detach()}, torch.ones(()))


class Kernels(TorchDispatchMode):
    """Counts operations that compute; views do not."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not func.is_view:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_step_of_adam_is_a_few_kernels_however_many_layers() -> None:
    flat = FlatParameters(nn.Sequential(*[nn.Linear(4, 4) for _ in range(20)]))
    adam = Adam(Scripted(make_policy()), flat)
    with Kernels() as kernels:
        adam.step(flat.groups)
    print(f"{len(kernels.names)} kernels for 40 parameters: {', '.join(kernels.names)}")
    assert 0 < len(kernels.names) <= 3


def test_flat_parameters_are_the_modules_own() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    flat = FlatParameters(module)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter, before[name], rtol=0, atol=0)
        assert parameter.data_ptr() % 64 == flat.data.data_ptr() % 64
    module(torch.ones(1, 3)).sum().backward()
    expected = sum(
        float(parameter.grad.sum()) for parameter in module.parameters() if parameter.grad is not None
    )
    assert flat.grad.sum().item() == pytest.approx(expected)
    assert expected != 0
    flat.data.fill_(2.0)
    assert all(bool((parameter == 2.0).all()) for parameter in module.parameters())
    copy = flat.arrays(flat.data)
    flat.data.fill_(3.0)
    assert all((array == 2.0).all() for array in copy.values())


def test_a_step_learns_and_counts() -> None:
    policy = make_policy()
    trainer = make_trainer(policy)
    batch = make_batch()
    losses = [trainer.step(batch).metrics["value_loss"].item() for _ in range(300)]
    assert losses[-1] < 0.5 * losses[0]
    assert trainer.num_steps == 300


def test_gradients_are_clipped_to_the_norm() -> None:
    """The step's direction and the norm that it reports are those of the whole gradient."""
    policy = make_policy()
    small, large = make_policy(), make_policy()
    clipped, whole = make_trainer(small, max_grad_norm=0.01), make_trainer(large, max_grad_norm=1e9)
    for trainer in (clipped, whole):
        norm = trainer.step(make_batch()).grad_norm
        assert norm > 0.1
    gradients = [
        torch.cat([p.grad.flatten() for p in other.parameters() if p.grad is not None])
        for other in (small, large)
    ]
    assert gradients[0].norm().item() == pytest.approx(0.01, rel=1e-4)
    torch.testing.assert_close(gradients[0] / gradients[0].norm(), gradients[1] / gradients[1].norm())
    assert not torch.equal(next(policy.parameters()), next(small.parameters()))


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 1e38])
def test_a_loss_that_is_not_finite_stops_before_the_weights_change(factor: float) -> None:
    policy = make_policy()
    trainer = Trainer(Scripted(policy, 1.0, factor), 1e30)
    trainer.step(make_batch())
    before = save(trainer.weights())
    with pytest.raises(
        NonFiniteError, match=r"at learner step 2: loss .*value_loss.*gradient norm .*not taken"
    ):
        trainer.step(make_batch())
    assert save(trainer.weights()) == before
    assert trainer.num_steps == 1


def test_rewards_out_of_range_stop_with_the_reason() -> None:
    trainer = make_trainer(make_policy())
    with pytest.raises(NonFiniteError, match="value_loss inf") as caught:
        trainer.step(make_batch(reward=3e38))
    print(f"said: {caught.value}")


def test_weights_that_are_not_finite_do_not_get_out() -> None:
    policy = make_policy()
    trainer = make_trainer(policy)
    trainer.weights()
    with torch.no_grad():
        policy.value_head.weight[0, 2] = float("nan")
    with pytest.raises(NonFiniteError, match=r"weights after learner step 0: value_head\.weight"):
        trainer.weights()
    with pytest.raises(NonFiniteError, match=r"value_head\.weight"):
        trainer.state()


def test_buffers_that_are_not_finite_do_not_get_out() -> None:
    policy = make_policy()
    policy.register_buffer("mean", torch.zeros(3))
    policy.register_buffer("count", torch.zeros((), dtype=torch.int64))
    trainer = make_trainer(policy)
    assert {"mean", "count"} < set(trainer.weights())
    policy.get_buffer("mean")[1] = float("inf")
    with pytest.raises(NonFiniteError, match=r"weights after learner step 0: mean\. They are not published"):
        trainer.weights()
    with pytest.raises(NonFiniteError, match="mean"):
        trainer.state()


def test_weights_are_what_inference_loads() -> None:
    policy, other = make_policy(1), make_policy(2)
    trainer = make_trainer(policy)
    for _ in range(3):
        trainer.step(make_batch())
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    load_policy_bytes(other, save(trainer.weights()))
    theirs = other.state_dict()
    for name, ours in policy.state_dict().items():
        # Values are for training: they stay with the learner.
        expected = before[name] if name.startswith(("value_head", "value_trunk")) else ours
        assert torch.equal(theirs[name], expected), name


def test_what_left_does_not_change_with_training() -> None:
    trainer = make_trainer(make_policy())
    trainer.step(make_batch())
    weights, state = trainer.weights(), trainer.state()
    copies = [{name: array.copy() for name, array in arrays.items()} for arrays in (weights, state)]
    trainer.step(make_batch())
    for arrays, copy in zip((weights, state), copies, strict=True):
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, copy[name])


def test_loading_goes_on_exactly_where_saving_was() -> None:
    straight = make_trainer(make_policy(1))
    for _ in range(5):
        straight.step(make_batch())
    state = straight.state()
    drawn = torch.rand(3)
    resumed = make_trainer(make_policy(2))
    resumed.load_state(state)
    torch.testing.assert_close(torch.rand(3), drawn, rtol=0, atol=0)
    assert resumed.num_steps == 5
    for _ in range(5):
        straight.step(make_batch())
        resumed.step(make_batch())
    for name, array in straight.state().items():
        np.testing.assert_array_equal(resumed.state()[name], array, err_msg=name)


def test_state_of_another_policy_is_refused_and_changes_nothing() -> None:
    trainer = make_trainer(make_policy(1, (5, 5)))
    before = trainer.state()
    with pytest.raises(CheckpointError, match=r"float32\[6\] instead of float32\[5\]; .*and \d+ more"):
        trainer.load_state(make_trainer(make_policy(1, (6, 6))).state())
    with pytest.raises(CheckpointError, match=r"encoder.*is not a weight of this policy|encoder.*is missing"):
        trainer.load_state(make_trainer(make_policy(1, (5,))).state())
    for name, array in trainer.state().items():
        if name != "rng/cpu":
            np.testing.assert_array_equal(array, before[name])


def test_no_tensor_waits_for_the_device() -> None:
    """Metrics leave as tensors: converting them is up to the reporter's timer."""
    outcome = make_trainer(make_policy()).step(make_batch())
    assert all(isinstance(value, Tensor) for value in outcome.metrics.values())
    assert isinstance(outcome.loss, float)
