"""A policy to train: built afresh, or as the newest checkpoint has it. Training thread only."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from services.learner.parts import Parts
from services.learner.peers import Peers
from services.learner.precision import Precision
from services.learner.progress import Progress
from services.learner.returns import Returns
from services.learner.sharded import shard
from services.learner.trainer import Arrays, Trainer
from shoal.algorithms.algorithm import Algorithm, build_algorithm
from shoal.config import Config
from shoal.config.policies import policy_seed
from shoal.errors import CheckpointError
from shoal.policy.network import build_policy
from shoal.records import EnvSpec
from shoal.untrained import read_untrained

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resumed:
    """Where training begins or goes on."""

    algorithm: Algorithm[Any]
    trainer: Trainer
    progress: Progress
    # The checkpoint's tensors, on the chief, until all learners have them. None if it begins afresh.
    read: Arrays | None = None


def build_or_resume(
    config: Config, parts: Parts, spec: EnvSpec, device: torch.device, peers: Peers
) -> Resumed:
    """One at a time in a process: torch's generator, which makes the first weights, is everybody's.

    Raises CheckpointError for checkpoints that are of something else, and UserError for a space that the
    policy cannot handle.
    """
    torch.manual_seed(policy_seed(config, parts.place.name))
    settings = config.learner
    algorithm = build_algorithm(config.algorithm, build_policy(config.policy, spec))
    is_sharded = settings.sharding == "fsdp" and peers.size > 1
    if is_sharded:
        shard(algorithm.policy, device, peers.size)
    algorithm = algorithm.to(device)
    trainer = Trainer(
        algorithm,
        config.algorithm.max_grad_norm,
        settings.accumulate,
        peers,
        precision=Precision(settings.precision, device.type),
        compile_loss=settings.compile,
        is_sharded=is_sharded,
    )
    if peers.rank != 0:
        # The chief's state is on its way.
        return Resumed(algorithm, trainer, Progress())
    path, label = parts.store.path, parts.metrics.log_label
    checkpoint = parts.store.newest()
    if checkpoint is None:
        log.info("%sstarting afresh: %s on %s", label, spec.describe(), device)
        untrained = Returns.of(read_untrained(config.run.dir, parts.place.name))
        return Resumed(algorithm, trainer, Progress(untrained=untrained))
    # The policy first: it says why a spec has what the other has not.
    checkpoint.check_policy(config.policy, path)
    checkpoint.check_spec(spec, path)
    try:
        trainer.load_state(checkpoint.tensors)
    except CheckpointError as error:
        raise CheckpointError(f"the newest checkpoint in {path} holds {error}: use another run.dir") from None
    parts.versions.raise_above(checkpoint.progress.policy_version)
    log.info("%sgoing on from learner step %d", label, checkpoint.progress.learner_steps)
    return Resumed(algorithm, trainer, checkpoint.progress, checkpoint.tensors)
