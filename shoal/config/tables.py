"""The kinds of replay tables and what can be set for each. Part of the tree in `shoal.config.tree`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from shoal.section import Section


class TableSection(Section):
    """What all kinds of tables have. Sizes are per shard."""

    max_items: int = Field(16, ge=1, le=1 << 30, description="Items held; the kind says what happens then.")
    max_bytes: int = Field(1 << 30, ge=1, le=1 << 50, description="Bytes held; then the same happens.")
    insert_timeout_s: float = Field(
        5.0, gt=0, le=3600, description="Longest wait of an insert, if the client names none (s)."
    )
    sample_timeout_s: float = Field(
        5.0, gt=0, le=3600, description="Longest wait for an item, if the client names none (s)."
    )
    durability: Literal["memory", "wal", "fsync"] = Field(
        "memory",
        description="What an ack means. `memory`: in this process; `wal`: written to the operating system, "
        "survives the process; `fsync`: on the disk, survives the loss of power.",
    )
    snapshot_every_s: float = Field(
        0.0, ge=0, le=86_400, description="`memory`: time between snapshots to disk (s); 0: none are made."
    )
    sync_every_s: float = Field(
        1.0,
        gt=0,
        le=3600,
        description="`wal`: what was written is on the disk after this time at most (s).",
    )
    segment_bytes: int = Field(
        64 << 20,
        ge=1 << 12,
        le=1 << 40,
        description="Bytes of a journal file before the next one is begun; the unit in which disk is freed.",
    )

    @property
    def on_disk(self) -> bool:
        """Whether the table keeps files at all."""
        return self.durability != "memory" or self.snapshot_every_s > 0


class QueueTable(TableSection):
    """FIFO: each item is handed out once; a full queue makes inserts wait."""

    kind: Literal["queue"] = Field("queue", description="Kind of table.")


class SampledTable(TableSection):
    """What tables have that are sampled again and again; a full one drops its oldest items."""

    max_items: int = Field(1 << 20, ge=1, le=1 << 30, description="Items held; then the oldest is dropped.")
    alpha: float = Field(
        0.0, ge=0, le=10, description="Items are sampled in proportion to priority ^ alpha; 0 is uniform."
    )
    max_times_sampled: int | None = Field(
        None, ge=1, le=1 << 31, description="An item is gone after being sampled this often."
    )
    samples_per_insert: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="Items sampled per item inserted; whoever is ahead waits. `null`: no ratio is kept. Of "
        "transitions, u learner steps per environment step are u x learner.batch_envs.",
    )
    ratio_tolerance: float = Field(
        1000.0,
        gt=0,
        le=1e12,
        description="How many samples either side may be ahead of the ratio: a few batches, and what an "
        "append or two pay for, so that neither side waits for the other at every step.",
    )
    min_items: int = Field(1, ge=1, le=1 << 30, description="Items needed before anything is sampled.")

    @model_validator(mode="after")
    def _can_start(self) -> SampledTable:
        if self.min_items > self.max_items:
            raise ValueError(
                f"min_items ({self.min_items}) is above max_items ({self.max_items}): "
                "nothing would ever be sampled"
            )
        return self

    @model_validator(mode="after")
    def _can_keep_the_ratio(self) -> SampledTable:
        ratio, most = self.samples_per_insert, self.max_times_sampled
        if ratio is not None and most is not None and ratio > most:
            raise ValueError(
                f"samples_per_insert ({ratio:g}) is above max_times_sampled ({most}): items would be gone "
                "before they were sampled that often; lower the one or raise the other"
            )
        return self


class SequenceTable(SampledTable):
    """Sequences of one environment each, stored compressed; the unrolls of a sequence are stored once."""

    kind: Literal["sequence"] = Field("sequence", description="Kind of table.")
    unrolls: int = Field(1, ge=1, le=64, description="Consecutive unrolls of one env that make a sequence.")
    overlap_unrolls: int = Field(
        0, ge=0, le=63, description="Unrolls that a sequence shares with the next one of the same env."
    )
    max_ram_bytes: int | None = Field(
        None,
        ge=1 << 12,
        description="Payload bytes kept in memory, newest first; older ones are read from the journal when "
        "sampled. Needs durability `wal` or `fsync`. `null`: all of them.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> SequenceTable:
        if self.overlap_unrolls >= self.unrolls:
            raise ValueError(
                f"overlap_unrolls ({self.overlap_unrolls}) must be below unrolls ({self.unrolls})"
            )
        most = max(0, (self.max_items - self.unrolls) // (self.unrolls - self.overlap_unrolls) + 1)
        if self.min_items > most:
            raise ValueError(
                f"min_items ({self.min_items}) is above {most}, the most sequences that max_items "
                f"({self.max_items}) unrolls make ({self.unrolls} each, {self.overlap_unrolls} shared "
                "with the next): nothing would ever be sampled"
            )
        if self.max_ram_bytes is not None and self.durability == "memory":
            raise ValueError("max_ram_bytes needs durability `wal` or `fsync`: the journal holds the rest")
        return self


class TransitionTable(SampledTable):
    """Single transitions in columns, decoded; for low-dimensional off-policy learning."""

    kind: Literal["transition"] = Field("transition", description="Kind of table.")
    n_step: int = Field(
        1,
        ge=1,
        le=1024,
        description="Steps of reward in a transition; fewer at the end of an episode or unroll. Of the table "
        "that is learned from, the algorithm's if not set.",
    )
    discount: float = Field(
        0.99,
        ge=0,
        le=1,
        description="Gamma of the n-step returns. Of the table that is learned from, the algorithm's if not "
        "set.",
    )


AnyTable = Annotated[QueueTable | SequenceTable | TransitionTable, Field(discriminator="kind")]

TABLES: dict[str, type[TableSection]] = {
    "queue": QueueTable,
    "sequence": SequenceTable,
    "transition": TransitionTable,
}
