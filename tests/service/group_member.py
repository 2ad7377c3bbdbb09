"""One learner of a group, as a process: trains on its part of batches that every learner can make.

    python -m tests.service.group_member OUT TIMEOUT_S SCENE...

Its rank comes from the environment, as with torchrun. OUT.<scene>.<rank> gets what it ends with.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from prometheus_client import CollectorRegistry
from safetensors.numpy import load, save

from services.learner.group import Group, gather_group
from services.learner.metrics import LearnerMetrics
from services.learner.parts import Parts, build_parts
from services.learner.peers import Peers, PeersLostError
from services.learner.resume import build_or_resume
from services.learner.rollback import go_back
from services.learner.rounds import Round, Told, hold_round
from services.learner.sharded import shard
from services.learner.start import begin_alike
from services.learner.trainer import Trainer
from shoal.algorithms.algorithm import Algorithm, build_algorithm
from shoal.algorithms.batch import Batch
from shoal.algorithms.impala.profile import ImpalaConfig
from shoal.algorithms.ppo.profile import PpoConfig
from shoal.config import Config, to_yaml
from shoal.config.network import PolicySection
from shoal.config.ranks import ranks_of
from shoal.errors import NonFiniteError
from shoal.policy.network import build_policy
from shoal.records import ArraySpec, DiscreteAction, EnvSpec, Episode

SPEC = EnvSpec("Test-v0", (ArraySpec("observation", "float32", (3,)),), DiscreteAction(2))
NUM_STEPS, NUM_ENVS, NUM_ROWS = 6, 8, 7
TARGET_KL = 0.046


def make_algorithm(num_shards: int = 1) -> Algorithm[Any]:
    torch.manual_seed(1)
    # 15 is not divided evenly.
    policy = build_policy(PolicySection(hidden_sizes=(16, 15)), SPEC)
    if num_shards > 1:
        shard(policy, torch.device("cpu"), num_shards)
    return build_algorithm(ImpalaConfig(learning_rate=1e-2), policy)


def make_clipped(minibatches: int, peers: Peers | None = None) -> Trainer:
    """PPO with all that is of the whole batch: advantages, statistics, and when to end the passes."""
    torch.manual_seed(1)
    policy = build_policy(PolicySection(hidden_sizes=(16, 15), normalise_observations=True), SPEC)
    # Passes over some batches end early, others do not.
    config = PpoConfig(
        learning_rate=1e-2, epochs=4, minibatches=minibatches, target_kl=TARGET_KL, normalise_returns=True
    )
    return Trainer(build_algorithm(config, policy), 0.5, peers=peers)


def make_trainer(peers: Peers | None = None, is_sharded: bool = False) -> Trainer:
    algorithm = make_algorithm(peers.size if peers is not None and is_sharded else 1)
    return Trainer(algorithm, 0.5, peers=peers, is_sharded=is_sharded)


def make_batch(step: int) -> Batch:
    """The whole batch of a step. Environments differ in how many rows are autoreset rows, and in weight."""
    generator = torch.Generator().manual_seed(step)
    shape = (NUM_ROWS, NUM_ENVS)
    first = torch.zeros(shape, dtype=torch.bool)
    terminated = torch.zeros(shape, dtype=torch.bool)
    # Most of the autoreset rows fall into the first half: that of rank 0 of 2.
    for env, row in ((0, 2), (0, 4), (1, 1), (1, 3), (1, 5), (2, 2), (3, 4), (6, 3)):
        terminated[row - 1, env] = True
        first[row + 1, env] = True
    weight_B = torch.ones(NUM_ENVS)
    weight_B[5] = 0.25
    weight_B[7] = 0.0
    return Batch(
        observation={"observation": torch.randn(*shape, 3, generator=generator)},
        action_SB=torch.randint(0, 2, shape, generator=generator),
        reward_SB=torch.randn(shape, generator=generator),
        terminated_SB=terminated,
        truncated_SB=torch.zeros(shape, dtype=torch.bool),
        first_SB=first,
        weight_B=weight_B,
        behaviour={"log_prob": -torch.rand(shape, generator=generator)},
    )


def part(batch: Batch, peers: Peers) -> Batch:
    share = NUM_ENVS // peers.size
    return batch.take(slice(peers.rank * share, (peers.rank + 1) * share))


def train(peers: Peers, out: Path, is_sharded: bool = False) -> None:
    trainer = make_trainer(peers, is_sharded)
    outcomes = [trainer.step(part(make_batch(step), peers)) for step in range(NUM_STEPS)]
    losses = np.array([[outcome.loss, outcome.grad_norm] for outcome in outcomes])
    entropies = np.array([outcome.metrics["entropy"].item() for outcome in outcomes])
    out.write_bytes(save(trainer.state() | {"losses": losses, "entropies": entropies}))


def clipped(peers: Peers, out: Path) -> None:
    """As `train`, of PPO, with shares of unequal size: as one part, and in parts of each learner's own."""
    whole, in_parts = make_clipped(1, peers), make_clipped(2, peers)
    torch.manual_seed(peers.rank)
    cut = 5 * peers.rank
    share = slice(cut, cut + (5 if peers.rank == 0 else 3))
    for step in range(NUM_STEPS):
        for trainer in (whole, in_parts):
            trainer.step(make_batch(step).take(share))
    states = {f"whole/{name}": array for name, array in whole.state().items()}
    out.write_bytes(save(states | {f"parts/{name}": array for name, array in in_parts.state().items()}))


def policies(peers: Peers, out: Path) -> None:
    """A thread for each of two policies, which come to their calls in different orders on each learner."""
    assert isinstance(peers, Group)
    groups = peers.for_policies(2)
    first = groups[peers.rank]
    begun = threading.Event()

    def train(group: Group) -> list[float]:
        if group is not first:
            begun.wait()
        begun.set()
        found = []
        for number in range(50):
            value = 100.0 * groups.index(group) + number
            found.append(group.sum(torch.tensor([value])).item())
            found.extend(float(told[0]) for told in group.gather(np.array([value])))
        return found

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(train, groups))
    out.write_text(repr(found))


def divided(peers: Peers, out: Path) -> None:
    """As `train`, each with a part of the policy. What leaves can be gone on from by others."""
    train(peers, out, is_sharded=True)
    algorithm = make_algorithm(peers.size)
    trainer = Trainer(algorithm, 0.5, peers=peers, is_sharded=True)
    parameters: list[Any] = list(algorithm.parameters())
    own = sum(parameter.to_local().numel() for parameter in parameters)
    whole = sum(parameter.numel() for parameter in parameters)
    assert own < 0.6 * whole, f"{own} of {whole} are here"
    state = load(out.read_bytes())
    given = {name: array for name, array in state.items() if name not in ("losses", "entropies")}
    trainer.load_state(given)
    for name, array in trainer.state().items():
        np.testing.assert_array_equal(array, given[name], err_msg=name)
    before = trainer.weights()
    trainer.step(part(make_batch(0), peers))
    assert any((array != before[name]).any() for name, array in trainer.weights().items())


class Life:
    """One of a learner with a part of the policy, from its start on. Each learner has a disk of its own."""

    def __init__(self, peers: Peers, run_dir: Path) -> None:
        self.peers = peers
        self.config = Config.model_validate(
            {
                "run": {"dir": str(run_dir)},
                "learner": {"sharding": "fsdp"},
                "algorithm": {"name": "impala", "learning_rate": 1e-2},
                "policy": {"hidden_sizes": [16, 15], "normalise_observations": True},
            }
        )
        self.parts = asyncio.run(self._parts())
        self.parts.store.prepare()
        read = build_or_resume(self.config, self.parts, SPEC, torch.device("cpu"), peers)
        self.resumed = begin_alike(peers, read, seed=1)

    async def _parts(self) -> Parts:
        (parts,) = build_parts(self.config, LearnerMetrics(CollectorRegistry()))
        return parts

    def train(self, *steps: int) -> None:
        for step in steps:
            self.resumed.trainer.step(part(make_batch(step), self.peers))
            self.resumed.progress.count_step(NUM_ENVS)

    def save(self) -> None:
        """As the loop does: all put the state together, the chief writes it."""
        state, progress = self.resumed.trainer.state(), self.resumed.progress.to_json()
        if self.peers.rank == 0:
            self.parts.store.save(state, progress, SPEC, to_yaml(self.config))

    def go_on(self, out: Path, expected: dict[str, np.ndarray]) -> None:
        """Tell what it goes on from. What becomes of it is the same as without the break."""
        out.write_bytes(save(self.resumed.trainer.state()))
        self.train(3, 4)
        for name, array in self.resumed.trainer.state().items():
            if name != "rng/cpu":
                np.testing.assert_array_equal(array, expected[name], err_msg=name)


def resumed(peers: Peers, out: Path) -> None:
    """Another life, for which the chief alone has something to read."""
    first = Life(peers, Path(f"{out}.run"))
    first.train(0, 1, 2)
    first.save()
    first.train(3, 4)
    second = Life(peers, Path(f"{out}.run"))
    assert second.resumed.progress.learner_steps == 3
    second.go_on(out, first.resumed.trainer.state())


def gone_back(peers: Peers, out: Path) -> None:
    """Weights and Adam are spoilt where they are not the chief's."""
    life = Life(peers, Path(f"{out}.run"))
    life.train(0, 1, 2)
    life.save()
    life.train(3, 4)
    trainer, expected = life.resumed.trainer, life.resumed.trainer.state()
    if peers.rank != 0:
        for vector in (trainer._flat.data, *trainer._optimiser.vectors.values()):
            vector.fill_(math.nan)
        trainer._flat.put_back()
    progress = go_back(peers, life.parts.store, life.resumed, before_step=4, seed=1)
    assert progress is not None
    assert progress.learner_steps == 3
    life.go_on(out, expected)


def not_finite(peers: Peers, out: Path) -> None:
    """The last learner's rewards are out of range in the second step."""
    trainer = make_trainer(peers)
    trainer.step(part(make_batch(0), peers))
    batch = make_batch(1)
    if peers.rank == peers.size - 1:
        batch.reward_SB.fill_(3e38)
    before = save(trainer.weights())
    try:
        trainer.step(part(batch, peers))
    except NonFiniteError as error:
        assert save(trainer.weights()) == before, "the step was taken"
        out.write_text(str(error))


def agree(peers: Peers, out: Path) -> None:
    rank = peers.rank
    rounds: list[Round] = []
    rounds.append(
        hold_round(peers, Told(False, has_batch=rank == 0, num_transitions=7, policy_version=9 - rank))
    )
    episodes = [Episode(0.1 + rank, 10**6 + number, 7 - rank) for number in range(rank + 1)]
    told = Told(
        is_stopping=False,
        has_batch=True,
        env_steps=50 + rank,
        num_transitions=5 + rank,
        policy_version=11 - rank,
        num_episodes=len(episodes),
    )
    rounds.append(hold_round(peers, told, episodes))
    rounds.append(hold_round(peers, Told(is_stopping=rank == 1, has_batch=True)))
    data = peers.from_chief(b"of the chief" if rank == 0 else b"")
    total = peers.sum(torch.tensor([1.0 + rank])).item()
    out.write_text("\n".join(map(repr, [*rounds, data, total, peers.from_chief(b"")])))


def lose(peers: Peers, out: Path) -> None:
    """The second is stopped by the test; the first says what it makes of it."""
    if peers.rank != 0:
        out.write_text("ready")
        sys.stdin.read()
    try:
        while True:
            hold_round(peers, Told(False, has_batch=False))
    except PeersLostError as error:
        out.write_text(str(error))


SCENES = {
    "train": train,
    "clipped": clipped,
    "policies": policies,
    "divided": divided,
    "resumed": resumed,
    "gone_back": gone_back,
    "not_finite": not_finite,
    "agree": agree,
    "lose": lose,
}


def main() -> None:
    out, timeout_s, *scenes = sys.argv[1:]
    ranks = ranks_of(os.environ)
    torch.set_num_threads(1)
    group: Group = gather_group(ranks, torch.device("cpu"), float(timeout_s))
    for scene in scenes:
        SCENES[scene](group, Path(f"{out}.{scene}.{ranks.rank}"))
    group.close()


if __name__ == "__main__":
    main()
