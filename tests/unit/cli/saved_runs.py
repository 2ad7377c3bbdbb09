"""Run directories with checkpoints of policies that nobody trained, as the learner writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from services.learner.checkpoint import CheckpointStore
from services.learner.progress import Progress
from shoal.checkpoint import WEIGHTS
from shoal.config import Config, load_config, to_yaml
from shoal.config.policies import policy_places
from shoal.envs.make import make_batch_env
from shoal.policy.network import build_policy
from shoal.records import EnvSpec


def config_of(*overrides: str) -> Config:
    return load_config(None, ["policy.hidden_sizes=[8]", *overrides], environ={})


def specs_of(config: Config) -> dict[str, EnvSpec]:
    """What the environment shows to each policy."""
    env = make_batch_env(config.env, 1)
    try:
        return {name: slots.spec for name, slots in env.slots.items()}
    finally:
        env.close()


def save_run(
    root: Path,
    config: Config,
    specs: Mapping[str, EnvSpec] | None = None,
    steps: Sequence[int] = (5,),
) -> Path:
    """A checkpoint of each policy for each of the learner steps."""
    config = config.model_copy(update={"run": config.run.model_copy(update={"dir": root})})
    specs = specs or specs_of(config)
    for place in policy_places(config):
        store = CheckpointStore(place.dir / "checkpoints", keep=100)
        store.prepare()
        for step in steps:
            torch.manual_seed(step)
            policy = build_policy(config.policy, specs[place.name])
            weights = {WEIGHTS + name: tensor.numpy() for name, tensor in policy.state_dict().items()}
            progress = Progress(learner_steps=step, env_steps=100 * step).to_json()
            store.save(weights, progress, specs[place.name], to_yaml(config))
    return root
