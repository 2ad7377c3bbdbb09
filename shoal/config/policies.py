"""The policies of a run, and what belongs to each of them: a replay table, a directory and a seed.

Pure functions of the configuration, used by every service, so that all agree without asking each other. One
policy uses `learner.table` and the run's directory as they are; of several, each has a copy of the table
under a name of its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from shoal.config.tables import AnyTable
from shoal.config.tree import Config
from shoal.errors import ConfigError

# The policy of all environments, unless the configuration names some. Here and not in `shoal.records`, which
# would bring NumPy into the start of every command.
DEFAULT_POLICY = "policy"


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
    """All tables of a shard by name: with several policies, `learner.table` stands once for each.

    Raises ConfigError if another table has the name of such a copy.
    """
    tables = dict(config.replay.tables)
    template = tables.get(config.learner.table)
    if not config.env.policies or template is None:
        return tables
    del tables[config.learner.table]
    for place in policy_places(config):
        if place.table in tables:
            raise ConfigError(
                f"config key 'replay.tables.{place.table}': policy {place.name!r} (env.policies) has a copy "
                f"of table {config.learner.table!r} under this name: rename the one or the other"
            )
        tables[place.table] = template
    return tables


def policy_seed(config: Config, name: str) -> int:
    """Of the first weights of a policy and of what is sampled for it.

    The run's seed, unless policies are named: then each has its own, made of that seed and its name. Equal
    networks that began with equal weights would act alike. It does not depend on the other policies.
    """
    if not config.env.policies:
        return config.run.seed
    digest = hashlib.sha256(f"{config.run.seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
