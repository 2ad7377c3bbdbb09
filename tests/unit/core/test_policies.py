"""The policies of a run: their tables, directories and seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.config import Config, load_config
from shoal.config.policies import (
    PolicyPlace,
    places_at_rank,
    policy_places,
    policy_seed,
    replay_tables,
    share_tables,
)
from shoal.config.trainable import check_trainable
from shoal.errors import ConfigError

TWO = "env.policies={red: [red_*], blue: ['*']}"


def config_of(*overrides: str) -> Config:
    return load_config(None, ["run.dir=/runs/a", *overrides], {})


def test_one_policy_has_the_run_to_itself() -> None:
    config = config_of("learner.table=mine", "replay.tables={mine: {}, other: {}}", "run.seed=7")
    assert policy_places(config) == (PolicyPlace("policy", "mine", Path("/runs/a")),)
    assert list(replay_tables(config)) == ["mine", "other"]
    assert policy_seed(config, "policy") == 7


def test_several_policies_have_a_copy_of_the_table_and_a_directory_each() -> None:
    config = config_of(TWO, "replay.tables={train: {max_items: 9}, other: {}}")
    check_trainable(config)
    assert policy_places(config) == (
        PolicyPlace("red", "train-red", Path("/runs/a/policies/red")),
        PolicyPlace("blue", "train-blue", Path("/runs/a/policies/blue")),
    )
    tables = replay_tables(config)
    assert list(tables) == ["other", "train-red", "train-blue"]
    assert tables["train-red"] == tables["train-blue"] == config.replay.tables["train"]


def test_a_table_with_the_name_of_a_policys_copy_is_refused() -> None:
    config = config_of(TWO, "replay.tables={train: {}, train-blue: {}}")
    for check in (check_trainable, replay_tables):
        with pytest.raises(ConfigError, match=r"'replay.tables.train-blue': policy 'blue' .* table 'train'"):
            check(config)


def test_a_replay_without_the_learners_table_has_its_tables_as_they_are() -> None:
    assert list(replay_tables(config_of(TWO, "replay.tables={mine: {}}"))) == ["mine"]


def test_several_policies_have_seeds_of_their_own_that_stay() -> None:
    seeds = [
        policy_seed(config_of(TWO, f"run.seed={seed}"), name) for seed in (1, 2) for name in ("red", "blue")
    ]
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 1 << 32 for seed in seeds)
    alone = config_of("env.policies={red: ['*']}", "run.seed=1")
    assert policy_seed(alone, "red") == seeds[0]
    assert policy_seed(config_of(TWO, "run.seed=1"), "red") == seeds[0]


def test_each_learner_of_a_synchronous_run_has_a_copy_of_every_policys_table() -> None:
    config = config_of(
        TWO, "algorithm.name=ppo", "launch.learners=2", "replay.tables={train: {max_items: 9}}"
    )
    check_trainable(config)
    names = [share_tables(config, place) for place in policy_places(config)]
    assert names == [("train-red-rank0", "train-red-rank1"), ("train-blue-rank0", "train-blue-rank1")]
    tables = replay_tables(config)
    assert list(tables) == [*names[0], *names[1]]
    assert all(table == config.replay.tables["train"] for table in tables.values())
    for rank in range(2):
        places = places_at_rank(config, rank)
        assert [place.table for place in places] == [tables[rank] for tables in names]
        assert [place.dir for place in places] == [place.dir for place in policy_places(config)]


@pytest.mark.parametrize(
    "overrides", [["algorithm.name=impala", "launch.learners=2"], ["algorithm.name=ppo"]]
)
def test_learners_share_a_table_unless_actors_wait_for_them(overrides: list[str]) -> None:
    config = config_of(*overrides)
    assert list(replay_tables(config)) == ["train"]
    assert places_at_rank(config, 1) == policy_places(config)


def test_a_table_with_the_name_of_a_learners_copy_is_refused() -> None:
    config = config_of(
        "algorithm.name=ppo", "launch.learners=2", "replay.tables={train: {}, train-rank1: {}}"
    )
    with pytest.raises(ConfigError, match=r"'replay.tables.train-rank1': a learner of policy 'policy' has"):
        check_trainable(config)
