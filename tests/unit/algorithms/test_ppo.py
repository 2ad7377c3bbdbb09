"""PPO: its targets, that its first ratios are 1, and that its passes learn."""

from __future__ import annotations

import pytest
import torch

from shoal.algorithms.algorithm import build_algorithm
from shoal.algorithms.appo.profile import AppoConfig
from shoal.algorithms.clipped import ADVANTAGE, OLD_LOG_PROB, OLD_VALUE, RETURN
from shoal.algorithms.gae import gae
from shoal.algorithms.ppo.algorithm import Ppo
from shoal.algorithms.ppo.profile import PpoConfig
from shoal.config.network import PolicySection
from shoal.policy.network import ActorCritic, build_policy
from shoal.records import ActionSpec, BoxAction, DiscreteAction, MultiDiscreteAction
from tests.unit.algorithms.acted import acted_batch
from tests.unit.algorithms.table_policy import NUM_ENVS, TablePolicy, make_batch, places_of
from tests.unit.policy.stepping import BOX, VECTOR, episode_starts, mask_of, observe, spec_of


@pytest.mark.parametrize("recomputed", [False, True])
def test_targets_are_gae_of_the_values_before_the_batch_or_the_pass(recomputed: bool) -> None:
    policy, batch = TablePolicy(), make_batch()
    config = PpoConfig(
        discount=0.9,
        gae_lambda=0.8,
        normalise_advantages=False,
        epochs=3,
        minibatches=4,
        recompute_advantages=recomputed,
    )
    value = policy.value.detach().clone()
    num_parts = 0
    for part in Ppo(config, policy).passes(batch):
        if recomputed and num_parts % 4 == 0:
            value = policy.value.detach().clone()
        num_parts += 1
        advantage, returns = gae(
            reward_TB=batch.reward_SB[:-1],
            discount_TB=(~batch.terminated_SB[:-1]) * 0.9,
            value_SB=value,
            valid_TB=(~batch.first_SB[1:]).float(),
            gae_lambda=0.8,
        )
        places = places_of(part)
        torch.testing.assert_close(part.targets[ADVANTAGE], advantage[places])
        torch.testing.assert_close(part.targets[RETURN], returns[places])
        torch.testing.assert_close(part.targets[OLD_VALUE], value[places])
        torch.testing.assert_close(part.targets[OLD_LOG_PROB], batch.behaviour["log_prob"][places])
        assert not any(target.requires_grad for target in part.targets.values())
        # What a step does to the values counts from the next pass on, or not at all.
        with torch.no_grad():
            policy.value += torch.arange(float(NUM_ENVS))
    assert num_parts == 3 * 4


@pytest.mark.parametrize("action", [DiscreteAction(5), MultiDiscreteAction((2, 3)), BOX])
@pytest.mark.parametrize("settings", [{}, {"recurrent": "lstm", "frame_stack": 3}])
@pytest.mark.parametrize("name", ["ppo", "appo"])
def test_the_first_pass_is_on_policy(action: ActionSpec, settings: dict[str, object], name: str) -> None:
    """Parts of unrolls from stored states give the log probabilities that the actor was told."""
    torch.manual_seed(4)
    mask = () if isinstance(action, BoxAction) else (mask_of(5),)
    policy = build_policy(PolicySection.model_validate(settings), spec_of(action, VECTOR, *mask))
    assert isinstance(policy, ActorCritic)
    config = PpoConfig() if name == "ppo" else AppoConfig()
    algorithm = build_algorithm(config, policy)
    batch = acted_batch(policy, observe(policy.spec, 6, 4), episode_starts(6, 4))
    for part in list(algorithm.passes(batch)):
        output = algorithm.loss(part)
        assert output.metrics["approx_kl"].item() == pytest.approx(0.0, abs=1e-5)
        assert output.metrics["clip_fraction"].item() == 0.0
        output.loss.backward()
    assert all(
        parameter.grad is not None and parameter.grad.isfinite().all() for parameter in policy.parameters()
    )


def test_only_the_policy_is_kept() -> None:
    ppo = Ppo(PpoConfig(), TablePolicy())
    assert {name.split(".")[0] for name in ppo.state_dict()} == {"policy"}
