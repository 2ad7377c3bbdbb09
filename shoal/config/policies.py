"""The policies of a run, and what belongs to each of them: a replay table, a directory and a seed.

Pure functions of the configuration, used by every service, so that all agree without asking each other. One
policy uses `learner.table` and the run's directory as they are; of several, each has a copy of the table
under a name of its own. So has each learner of a synchronous run, if there are several.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.config.ranks import num_shares
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


def share_tables(config: Config, place: PolicyPlace) -> tuple[str, ...]:
    """The tables that actors divide a policy's unrolls among, by rank of the learner; mostly just one."""
    number = num_shares(config)
    return (place.table,) if number == 1 else tuple(f"{place.table}-rank{rank}" for rank in range(number))


def places_at_rank(config: Config, rank: int) -> tuple[PolicyPlace, ...]:
    """The places of all policies, with the tables that one learner trains from."""
    places = policy_places(config)
    if num_shares(config) == 1:
        return places
    return tuple(replace(place, table=share_tables(config, place)[rank]) for place in places)


def replay_tables(config: Config) -> dict[str, AnyTable]:
    """All tables of a shard by name: `learner.table` stands once for each policy and share.

    Raises ConfigError if another table has the name of such a copy.
    """
    tables, original = dict(config.replay.tables), config.learner.table
    copies = tuple(_copies(config))
    if original not in tables or original == copies[0][0]:
        return tables
    template = tables.pop(original)
    for name, owner in copies:
        if name in tables:
            raise ConfigError(
                f"config key 'replay.tables.{name}': {owner} has a copy of table {original!r} under this "
                "name: rename the one or the other"
            )
        tables[name] = template
    return tables


def _copies(config: Config) -> Iterator[tuple[str, str]]:
    """Names of the copies of `learner.table`, and whose they are."""
    for place in policy_places(config):
        for table in share_tables(config, place):
            is_shared = table != place.table
            yield table, f"a learner of policy {place.name!r}" if is_shared else f"policy {place.name!r}"


def policy_seed(config: Config, name: str) -> int:
    """Of the first weights of a policy and of what is sampled for it.

    The run's seed, unless policies are named: then each has its own, made of that seed and its name. Equal
    networks that began with equal weights would act alike. It does not depend on the other policies.
    """
    if not config.env.policies:
        return config.run.seed
    digest = hashlib.sha256(f"{config.run.seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
