"""What can be set of the learner. Part of the tree in `shoal.config.tree`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from shoal.config.connections import ListenSection
from shoal.config.guards import GuardsSection
from shoal.section import Section


class LearnerSection(Section):
    """Trains the policies and publishes their weights."""

    device: str = Field(
        "cpu",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="`auto` is CUDA when there is one, else the CPU.",
    )
    table: str = Field(
        "train", min_length=1, description="Replay table that actors fill and the learner samples."
    )
    batch_envs: int = Field(
        64,
        ge=1,
        le=1 << 20,
        description="B, unrolls of one env each per batch of all learners: B x unroll_length steps.",
    )
    prefetch_batches: int = Field(2, ge=1, le=64, description="Batches decoded ahead of training.")
    prefetch_items: int = Field(2, ge=1, le=1024, description="Trajectories asked for ahead, per shard.")
    decode_threads: int = Field(1, ge=1, le=64, description="Threads that decompress trajectories.")
    threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="CPU threads per training; 0: for all policies half of the CPUs, or all of them if the "
        "algorithm replays or is synchronous; one for updates too small to share.",
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="Of losses (autocast); weights, gradients and Adam stay in float32."
    )
    compile: bool = Field(
        False, description="Compile the loss with torch.compile at the first batch; without a compiler, not."
    )
    accumulate: int = Field(
        1,
        ge=1,
        le=1 << 20,
        description="Parts of a batch that are computed one after another, to save memory; an optimiser step "
        "is still that of the whole batch.",
    )
    publish_every: int = Field(
        1, ge=1, le=1_000_000, description="Learner steps between two weight versions."
    )
    checkpoint_every_s: float = Field(30.0, gt=0, le=86_400, description="Time between checkpoints (s).")
    keep_checkpoints: int = Field(3, ge=1, le=10_000, description="Checkpoints kept; older ones are deleted.")
    keep_best: bool = Field(
        True, description="Also keep the checkpoint with the best mean return over 100 episodes."
    )
    max_policy_lag: int | None = Field(
        None,
        ge=0,
        description="Versions that the oldest step of an unroll may lag behind when it is trained on; older "
        "unrolls count for nothing. `null`: no limit.",
    )
    guards: GuardsSection = Field(GuardsSection(), description="What the learner watches itself for.")
    sharding: Literal["none", "fsdp"] = Field(
        "none",
        description="`fsdp`: several learners keep a part each of weights and optimiser, for networks that "
        "are larger than one GPU.",
    )
    peer_timeout_s: float = Field(
        60.0,
        ge=1,
        le=86_400,
        description="Of several learners: one that the others wait for longer is lost (s). More than a step "
        "takes on the slowest of them.",
    )
    listen: ListenSection = Field(
        ListenSection(grpc="127.0.0.1:50071"), description="Where the learner listens."
    )

    @model_validator(mode="after")
    def _parts_of_a_batch(self) -> LearnerSection:
        if self.accumulate > self.batch_envs:
            raise ValueError(
                f"accumulate ({self.accumulate}) is above batch_envs ({self.batch_envs}): a batch is split "
                "by environments"
            )
        return self


class StopSection(Section):
    """When the learner ends the run by itself. Whatever is reached first counts, by whichever policy."""

    until_return: float | None = Field(
        None, description="Mean return over the last 100 training episodes to reach."
    )
    steps: int | None = Field(None, ge=1, description="Environment steps of a policy, over all restarts.")
    minutes: float | None = Field(None, gt=0, description="Wall-clock time of `shoal train` (minutes).")
