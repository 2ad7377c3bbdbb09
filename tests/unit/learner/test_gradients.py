"""Losses in parts, in less precision and compiled make the steps of float32 in one go, or nearly."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from services.learner.precision import Precision
from services.learner.trainer import Trainer
from shoal.algorithms.algorithm import Algorithm, LossOutput, build_algorithm
from shoal.algorithms.batch import Batch
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.algorithms.ppo.profile import PpoConfig
from shoal.config import load_config
from shoal.config.network import PolicySection
from shoal.errors import ConfigError, NonFiniteError
from shoal.policy.network import Policy, build_policy
from shoal.records import ArraySpec, DiscreteAction, EnvSpec
from tests.unit.learner import any_algorithm

SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (3,)),), DiscreteAction(2))


def make_policy() -> Policy:
    torch.manual_seed(1)
    return build_policy(PolicySection(hidden_sizes=(16, 16)), SPEC)


def make_batch(seed: int = 3, num_envs: int = 7) -> Batch:
    """Environments with different numbers of valid steps, one of which counts for nothing."""
    generator = torch.Generator().manual_seed(seed)
    shape = (6, num_envs)
    none = torch.zeros(shape, dtype=torch.bool)
    first = torch.rand(shape, generator=generator) < 0.2
    weight = torch.ones(num_envs)
    weight[0] = 0.0
    return Batch(
        observation={"observation": torch.randn(*shape, 3, generator=generator)},
        action_SB=torch.randint(0, 2, shape, generator=generator),
        reward_SB=torch.randn(shape, generator=generator),
        terminated_SB=none,
        truncated_SB=none,
        first_SB=first,
        weight_B=weight,
        behaviour={"log_prob": torch.full(shape, -0.7)},
    )


def make_trainer(
    accumulate: int = 1, precision: Precision | None = None, compile_loss: bool = False
) -> Trainer:
    algorithm = build_algorithm(ImpalaConfig(learning_rate=1e-2), make_policy())
    return Trainer(algorithm, 0.5, accumulate, precision=precision, compile_loss=compile_loss)


class Scaled(Algorithm[Policy]):
    """A loss whose gradient the test chooses: `factor`, in every element of the first parameter."""

    def __init__(self, factor: float) -> None:
        super().__init__(ImpalaConfig(), make_policy())
        self.factor = factor
        self.num_losses = 0

    def loss(self, batch: Batch) -> LossOutput:
        self.num_losses += 1
        # As if the product was in float16: what is too large for it is infinite.
        parameter = next(self.policy.parameters())
        return LossOutput((_InHalf.apply(parameter) * self.factor).sum(), {}, torch.ones(()))  # type: ignore[no-untyped-call]


class _InHalf(torch.autograd.Function):
    """Gradients pass through float16."""

    @staticmethod
    def forward(context: object, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient.half().float()


@pytest.mark.parametrize(("accumulate", "num_envs"), [(2, 7), (3, 7), (4, 4), (100, 4)])
def test_parts_make_the_step_of_the_whole(accumulate: int, num_envs: int) -> None:
    """With as many parts as environments, in one of them nothing counts."""
    whole, parts = make_trainer(), make_trainer(accumulate)
    for seed in range(5):
        batch = make_batch(seed, num_envs)
        expected, found = whole.step(batch), parts.step(batch)
        assert found.loss == pytest.approx(expected.loss, rel=1e-4, abs=1e-6)
        assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-4)
    for name, array in whole.weights().items():
        np.testing.assert_allclose(parts.weights()[name], array, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("name", any_algorithm.NAMES)
def test_a_part_in_which_nothing_counts_changes_nothing(name: str) -> None:
    trainer = any_algorithm.build(name, seed=1)
    algorithm = trainer._algorithm
    batch = any_algorithm.batch_of(algorithm, any_algorithm.spec_of(name), seed=2)
    part = next(iter(algorithm.passes(batch)))
    part.weight_B.zero_()
    output = algorithm.loss(part)
    assert output.weight.item() == output.loss.item() == 0.0


def test_a_batch_in_parts_of_which_nothing_counts_makes_no_step() -> None:
    trainer, batch = make_trainer(2), make_batch()
    batch.weight_B.zero_()
    outcome = trainer.step(batch)
    assert (outcome.loss, outcome.grad_norm) == (0.0, 0.0)


def test_a_pass_in_which_nothing_counts_moves_nothing_and_is_no_part_of_the_means() -> None:
    """PPO, an environment a part: those that are too old are passed over, whatever Adam's momentum."""
    torch.manual_seed(1)
    config = PpoConfig(minibatches=6, epochs=1, normalise_advantages=False)
    # With a state, so that parts are of whole environments.
    section = any_algorithm.config_of("ppo").policy.model_copy(update={"frame_stack": 2})
    policy = build_policy(section, any_algorithm.spec_of("ppo"))
    trainer = Trainer(build_algorithm(config, policy), 0.5)
    batch = any_algorithm.batch_of(trainer._algorithm, any_algorithm.spec_of("ppo"), seed=2)
    trainer.step(batch)
    batch.weight_B[1:] = 0.0
    before = trainer.state()
    outcome = trainer.step(batch)
    alone = copy.deepcopy(before)
    assert trainer.state()["adam/num_steps/policy"] == before["adam/num_steps/policy"] + 1
    moved = trainer.weights()
    trainer.load_state(alone)
    expected = trainer.step(batch.take(slice(1)))
    for name, array in trainer.weights().items():
        np.testing.assert_allclose(moved[name], array, rtol=1e-6, atol=1e-8)
    assert outcome.metrics["entropy"].item() == pytest.approx(expected.metrics["entropy"].item())
    assert (outcome.loss, outcome.grad_norm) == pytest.approx((expected.loss, expected.grad_norm))


def test_more_parts_than_environments_are_refused() -> None:
    settings = ["learner.batch_envs=4", "learner.accumulate=5"]
    with pytest.raises(ConfigError, match=r"accumulate \(5\) is above batch_envs \(4\)"):
        load_config(None, settings, {})


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(("name", "tolerance"), [("bfloat16", 0.02), ("float16", 0.005)])
def test_less_precision_makes_nearly_the_same_steps(name: str, tolerance: float, accumulate: int) -> None:
    """Nearly, and not exactly: else nothing was computed in it. Weights and Adam stay in float32."""
    exact, rough = make_trainer(), make_trainer(accumulate, Precision(name))
    norms = []
    for seed in range(5):
        expected, found = exact.step(make_batch(seed)), rough.step(make_batch(seed))
        assert found.loss == pytest.approx(expected.loss, rel=tolerance, abs=tolerance)
        norms.append((expected.grad_norm, found.grad_norm))
    np.testing.assert_allclose(*np.array(norms).T, rtol=5 * tolerance)
    assert max(abs(one / other - 1.0) for one, other in norms) > 1e-5
    for array in rough.state().values():
        assert array.dtype not in (np.float16, np.dtype("V2"))


@pytest.mark.parametrize("name", any_algorithm.NAMES)
def test_gradients_in_bfloat16_point_where_those_of_float32_do(name: str) -> None:
    """Networks are asked with and without gradients in one loss; autocast must not mix the two up."""
    algorithm = any_algorithm.build(name, seed=1)._algorithm
    batch = any_algorithm.batch_of(algorithm, any_algorithm.spec_of(name), seed=2)
    part = next(iter(algorithm.passes(batch)))

    def gradients(reduced: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        algorithm.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=reduced):
            loss = algorithm.loss(part).loss
        torch.autograd.backward(loss)
        return {name: p.grad.clone() for name, p in algorithm.named_parameters() if p.grad is not None}

    whole, reduced = gradients(False), gradients(True)
    assert whole
    for parameter, gradient in whole.items():
        cosine = cosine_similarity(gradient.flatten(), reduced[parameter].flatten(), dim=0)
        assert float(cosine) > 0.95, parameter


def test_float16_halves_its_scale_until_gradients_fit_and_takes_the_step() -> None:
    # 8 x 2^16 is infinite in float16, 8 x 2^12 is not.
    algorithm = Scaled(8.0)
    trainer = Trainer(algorithm, 1e9, precision=Precision("float16"))
    outcome = trainer.step(make_batch())
    assert algorithm.num_losses == 5
    assert outcome.grad_norm == pytest.approx(8.0 * np.sqrt(next(algorithm.policy.parameters()).numel()))
    trainer.step(make_batch())
    assert algorithm.num_losses == 6
    scale = trainer.state()["loss_scale"].tolist()
    assert scale == [2.0**12, 2]


def test_small_gradients_do_not_vanish_in_float16() -> None:
    algorithm = Scaled(1e-9)
    size = np.sqrt(next(algorithm.policy.parameters()).numel())
    assert Trainer(algorithm, 1e9).step(make_batch()).grad_norm == 0.0
    outcome = Trainer(algorithm, 1e9, precision=Precision("float16")).step(make_batch())
    assert outcome.grad_norm == pytest.approx(1e-9 * size, rel=0.01)


def test_what_no_scale_helps_stops_the_run() -> None:
    algorithm = Scaled(1e6)
    trainer = Trainer(algorithm, 1e9, precision=Precision("float16"))
    with pytest.raises(NonFiniteError, match=r"gradient norm inf.*not taken"):
        trainer.step(make_batch())
    assert algorithm.num_losses == 17


def test_the_scale_grows_after_a_while_and_is_kept() -> None:
    precision = Precision("float16")
    precision.back_off()
    for _ in range(2000):
        precision.count_step()
    assert precision.loss_scale == 2.0**16
    trainer = make_trainer(precision=precision)
    precision.back_off()
    trainer.step(make_batch())
    restored = make_trainer(precision=Precision("float16"))
    restored.load_state(trainer.state())
    assert restored.state()["loss_scale"].tolist() == [2.0**15, 1]
    # Of another precision it is nobody's.
    exact = make_trainer()
    exact.load_state(trainer.state())
    assert exact.state()["loss_scale"].tolist() == [1.0, 0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("name", ["impala", "sac"])
def test_a_compiled_loss_is_the_loss(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Traced as for any compiler; the one that torch takes by itself needs C++, which may not be here.

    SAC draws actions, and freezes its critics for a while.
    """
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    plain, compiled = (
        any_algorithm.build(name, 1, compile_loss=compile_loss) for compile_loss in (False, True)
    )
    batches = [
        any_algorithm.batch_of(plain._algorithm, any_algorithm.spec_of(name), seed) for seed in range(3)
    ]
    with caplog.at_level(logging.INFO):
        for seed, batch in enumerate(batches):
            torch.manual_seed(seed)
            expected = plain.step(batch)
            torch.manual_seed(seed)
            found = compiled.step(batch)
            assert found.loss == pytest.approx(expected.loss, rel=1e-5)
            assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    assert caplog.text.count("compiled the loss in") == 1
    for name, array in plain.weights().items():
        np.testing.assert_allclose(compiled.weights()[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_without_a_compiler_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no C++ compiler\nand much more")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    plain, compiled = make_trainer(), make_trainer(compile_loss=True)
    for seed in range(2):
        assert compiled.step(make_batch(seed)).loss == plain.step(make_batch(seed)).loss
    assert caplog.text.count("torch.compile failed (RuntimeError: no C++ compiler)") == 1
    assert "much more" not in caplog.text


@pytest.mark.parametrize("fails_at", ["forward", "backward"])
def test_what_cannot_be_compiled_for_a_later_shape_goes_on_without(
    fails_at: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Seven environments in two parts: three, which the compiler can do, and four."""
    calls: list[int] = []

    def compiled_badly(loss: Callable[[Batch], LossOutput]) -> Callable[[Batch], LossOutput]:
        def call(batch: Batch) -> LossOutput:
            calls.append(batch.num_items)
            output = loss(batch)
            if batch.num_items == 3:
                return output
            if fails_at == "forward":
                raise RuntimeError("no C++ compiler any more")
            return replace(output, loss=_BreaksBackward.apply(output.loss))  # type: ignore[no-untyped-call]

        return call

    monkeypatch.setattr(torch, "compile", compiled_badly)
    plain, compiled = make_trainer(2), make_trainer(2, compile_loss=True)
    for seed in range(2):
        assert compiled.step(make_batch(seed)).loss == plain.step(make_batch(seed)).loss
    # Once to try and once to train with; then once in vain, and never again.
    assert calls == [3, 3, 4]
    assert caplog.text.count("torch.compile failed (RuntimeError: no C++ compiler any more)") == 1
    for name, array in plain.weights().items():
        np.testing.assert_array_equal(compiled.weights()[name], array, err_msg=name)


class _BreaksBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, loss: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no C++ compiler any more")


def test_an_error_of_the_loss_itself_is_not_hidden_by_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda loss: loss)
    compiled = make_trainer(compile_loss=True)
    batch = make_batch()
    with pytest.raises(KeyError, match="log_prob"):
        compiled.step(replace(batch, behaviour={}))
