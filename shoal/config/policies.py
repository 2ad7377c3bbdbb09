"""The policies of a run, and what belongs to each of them: a replay table and a directory.

Pure functions of the configuration, used by every service, so that all agree without asking each other. One
policy uses `learner.table` and the run's directory as they are; of several, each has a copy of the table
under a name of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shoal.config.tables import AnyTable
from shoal.config.tree import Config
from shoal.records import DEFAULT_POLICY


@dataclass(frozen=True)
class PolicyPlace:
    """A policy's name, the table that its trajectories go through and the directory of its files."""

    name: str
    table: str
    dir: Path


def policy_places(config: Config) -> tuple[PolicyPlace, ...]:
    table, run_dir = config.learner.table, config.run.dir
    if not config.env.policies:
        return (PolicyPlace(DEFAULT_POLICY, table, run_dir),)
    return tuple(
        PolicyPlace(name, f"{table}-{name}", run_dir / "policies" / name) for name in config.env.policies
    )


def replay_tables(config: Config) -> dict[str, AnyTable]:
    """All tables of a shard by name: with several policies, `learner.table` stands once for each."""
    tables = dict(config.replay.tables)
    template = tables.get(config.learner.table)
    if not config.env.policies or template is None:
        return tables
    del tables[config.learner.table]
    return tables | {place.table: template for place in policy_places(config)}
