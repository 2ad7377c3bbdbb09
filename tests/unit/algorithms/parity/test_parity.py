"""Targets, losses, priorities, sampling and Adam against constants worked out by slow versions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from services.learner.flat import FlatParameters
from services.learner.optimiser import build_optimiser
from services.replay.priority_ring import PriorityRing
from shoal.algorithms.algorithm import Algorithm, LossOutput
from shoal.algorithms.apex.loss import apex_loss
from shoal.algorithms.apex.profile import ApexConfig
from shoal.algorithms.batch import Batch
from shoal.algorithms.gae import gae
from shoal.algorithms.impala.loss import impala_loss
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.algorithms.n_step import n_step
from shoal.algorithms.ppo.algorithm import Ppo
from shoal.algorithms.ppo.profile import PpoConfig
from shoal.algorithms.r2d2.loss import r2d2_loss
from shoal.algorithms.r2d2.profile import R2d2Config
from shoal.algorithms.sac.loss import sac_loss
from shoal.algorithms.sac.profile import SacConfig
from shoal.algorithms.td3.loss import td3_loss
from shoal.algorithms.td3.profile import Td3Config
from shoal.algorithms.vtrace import vtrace
from shoal.clients.replay_weights import importance_weights
from shoal.n_step import n_step as n_step_of_tables
from shoal.policy.network import DeterministicPolicy, SoftActorCritic
from shoal.records import FIRST, TERMINATED, TRUNCATED
from tests.unit.algorithms.continuous import deterministic_policy, soft_policy
from tests.unit.algorithms.parity import cases
from tests.unit.algorithms.q_tables import TableQ
from tests.unit.algorithms.table_policy import TablePolicy

CONSTANTS: dict[str, Any] = json.loads(cases.CONSTANTS.read_text())
COSTS = {"value_cost": cases.VALUE_COST, "entropy_cost": cases.ENTROPY_COST}


def check(family: str, found: dict[str, Any], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """All constants of the family, and nothing else."""
    expected = {
        name.removeprefix(f"{family}."): value
        for name, value in CONSTANTS.items()
        if name.startswith(f"{family}.")
    }
    assert found.keys() == expected.keys()
    for name, value in found.items():
        array = value.detach().numpy() if isinstance(value, Tensor) else value
        np.testing.assert_allclose(array, expected[name], rtol, atol, err_msg=f"{family}.{name}")


def check_loss(family: str, output: LossOutput) -> None:
    names = [name for name in output.metrics if f"{family}.{name}" in CONSTANTS]
    found = {"loss": output.loss, **{name: output.metrics[name] for name in names}}
    check(family, found if output.priority_B is None else found | {"priority": output.priority_B})


def make_batch(weights: tuple[float, ...], action: Any = cases.ACTION) -> Batch:
    """Observations name row and environment, by which policies look up what they give."""
    flags = {"T": torch.zeros(cases.T + 1, cases.B, dtype=torch.bool)}
    flags |= {"L": flags["T"].clone(), "r": flags["T"].clone()}
    for b, marks in enumerate(cases.MARKS):
        for t, mark in enumerate(marks):
            if mark != ".":
                flags[mark][t + (mark == "r"), b] = True
    shape = flags["T"].shape
    acting = [[cases.log_prob(cases.ACTING_LOGITS, t, b) for b in range(cases.B)] for t in range(cases.T + 1)]
    return Batch(
        observation={
            "row": torch.arange(cases.T + 1).unsqueeze(1).expand(shape),
            "env": torch.arange(cases.B).expand(shape),
        },
        action_SB=torch.tensor(action),
        reward_SB=torch.tensor([*cases.REWARD, [0.0] * cases.B]),
        terminated_SB=flags["T"],
        truncated_SB=flags["L"],
        first_SB=flags["r"],
        weight_B=torch.tensor(weights),
        behaviour={"log_prob": torch.tensor(acting)},
    )


def table_policy() -> TablePolicy:
    policy = TablePolicy()
    policy.logits = nn.Parameter(torch.tensor(cases.LOGITS))
    policy.value = nn.Parameter(torch.tensor(cases.VALUE))
    return policy


def table_q(values: Any) -> TableQ:
    policy = TableQ(seed=0)
    policy.q = nn.Parameter(torch.tensor(values))
    return policy


def test_the_slow_versions_still_give_the_constants() -> None:
    found = cases.results()
    assert found.keys() == CONSTANTS.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, CONSTANTS[name], rtol=1e-12, atol=1e-13, err_msg=name)


def test_the_inputs_hold_the_awkward_cases() -> None:
    rho = np.array(CONSTANTS["vtrace.rho"])
    valid = np.array([[mark != "r" for mark in marks] for marks in cases.MARKS]).T
    assert (rho[valid] == cases.RHO_CLIP).any()
    assert (rho[valid] < cases.C_CLIP).any()
    assert ((rho > cases.C_CLIP) & (rho < cases.RHO_CLIP)).any(), "c is clipped and rho is not"
    assert (rho[~valid] == 0).all()
    assert not valid.all()
    assert 0 < CONSTANTS["ppo.clip_fraction"] < 1
    assert CONSTANTS["ppo_normalised.value_loss"] > CONSTANTS["ppo.value_loss"], "some values are clipped"
    means = CONSTANTS["apex.priority"]
    assert min(means) < cases.HUBER < max(means), "errors are on both parts of the Huber loss"
    assert min(CONSTANTS["per.weight"]) < max(CONSTANTS["per.weight"]) == 1


def test_vtrace_and_gae() -> None:
    batch = make_batch(cases.ON_POLICY_WEIGHTS)
    common = {
        "reward_TB": batch.reward_SB[:-1],
        "discount_TB": batch.terminated_SB[:-1].logical_not() * cases.GAMMA,
        "value_SB": torch.tensor(cases.VALUE),
        "valid_TB": batch.valid_TB,
    }
    log_rho_TB = (table_policy().log_probs(batch.action_SB) - batch.behaviour["log_prob"])[:-1]
    clips = {"rho_clip": cases.RHO_CLIP, "c_clip": cases.C_CLIP, "trace_lambda": cases.LAMBDA}
    trace = vtrace(log_rho_TB=log_rho_TB, **common, **clips)
    check("vtrace", {"vs": trace.vs_TB, "advantage": trace.advantage_TB, "rho": trace.rho_TB})
    found = gae(gae_lambda=cases.LAMBDA, **common)
    check("gae", {"advantage": found.advantage_TB})
    torch.testing.assert_close(found.return_TB, found.advantage_TB + common["value_SB"][:-1])


def test_n_step_of_losses_and_of_tables() -> None:
    batch = make_batch(cases.SAMPLED_WEIGHTS)
    found = n_step(batch, cases.N, cases.GAMMA)
    check("n_step", {"reward": found.reward_TB, "discount": found.discount_TB, "row": found.row_TB})
    flags = {TERMINATED: batch.terminated_SB, TRUNCATED: batch.truncated_SB, FIRST: batch.first_SB}
    columns = {name: flag.numpy() for name, flag in flags.items()}
    table = n_step_of_tables(columns, np.array(cases.REWARD), cases.N, cases.GAMMA)
    check("n_step", {"reward": table.reward_TE, "discount": table.discount_TE, "row": table.row_TE})


def test_impala() -> None:
    trace = {"trace_lambda": cases.LAMBDA, "rho_clip": cases.RHO_CLIP, "c_clip": cases.C_CLIP}
    config = ImpalaConfig(discount=cases.GAMMA, **COSTS, **trace)
    check_loss("impala", impala_loss(table_policy(), make_batch(cases.ON_POLICY_WEIGHTS), config))


@pytest.mark.parametrize(("family", "value_clip"), [("ppo", None), ("ppo_normalised", cases.VALUE_CLIP)])
def test_ppo(family: str, value_clip: float | None) -> None:
    passes = {"normalise_advantages": family == "ppo_normalised", "epochs": 1, "minibatches": 1}
    clips = {"clip": cases.CLIP, "value_clip": value_clip}
    config = PpoConfig(discount=cases.GAMMA, gae_lambda=cases.LAMBDA, **COSTS, **clips, **passes)
    policy = table_policy()
    algorithm = Ppo(config, policy)
    part = next(iter(algorithm.passes(make_batch(cases.ON_POLICY_WEIGHTS))))
    # As if a pass had moved the values since the targets were worked out.
    policy.value = nn.Parameter(torch.tensor(cases.MOVED_VALUE))
    check_loss(family, algorithm.loss(part))


def test_apex() -> None:
    config = ApexConfig(discount=cases.GAMMA, n_step=cases.N, huber_delta=cases.HUBER)
    batch = make_batch(cases.SAMPLED_WEIGHTS)
    check_loss("apex", apex_loss(table_q(cases.Q), table_q(cases.TARGET_Q), batch, config))


def test_r2d2() -> None:
    own = {"burn_in": 0, "rescale_epsilon": cases.RESCALE, "priority_max_share": cases.MAX_SHARE}
    config = R2d2Config(discount=cases.GAMMA, n_step=cases.N, **own)
    batch = make_batch(cases.SAMPLED_WEIGHTS)
    check_loss("r2d2", r2d2_loss(table_q(cases.Q), table_q(cases.TARGET_Q), batch, config))


class TableCritics(nn.Module):
    """Q(s, a) = base(s) + sum of gain a - a^2 / 2, of two critics."""

    def __init__(self, base: Any, gain: Any) -> None:
        super().__init__()
        self.base_2SB = nn.Parameter(torch.tensor(base))
        self.gain_2D = nn.Parameter(torch.tensor(gain))

    def forward(self, observation: dict[str, Tensor], first_SB: Tensor, unit_SBD: Tensor) -> Tensor:
        value_2SBD = self.gain_2D[:, None, None] * unit_SBD - unit_SBD.square() / 2
        return self.base_2SB[:, observation["row"], observation["env"]] + value_2SBD.sum(-1)


def tabulate(policy: SoftActorCritic | DeterministicPolicy, head_SBP: Tensor, critics: TableCritics) -> Batch:
    """The policy's last layer gives `head_SBP`. Returns the batch, in the units of its actions."""
    policy.policy_head = nn.Identity()
    policy.critics = critics
    policy._seen = lambda observation, *_: observation
    policy._unroll = lambda observation, *_: head_SBP[observation["row"], observation["env"]]
    return make_batch(
        cases.SAMPLED_WEIGHTS, policy.bounds.from_unit(torch.tensor(cases.UNIT_ACTION)).tolist()
    )


def give_noise(monkeypatch: pytest.MonkeyPatch, *draws: tuple[float, ...]) -> None:
    """One draw after another, the same in all rows."""
    left = iter(draws)
    monkeypatch.setattr(torch, "randn_like", lambda like: torch.tensor(next(left)).expand_as(like))


def test_sac(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = soft_policy()
    batch = tabulate(policy, torch.tensor(cases.ACTOR), TableCritics(cases.CRITIC_BASE, cases.CRITIC_GAIN))
    give_noise(monkeypatch, cases.NOISE_AFTER, cases.NOISE)
    config = SacConfig(discount=cases.GAMMA, n_step=cases.N, target_entropy=cases.TARGET_ENTROPY)
    log_temperature = torch.tensor(cases.TEMPERATURE).log()
    target = TableCritics(cases.TARGET_BASE, cases.TARGET_GAIN)
    check_loss("sac", sac_loss(policy, target, log_temperature, batch, config))


def test_td3(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, target = deterministic_policy(), deterministic_policy()
    heads = (torch.tensor(table)[..., : cases.D] for table in (cases.TARGET_ACTOR, cases.ACTOR))
    tabulate(target, next(heads), TableCritics(cases.TARGET_BASE, cases.TARGET_GAIN))
    batch = tabulate(policy, next(heads), TableCritics(cases.CRITIC_BASE, cases.CRITIC_GAIN))
    give_noise(monkeypatch, cases.NOISE_AFTER)
    noise = {"target_noise": cases.TARGET_NOISE, "target_noise_clip": cases.NOISE_CLIP}
    config = Td3Config(discount=cases.GAMMA, n_step=cases.N, **noise)
    check_loss("td3", td3_loss(policy, target, batch, config, with_policy=True))


def test_adam() -> None:
    class OneLayer(Algorithm[Any]):
        def loss(self, batch: Batch) -> LossOutput:
            raise NotImplementedError

    policy = nn.ParameterDict({"vector": nn.Parameter(torch.tensor(cases.PARAMETERS))})
    betas = {"adam_beta_1": cases.BETA_1, "adam_beta_2": cases.BETA_2}
    config = ImpalaConfig(learning_rate=cases.LEARNING_RATE, optimiser_epsilon=cases.EPSILON, **betas)
    algorithm = OneLayer(config, policy)
    flat = FlatParameters(algorithm, algorithm.group_of)
    optimiser = build_optimiser(algorithm, flat)
    for gradient in cases.GRADIENTS:
        policy["vector"].grad.copy_(torch.tensor(gradient))
        optimiser.step(flat.groups)
    check("adam", {"parameters": policy["vector"]})


def test_prioritised_replay() -> None:
    num, probability = 4000, np.array(CONSTANTS["per.probability"])
    ring = PriorityRing(32, cases.ALPHA, None, np.random.default_rng(3))
    first_key = ring.append(np.array(cases.PRIORITIES))
    keys, masses = ring.draw(num)
    places = keys.astype(int) - first_key
    np.testing.assert_allclose(masses / ring.mass, probability[places], rtol=1e-12)
    # Draws are stratified: an item comes up as often as its share says, but for the strata at its ends.
    np.testing.assert_allclose(np.bincount(places, minlength=len(probability)), num * probability, atol=2)
    weights = importance_weights(masses / ring.mass, ring.num_items, cases.BETA)
    found = dict(zip(places.tolist(), weights.tolist(), strict=True))
    np.testing.assert_allclose([found[place] for place in sorted(found)], CONSTANTS["per.weight"], rtol=1e-12)
