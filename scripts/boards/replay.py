"""Replay: what the tables hold, how fast they turn over, and whether they keep what they promise."""

from __future__ import annotations

from boards.panels import Board, Panel
from boards.queries import largest, of, rate, total

TABLE, SHARD = "{{run}} {{table}}", "{{run}} {{table}} {{instance}}"

MEMORY = of("process_resident_memory_bytes", 'job="replay"')
MEMORY_LIMIT = of("shoal_replay_memory_limit_bytes")


def each_table(metric: str) -> str:
    """Over all shards."""
    return total("run, table", rate(f"shoal_replay_{metric}_total"))


CONTENT = (
    Panel(
        "Items against the limit",
        "A full ring drops its oldest and a full queue makes actors wait: both are normal. Shards that "
        "differ: one was away.",
        [(f"{of('shoal_replay_items')} / {of('shoal_replay_max_items')}", SHARD)],
        unit="percentunit",
    ),
    Panel(
        "Bytes against the limit",
        "Full here and half empty in items: max_bytes cuts the table short; raise it, or add shards.",
        [(f"{of('shoal_replay_bytes')} / {of('shoal_replay_max_bytes')}", SHARD)],
        unit="percentunit",
    ),
    Panel(
        "Memory against the limit",
        "Of the process, in its container or machine. Above 0.9: lower max_bytes or max_ram_bytes, or add "
        "shards.",
        [(f"{MEMORY} / on (run, job, instance) {MEMORY_LIMIT}", "{{run}} {{instance}}")],
        unit="percentunit",
        largest=1,
    ),
    Panel(
        "Items",
        "Below min_items nothing is sampled yet. Falls to 0: the shard lost its memory, or a queue is empty.",
        [(of("shoal_replay_items"), SHARD)],
    ),
    Panel(
        "Payload bytes in memory and on disk",
        "Disk that grows beyond max_bytes by far: old segments are held; look for a shard that is degraded.",
        [(of("shoal_replay_ram_bytes"), f"{SHARD} RAM"), (of("shoal_replay_disk_bytes"), f"{SHARD} disk")],
        unit="bytes",
    ),
    Panel(
        "Streams",
        "Append streams below the number of actors, or no Sample stream: somebody cannot reach the shard.",
        [
            (of("shoal_replay_append_streams"), "{{run}} {{instance}} append"),
            (of("shoal_replay_sample_streams"), "{{run}} {{instance}} sample"),
        ],
    ),
)
TURNOVER = (
    Panel(
        "Items in and out",
        "Per second. Inserts at 0: actors are away or wait. Samples at 0: the learner is away or waits.",
        [(each_table("inserted"), f"{TABLE} inserted"), (each_table("samples"), f"{TABLE} sampled")],
        unit="ops",
    ),
    Panel(
        "Who waits for whom",
        "Calls waiting at once. Inserts wait: the learner is slower. Samples wait: actors are slower.",
        [
            (each_table("insert_wait_seconds"), f"{TABLE} inserts"),
            (each_table("sample_wait_seconds"), f"{TABLE} samples"),
        ],
    ),
    Panel(
        "Calls that had to wait, or waited in vain",
        "Per second. Time-outs of inserts: the learner is much slower or away. Of samples: actors are.",
        [
            (each_table("insert_waits"), f"{TABLE} inserts waited"),
            (each_table("sample_waits"), f"{TABLE} samples waited"),
            (each_table("insert_timeouts"), f"{TABLE} inserts timed out"),
            (each_table("sample_timeouts"), f"{TABLE} samples timed out"),
        ],
        unit="ops",
    ),
    Panel(
        "Samples per insert, and the target",
        "Off the target for long, with neither side waiting: see ShoalRatioViolated. Sequences that "
        "overlap show fewer per unroll.",
        [
            (f"{each_table('samples')} / ({each_table('inserted')} > 0)", f"{TABLE} measured"),
            (
                largest("run, table", f"{of('shoal_replay_samples_per_insert')} > 0"),
                f"{TABLE} target",
            ),
        ],
    ),
    Panel(
        "Samples that one side is ahead",
        "Between plus and minus the tolerance. At the top actors wait for the learner, at the bottom the "
        "learner for actors.",
        [
            (f"{of('shoal_replay_ratio_surplus')} and {of('shoal_replay_samples_per_insert')} > 0", SHARD),
            (f"{of('shoal_replay_ratio_tolerance')} > 0", f"{SHARD} tolerance"),
        ],
    ),
    Panel(
        "Bytes in and out",
        "Near what network or disk can carry: more shards on other machines.",
        [
            (each_table("received_bytes"), f"{TABLE} in"),
            (each_table("sampled_bytes"), f"{TABLE} out"),
        ],
        unit="Bps",
    ),
)
PRIORITIES = (
    Panel(
        "Priority mass",
        "Of shards it should be alike. A shard near 0 is hardly sampled: it is new, or its items were all "
        "learnt.",
        [(of("shoal_replay_priority_mass"), SHARD)],
    ),
    Panel(
        "New priorities",
        "Per second. Gone: items were dropped before their priority came back; the table is too small for "
        "the learner's pace.",
        [
            (each_table("priorities_updated"), f"{TABLE} set"),
            (each_table("priorities_gone"), f"{TABLE} gone"),
            (total("run, policy", rate("shoal_learner_priorities_dropped_total")), "{{run}} dropped"),
        ],
        unit="ops",
    ),
)
LOSSES = (
    Panel(
        "Evicted",
        "Per second. In a ring that is full this is the rate of inserts. Corrupt ones: the disk is "
        "damaged; replace it.",
        [(each_table("evicted"), f"{TABLE} evicted"), (each_table("corrupt"), f"{TABLE} corrupt")],
        unit="ops",
    ),
    Panel(
        "Rejected by reason",
        "Per second; 0 is well. not_finite and range: the environment; signature: actors with another "
        "configuration; limit: too large.",
        [
            (
                total("run, table, reason", rate("shoal_replay_rejected_total")),
                "{{run}} {{table}} {{reason}}",
            )
        ],
        unit="ops",
    ),
    Panel(
        "Repeats that were not stored again",
        "Per second. Actors send again after a break; many without restarts: acks get lost between them "
        "and the shard.",
        [(each_table("duplicates"), TABLE)],
        unit="ops",
    ),
)
DISK = (
    Panel(
        "Degraded",
        "1 while a table's disk takes no writes, cannot be read or is slow: make room or replace it; "
        "nothing acked is lost.",
        [(of("shoal_replay_degraded"), SHARD)],
        largest=1,
    ),
    Panel(
        "Waiting to be written",
        "Grows: the disk is slower than the inserts; a faster disk, more shards, or durability `wal` "
        "instead of `fsync`.",
        [(of("shoal_replay_journal_pending_bytes"), SHARD)],
        unit="bytes",
    ),
    Panel(
        "Room on the disk",
        "Of tables with files. Near 0 inserts wait: make room, or lower max_bytes.",
        [(of("shoal_replay_disk_free_bytes"), SHARD)],
        unit="bytes",
    ),
    Panel(
        "Time that recovery took",
        "At the last start. Long: fewer bytes per shard, that is more shards; nothing is served meanwhile.",
        [(of("shoal_replay_recovery_seconds"), SHARD)],
        unit="s",
    ),
    Panel(
        "Items found at the start",
        "0 after a restart of a table with files: its directory is another one; check replay.dir and the "
        "volume.",
        [(of("shoal_replay_recovered_items"), SHARD)],
    ),
    Panel(
        "Damaged records skipped at the start",
        "Above 0 after a power cut is normal for the last few. Otherwise check the disk: `shoal replay "
        "verify`.",
        [(of("shoal_replay_recovery_corrupt_frames"), SHARD)],
    ),
)

BOARD = Board(
    "shoal-replay",
    "Replay",
    "What the tables hold, how fast they turn over, and whether they keep what they promise.",
    {
        "What they hold": CONTENT,
        "Turnover and ratio": TURNOVER,
        "Priorities": PRIORITIES,
        "What is lost": LOSSES,
        "Disk and recovery": DISK,
    },
)
