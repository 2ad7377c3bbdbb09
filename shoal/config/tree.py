"""The one typed tree that configures a run; every service reads its parts of it.

No torch, no gRPC. `shoal.config.load` fills the tree from defaults, a file, the environment and `--set`.
Every field says what it is, with its unit; bounds are checked; unknown keys are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from shoal.algorithms.ppo.profile import PpoConfig
from shoal.algorithms.profiles import AnyAlgorithm
from shoal.config.connections import (
    AddressesSection,
    LimitsSection,
    ListenSection,
    RpcSection,
    SecuritySection,
)
from shoal.config.learner import LearnerSection, StopSection
from shoal.config.network import PolicySection
from shoal.config.profiles import complete
from shoal.config.tables import AnyTable, QueueTable
from shoal.section import Section


class RunSection(Section):
    """The run as a whole."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="Name of the run.")
    dir: Path = Field(Path("runs/run"), description="Directory for checkpoints, logs and reports.")
    seed: int = Field(
        1, ge=0, le=(1 << 32) - 1, description="Seeds environments, the initial weights and action sampling."
    )
    wandb: bool = Field(False, description="Also send learning curves to Weights & Biases (`wandb`).")
    wandb_project: str = Field("shoal", min_length=1, description="Name of the project there.")


class WrapperSection(Section):
    """Each is built from a path and arguments."""

    path: str = Field(
        min_length=1, description="`module:Class` or `file.py:Class`; it takes the environment first."
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the wrapper.")


# Names a directory and a table too.
PolicyName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")]


class EnvSection(Section):
    """The environment that actors step."""

    id: str = Field(
        "CartPole-v1",
        min_length=1,
        description="Gymnasium id, `module:id`, `module:factory`, `file.py:factory` or `envpool:task`.",
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the environment.")
    wrappers: tuple[WrapperSection, ...] = Field(
        (), max_length=32, description="Wrappers around each environment, the innermost first."
    )
    vectorization: Literal["auto", "native", "sync", "async"] = Field(
        "auto",
        description="`native`: many environments in one object; `sync`: one after another; `async`: in "
        "worker processes; `auto`: native if the environment can, else sync.",
    )
    workers: int = Field(
        0, ge=0, le=1024, description="Worker processes per group with `async`; 0: one per CPU of the actor."
    )
    action_mask: Literal["auto", "info", "none"] = Field(
        "auto",
        description="Where an environment says which actions are allowed. `auto`: in the entry `action_mask` "
        "of a Dict observation, if there is one; `info`: in `info['action_mask']`; `none`: nowhere.",
    )
    policies: dict[PolicyName, tuple[str, ...]] = Field(
        default_factory=dict,
        max_length=64,
        description="Of a multi-agent environment: policies by name, each with the agents that it plays "
        "(names, or patterns such as `red_*`; the first that fits counts). Empty: one policy for all.",
    )
    step_timeout_s: float = Field(
        60.0, gt=0, le=86_400, description="An environment that takes longer for a step hangs (s)."
    )
    max_restarts: int = Field(
        10,
        ge=0,
        le=100_000,
        description="Broken or hanging environments that an actor starts again within ten minutes, before it "
        "gives up.",
    )


class ExplorationSection(Section):
    """Randomness on top of the policy's own; the inference server adds it, evaluators go without."""

    epsilon: float = Field(
        0.0, ge=0, le=1, description="Largest chance of a random action, of the most daring environment."
    )
    epsilon_spread: float = Field(
        7.0,
        ge=0,
        le=100,
        description="Environments get epsilon^(1 + spread u), with u spread over 0 to 1; 0: all the same.",
    )
    noise: float = Field(
        0.0,
        ge=0,
        le=10,
        description="Deviation of Gaussian noise on the actions of a `deterministic` policy, in half widths "
        "of their bounds.",
    )
    warmup: bool = Field(
        True,
        description="Actions are random until the learner's first step, for which the table's `min_items` "
        "are needed. Of algorithms that learn from a replay only (apex, r2d2, sac, td3).",
    )


class ActorSection(Section):
    """Steps environments."""

    id: str = Field(
        "", max_length=128, description="Name, unique among live actors; empty: the name of the host."
    )
    envs: int = Field(64, ge=1, le=1_000_000, description="Environments per actor, over all groups.")
    groups: int = Field(2, ge=1, le=64, description="Groups of envs in flight: one steps, others wait.")
    unroll_length: int = Field(20, ge=1, le=10_000, description="T, transitions per env in a trajectory.")
    mode: Literal["train", "evaluate"] = Field(
        "train", description="`evaluate`: greedy actions, nothing stored, results in metrics."
    )
    max_unacked_bytes: int = Field(
        64 << 20, ge=1 << 16, description="Bytes of trajectories sent and not acked before the actor waits."
    )
    max_unacked_items: int = Field(
        4, ge=1, le=10_000, description="Trajectories sent and not acked, per actor, before it waits."
    )
    failover_after_s: float = Field(
        5.0, ge=0.1, le=600, description="A shard silent this long loses its unacked items to the others (s)."
    )
    listen: ListenSection = Field(ListenSection(grpc=""), description="Health and metrics; `grpc` is unused.")

    @model_validator(mode="after")
    def _whole_groups(self) -> ActorSection:
        if self.envs % self.groups:
            raise ValueError(f"envs ({self.envs}) must be a multiple of groups ({self.groups})")
        return self


class InferenceSection(Section):
    """Answers observations with actions, in batches."""

    id: str = Field("", max_length=128, description="Name of this replica; empty: the name of the host.")
    device: str = Field(
        "cpu",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="`auto` is CUDA when there is one, else the CPU.",
    )
    max_batch: int = Field(
        8192, ge=1, le=1 << 20, description="Rows of one forward pass; buffers are this long."
    )
    max_envs: int = Field(
        1 << 17,
        ge=1,
        le=1 << 24,
        description="Environments of all streams; more are sent to other replicas, or wait.",
    )
    min_batch: int = Field(1, ge=1, le=1 << 20, description="Rows worth waiting for, up to max_wait_ms.")
    max_wait_ms: float = Field(0.0, ge=0, le=1000, description="Longest wait for min_batch rows (ms).")
    threads: int = Field(
        0,
        ge=0,
        le=1024,
        description="CPU threads of the model; 0: half of the CPUs, or all of them if the algorithm is "
        "synchronous; one for passes too small to share.",
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="Of the forward pass (autocast); weights stay in float32."
    )
    compile: bool = Field(False, description="Compile the network with torch.compile at the first batches.")
    listen: ListenSection = Field(
        ListenSection(grpc="127.0.0.1:50051"), description="Where this replica listens."
    )

    @model_validator(mode="after")
    def _batch_bounds(self) -> InferenceSection:
        if self.min_batch > self.max_batch:
            raise ValueError(f"min_batch ({self.min_batch}) is above max_batch ({self.max_batch})")
        return self


# Names a directory too.
TableName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]


class ReplaySection(Section):
    """Holds trajectories between actors and learner."""

    id: str = Field("", max_length=128, description="Name of this shard; empty: the name of the host.")
    tables: dict[TableName, AnyTable] = Field(
        {"train": QueueTable()}, min_length=1, description="Tables of every shard, by name."
    )
    dir: Path | None = Field(
        None,
        description="Directory of this shard's files, for tables that keep any; `<run.dir>/replay/<id>` if "
        "not set.",
    )
    max_lives: int = Field(
        10_000, ge=1, description="Actor lives remembered to drop repeats; the longest silent goes first."
    )
    listen: ListenSection = Field(
        ListenSection(grpc="127.0.0.1:50061"), description="Where this shard listens."
    )

    @field_validator("tables", mode="before")
    @classmethod
    def _queue_unless_said(cls, tables: object) -> object:
        if not isinstance(tables, dict):
            return tables
        return {
            name: {"kind": "queue", **table} if isinstance(table, dict) else table
            for name, table in tables.items()
        }


class LaunchSection(Section):
    """What `shoal train` starts on this machine."""

    actors: int = Field(1, ge=1, le=1024, description="Actor processes.")
    evaluators: int = Field(0, ge=0, le=64, description="Evaluator processes.")
    inference: int = Field(1, ge=1, le=64, description="Inference replicas.")
    learners: int = Field(
        1,
        ge=1,
        le=64,
        description="Learner processes, which train together. Actors of a synchronous run divide their "
        "unrolls among so many: set it where torchrun starts them, too.",
    )
    replay_shards: int = Field(1, ge=1, le=256, description="Replay shards.")
    max_restarts: int = Field(
        20, ge=0, le=100_000, description="Crashes of one process in ten minutes before the run is given up."
    )


class Config(Section):
    """The whole tree."""

    run: RunSection = Field(RunSection(), description="The run as a whole.")
    env: EnvSection = Field(EnvSection(), description="The environment.")
    exploration: ExplorationSection = Field(ExplorationSection(), description="Exploration of actors.")
    addresses: AddressesSection = Field(AddressesSection(), description="Where the services are.")
    actor: ActorSection = Field(ActorSection(), description="Actors.")
    inference: InferenceSection = Field(InferenceSection(), description="Inference servers.")
    replay: ReplaySection = Field(ReplaySection(), description="Replay shards.")
    learner: LearnerSection = Field(LearnerSection(), description="The learner.")
    policy: PolicySection = Field(PolicySection(), description="The network.")
    algorithm: AnyAlgorithm = Field(PpoConfig(), description="The learning algorithm.")
    stop: StopSection = Field(StopSection(), description="When the run ends.")
    security: SecuritySection = Field(SecuritySection(), description="Who may call.")
    limits: LimitsSection = Field(LimitsSection(), description="Bounds on what comes off a socket.")
    rpc: RpcSection = Field(RpcSection(), description="Behaviour of connections.")
    launch: LaunchSection = Field(LaunchSection(), description="What `shoal train` starts here.")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, tree: object) -> object:
        """What is left to the algorithm's profile, and what follows from the rest."""
        return complete(tree) if isinstance(tree, dict) else tree
