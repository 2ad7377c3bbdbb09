"""Runs of `shoal train` from a sampled table: the ratio is kept, the ledgers add up, the files hold all."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import pytest
import yaml

from services.replay.shard import Shard
from shoal.cli.run_dir import RunDir
from shoal.clients.replay_shard import TableStats
from shoal.config import Config
from shoal.config.load import build_config
from shoal.config.tables import SequenceTable, TransitionTable
from tests.e2e.cli_process import shoal

pytestmark = pytest.mark.timeout(360)

STEPS = 40_000
# Few enough that some have to be dropped.
MAX_ITEMS = 256


def reopened(config: Config, directory: Path) -> TableStats:
    """The table of a shard that has ended, as a new shard finds it in the files."""

    async def read() -> TableStats:
        shard = Shard(config.replay, config.limits, directory)
        await shard.open()
        try:
            (stats,) = shard.stats()
            return stats
        finally:
            await shard.close()

    return asyncio.run(read())


def losses(run_dir: RunDir) -> list[float]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return [
        value.tensor.float_val[0]
        for file in (run_dir.root / "tensorboard").iterdir()
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.tag == "training/loss"
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("unrolls", [1, 2])
def test_impala_from_sequences_over_two_shards(tmp_path: Path, unrolls: int) -> None:
    run_dir = RunDir(tmp_path / "run")
    values = {"max_items": MAX_ITEMS, "unrolls": unrolls, "overlap_unrolls": unrolls - 1}
    sets = [f"--set=replay.tables.train.{name}={value}" for name, value in values.items()]
    command = ("train", "cartpole_replay", "--steps", str(STEPS), *sets, "--run-dir", "run")
    with shoal(*command, cwd=tmp_path) as run:
        assert run.wait() == 0, f"{run.stdout}\n{run.stderr}"
        run.assert_nothing_left()
    result = json.loads(run_dir.result.read_text())
    assert result["reason"] == "steps"
    assert result["env_steps"] >= STEPS
    found = losses(run_dir)
    assert found
    assert all(map(math.isfinite, found))

    config = build_config(yaml.safe_load(run_dir.config.read_text()))
    table = config.replay.tables["train"]
    assert isinstance(table, SequenceTable)
    shards = sorted((run_dir.root / "replay").iterdir())
    assert [path.name for path in shards] == ["replay-0", "replay-1"]
    ledgers = [reopened(config, path) for path in shards]
    for path, stats in zip(shards, ledgers, strict=True):
        print(
            f"{path.name}: {stats.num_inserted} inserted = {stats.num_items} stored + "
            f"{stats.num_sampled_out} sampled out + {stats.num_evicted} evicted + "
            f"{stats.num_rejected} rejected"
        )
        assert stats.num_inserted == (
            stats.num_items + stats.num_sampled_out + stats.num_evicted + stats.num_rejected
        )
        assert (stats.num_rejected, stats.num_corrupt, stats.degraded) == (0, 0, "")
        # Streams of sequences stay where they are, and move if a shard is slow: they may share one shard.
        assert stats.num_items == min(stats.num_inserted, MAX_ITEMS)
        check_ratio(table, config.actor.envs, stats)
    assert sum(stats.num_evicted for stats in ledgers) > 0
    num_samples = sum(stats.num_samples for stats in ledgers)
    num_inserted = sum(stats.num_inserted for stats in ledgers)
    trained = result["learner_steps"] * config.learner.batch_envs
    # What comes before `min_items` pays for no samples.
    ratio = num_samples / (num_inserted - len(ledgers) * table.min_items)
    print(f"{num_samples} samples of {num_inserted} unrolls: a ratio of {ratio:.2f}")
    print(f"{trained} of them trained on in {result['learner_steps']} steps; {len(found)} losses, all finite")
    # The rest had been sampled ahead when the run ended.
    assert trained <= num_samples


def check_ratio(table: SequenceTable, num_envs: int, stats: TableStats) -> None:
    """Neither side is ahead by more than the tolerance and one append of a group.

    Of longer sequences only those that can be sampled count, which are fewer than the unrolls: the first of a
    stream make none.
    """
    assert table.samples_per_insert is not None
    never_ends = (table.unrolls - 1) * num_envs
    slack = table.ratio_tolerance + table.samples_per_insert * (num_envs + never_ends)
    surplus = table.samples_per_insert * (stats.num_inserted - table.min_items) - stats.num_samples
    print(f"  {stats.num_samples} samples; inserts are {surplus:g} samples ahead of the ratio")
    assert abs(surplus) <= slack


APEX = {
    "env": {"id": "CartPole-v1", "vectorization": "native"},
    "launch": {"replay_shards": 2},
    "actor": {"envs": 8, "groups": 2, "unroll_length": 10},
    "exploration": {"epsilon": 0.4},
    "replay": {
        "tables": {
            "train": {
                "kind": "transition", "n_step": 3, "alpha": 0.6, "min_items": 500, "max_items": 4000,
                "samples_per_insert": 8, "ratio_tolerance": 1000, "durability": "wal",
            }
        }
    },
    "learner": {"batch_envs": 64, "publish_every": 10},
    "algorithm": {"name": "apex", "target_every": 100},
}  # fmt: skip
APEX_STEPS = 12_000


def test_transitions_by_priority_over_two_shards(tmp_path: Path) -> None:
    """Samples keep to their ratio, priorities come back, and the run's steps are those collected."""
    run_dir = RunDir(tmp_path / "run")
    (tmp_path / "apex.yaml").write_text(yaml.safe_dump(APEX))
    with shoal("train", "apex.yaml", "--steps", str(APEX_STEPS), "--run-dir", "run", cwd=tmp_path) as run:
        assert run.wait() == 0, f"{run.stdout}\n{run.stderr}"
        run.assert_nothing_left()
    result = json.loads(run_dir.result.read_text())
    config = build_config(yaml.safe_load(run_dir.config.read_text()))
    table = config.replay.tables["train"]
    assert isinstance(table, TransitionTable)
    assert table.samples_per_insert is not None
    ledgers = [reopened(config, path) for path in sorted((run_dir.root / "replay").iterdir())]
    assert len(ledgers) == 2
    # An append is an unroll of a group; one is on its way in each.
    one_append = config.actor.envs // config.actor.groups * config.actor.unroll_length
    for stats in ledgers:
        surplus = table.samples_per_insert * (stats.num_inserted - table.min_items) - stats.num_samples
        print(
            f"{stats.num_inserted} inserted, {stats.num_samples} samples: inserts are {surplus:g} samples "
            f"ahead; {stats.num_priorities_updated} priorities set, {stats.num_priorities_gone} came too late"
        )
        assert abs(surplus) <= table.ratio_tolerance + table.samples_per_insert * one_append
        assert stats.num_evicted > 0
    num_inserted = sum(stats.num_inserted for stats in ledgers)
    trained = result["learner_steps"] * config.learner.batch_envs
    num_set = sum(stats.num_priorities_updated + stats.num_priorities_gone for stats in ledgers)
    told = result["env_steps"]
    print(f"{told} steps of {num_inserted} inserted; {trained} trained on, {num_set} priorities")
    assert result["reason"] == "steps"
    assert result["trained_steps"] == trained <= sum(stats.num_samples for stats in ledgers)
    # Each step once: those that came while the last batches were trained on are not told.
    slack = table.ratio_tolerance / table.samples_per_insert + one_append
    assert APEX_STEPS <= told <= num_inserted <= told + len(ledgers) * 2 * slack
    # Of an item that is in a batch twice one counts; those of the last batches may be on their way.
    assert 0.5 * trained < num_set <= trained


def test_a_table_that_impala_cannot_learn_from_ends_the_run_with_one_line(tmp_path: Path) -> None:
    kind = ("--set", "replay.tables={train: {kind: transition}}")
    with shoal("train", "cartpole_replay", *kind, "--run-dir", "run", cwd=tmp_path) as run:
        assert run.wait() == 2, f"{run.stdout}\n{run.stderr}"
        said = run.stdout + run.stderr
        assert "impala cannot learn from a table of kind 'transition'" in said
        assert "set it to queue or sequence" in said
        assert "Traceback" not in said
        run.assert_nothing_left()
