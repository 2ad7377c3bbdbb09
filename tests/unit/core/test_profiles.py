"""What an algorithm's profile brings, what is derived from it and from what the user sets, and saved runs."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.algorithms.profile import ActionKind, Profile, Task
from shoal.algorithms.profiles import PROFILES
from shoal.config import Config, load_config, to_yaml
from shoal.config.load import Layers, build_config
from shoal.config.profiles import complete
from shoal.config.tables import QueueTable, SampledTable, SequenceTable, TransitionTable
from shoal.config.trainable import check_launched, check_trainable
from shoal.errors import ConfigError

NAMES = list(PROFILES)
REPLAYED = [name for name, profile in PROFILES.items() if profile.settings.replays]


def config_of(name: str, *sets: str) -> Config:
    return load_config(None, [f"algorithm.name={name}", *sets], {})


def for_task(name: str, task: Task | None, **tree: Any) -> Config:
    algorithm = {"name": name} | tree.pop("algorithm", {})
    return Layers({"algorithm": algorithm} | tree, {}, {}).config(task)


def trained_table(config: Config) -> SampledTable:
    table = config.replay.tables["train"]
    assert isinstance(table, SampledTable)
    return table


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    found = {}
    for key, value in tree.items():
        found |= leaves(value, (*path, key)) if isinstance(value, dict) else {".".join((*path, key)): value}
    return found


def value_at(config: Config, path: str) -> Any:
    value: Any = config
    for key in path.split("."):
        value = getattr(value, key)
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize("name", NAMES)
def test_an_algorithm_is_trainable_with_nothing_but_its_name(name: str) -> None:
    config = config_of(name)
    check_trainable(config)
    check_launched(config)
    assert config.policy.kind == PROFILES[name].settings.trains


@pytest.mark.parametrize("name", NAMES)
def test_values_are_the_profiles_unless_the_user_sets_them(name: str) -> None:
    config = config_of(name)
    brought = leaves(PROFILES[name].values)
    assert {path: value_at(config, path) for path in brought} == brought
    mine: dict[str, Any] = {
        "actor.envs": 6,
        "actor.groups": 3,
        "actor.unroll_length": 7,
        "learner.batch_envs": 12,
        "policy.hidden_sizes": [5],
        "policy.activation": "relu" if config.policy.activation == "tanh" else "tanh",
        "policy.normalise_observations": not config.policy.normalise_observations,
        "algorithm.learning_rate": 0.125,
        "exploration.epsilon": 0.75,
        "exploration.noise": 0.5,
    }
    changed = config_of(name, *(f"{path}={str(value).lower()}" for path, value in mine.items()))
    assert {path: value_at(changed, path) for path in mine} == mine
    untouched = set(brought) - set(mine)
    assert untouched, "or nothing is left to compare"
    assert all(value_at(changed, path) == brought[path] for path in untouched)


@pytest.mark.parametrize(
    ("name", "action"), [(name, action) for name in NAMES for action in sorted(PROFILES[name].actions)]
)
@pytest.mark.parametrize("has_images", [False, True])
def test_images_and_real_numbers_go_over_the_rest(name: str, action: ActionKind, has_images: bool) -> None:
    profile = PROFILES[name]
    expected = leaves(profile.values)
    if action in ("box", "unbounded_box"):
        expected |= leaves(profile.continuous)
    if has_images:
        expected |= leaves(profile.images)
    config = for_task(name, Task(action, has_images))
    check_trainable(config)
    assert {path: value_at(config, path) for path in expected} == expected


def test_layers_differ_where_they_should() -> None:
    """Else the test before would compare nothing."""
    for profile in PROFILES.values():
        assert leaves(profile.images), profile.name
        assert bool(profile.continuous) == ({"discrete", "box"} <= profile.actions), profile.name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("actors", "envs", "groups"), [(1, 8, 2), (3, 4, 1), (2, 4, 4)])
def test_a_batch_is_what_all_or_one_group_hands_over(name: str, actors: int, envs: int, groups: int) -> None:
    profile = PROFILES[name]
    config = config_of(name, f"actor={{envs: {envs}, groups: {groups}}}", f"launch.actors={actors}")
    expected = profile.values.get("learner", {}).get("batch_envs")
    if expected is None:
        expected = actors * envs if name in ("ppo", "appo") else envs // groups
    assert config.learner.batch_envs == expected
    check_launched(config)


def test_a_batch_of_all_follows_agents_and_what_the_user_makes_of_it() -> None:
    tree = {"actor": {"envs": 4, "groups": 2}, "launch": {"actors": 3}}
    assert for_task("ppo", Task("discrete"), **tree).learner.batch_envs == 12
    assert for_task("ppo", Task("discrete", num_agents=5), **tree).learner.batch_envs == 60
    free = tree | {"algorithm": {"synchronous": False}}
    assert for_task("ppo", Task("discrete"), **free).learner.batch_envs == 12
    assert for_task("impala", Task("discrete"), **tree).learner.batch_envs == 2
    assert config_of("ppo", "learner.batch_envs=48").learner.batch_envs == 48


@pytest.mark.parametrize("minibatches", [1, 65, 4096])
def test_there_may_be_more_minibatches_than_environments(minibatches: int) -> None:
    check_trainable(config_of("ppo", f"algorithm.minibatches={minibatches}"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("state", [None, "policy.frame_stack=2", "policy.recurrent=lstm"])
def test_a_policy_with_a_state_learns_from_more_than_single_transitions(name: str, state: str | None) -> None:
    config = config_of(name, *([state] if state else []))
    check_trainable(config)
    usual = PROFILES[name].settings.learns_from[0]
    assert config.replay.tables["train"].kind == ("sequence" if state and usual == "transition" else usual)


def test_a_kind_of_table_that_is_named_stays() -> None:
    check_trainable(config_of("apex", "replay.tables.train.kind=sequence"))
    assert isinstance(
        config_of("impala", "replay.tables.train.kind=sequence").replay.tables["train"], SequenceTable
    )
    assert isinstance(config_of("impala", "replay.tables.train.kind=null").replay.tables["train"], QueueTable)
    assert config_of("sac", "replay.tables={train: {}, other: {}}").replay.tables["other"] == QueueTable()


@pytest.mark.parametrize("name", [name for name in REPLAYED if name != "r2d2"])
def test_transitions_are_summed_up_as_the_algorithm_discounts(name: str) -> None:
    table = config_of(name, "algorithm={n_step: 7, discount: 0.9}").replay.tables["train"]
    assert isinstance(table, TransitionTable)
    assert (table.n_step, table.discount) == (7, 0.9)
    usual = config_of(name)
    table = usual.replay.tables["train"]
    assert isinstance(table, TransitionTable)
    assert (table.n_step, table.discount) == (usual.algorithm.reward_steps, usual.algorithm.discount)


# Kinds of tables, and how many items a step makes with unrolls of 6.
TABLE_KINDS = {
    "kind: transition": 1.0,
    "kind: sequence": 1 / 6,
    "kind: sequence, unrolls: 4, overlap_unrolls: 1": 1 / 18,
}


@pytest.mark.parametrize(
    ("name", "table"),
    [(name, table) for name in REPLAYED for table in TABLE_KINDS if "sequence" in table or name != "r2d2"],
)
def test_the_ratio_makes_as_many_learner_steps_as_asked_for(name: str, table: str) -> None:
    items_per_step = TABLE_KINDS[table]
    sets = ["algorithm.updates_per_step=0.25", "learner.batch_envs=12", "actor.unroll_length=6"]
    found = trained_table(config_of(name, *sets, f"replay.tables.train={{{table}}}"))
    assert found.samples_per_insert is not None
    # Environment steps -> items -> samples -> batches.
    assert found.samples_per_insert * items_per_step / 12 == pytest.approx(0.25)
    # Neither side waits at every step: a batch, and what an append pays for, fit in.
    assert found.ratio_tolerance >= 12
    assert trained_table(config_of(name, "algorithm.updates_per_step=null")).samples_per_insert is None
    given = trained_table(config_of(name, *sets, f"replay.tables.train={{{table}, samples_per_insert: 3}}"))
    assert given.samples_per_insert == 3


@pytest.mark.parametrize("name", REPLAYED)
@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("has_images", [False, True])
def test_sizes_are_counted_in_steps_over_all_shards(name: str, shards: int, has_images: bool) -> None:
    profile = PROFILES[name]
    task = Task("discrete" if "discrete" in profile.actions else "box", has_images)
    config = for_task(name, task, launch={"replay_shards": shards})
    table, sizes = trained_table(config), profile.table_for(task)
    length = config.actor.unroll_length if table.kind == "sequence" else 1
    assert table.max_items == sizes.max_steps // length // shards
    assert table.min_items == math.ceil(sizes.min_steps / length / shards)
    assert table.alpha == sizes.alpha


def test_a_small_table_begins_when_it_is_full() -> None:
    """`min_items` of the profile would be above what fits."""
    table = trained_table(config_of("sac", "replay.tables.train.max_items=100"))
    assert table.max_items == 100
    assert table.min_items <= 100


@pytest.mark.parametrize("groups", [1, 2])
def test_a_queue_holds_some_unrolls_of_each_group(groups: int) -> None:
    table = config_of("impala", f"actor={{envs: 8, groups: {groups}}}").replay.tables["train"]
    assert table.max_items == PROFILES["impala"].table.max_unrolls * groups


def test_the_learners_table_is_there_whatever_its_name() -> None:
    config = config_of("sac", "learner.table=mine")
    check_trainable(config)
    assert isinstance(config.replay.tables["mine"], TransitionTable)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("has_images", [None, False, True])
def test_what_is_saved_loads_to_the_same(name: str, has_images: bool | None, tmp_path: Path) -> None:
    action = next(iter(PROFILES[name].actions))
    config = for_task(name, None if has_images is None else Task(action, has_images, num_agents=3))
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert load_config(path, [], {}) == config


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_that_an_older_release_saved_is_as_it_was(name: str) -> None:
    """It had all keys of its time, and neither a second trunk nor scaled actions."""
    saved = yaml.safe_load(to_yaml(config_of(name)))
    for key in ("value_trunk", "scale_actions", "initial_log_std"):
        del saved["policy"][key]
    policy = build_config(saved).policy
    assert (policy.value_trunk, policy.scale_actions, policy.initial_log_std) == ("shared", False, 0.0)
    # What somebody writes by hand has not all of them.
    written = config_of(name, "policy={hidden_sizes: [8], frame_stack: 1, activation: relu}").policy
    assert (written.value_trunk, written.scale_actions) == ("auto", True)


def test_older_policies_may_be_given_what_is_new() -> None:
    saved = yaml.safe_load(to_yaml(config_of("ppo")))
    saved["policy"] |= {"value_trunk": "separate", "scale_actions": True, "initial_log_std": -1.0}
    policy = build_config(saved).policy
    assert (policy.value_trunk, policy.scale_actions, policy.initial_log_std) == ("separate", True, -1.0)


SOURCES = [
    "actor.envs",
    "actor.groups",
    "actor.unroll_length",
    "launch.actors",
    "launch.replay_shards",
    "learner.batch_envs",
    "learner.table",
    "policy.frame_stack",
    "policy.recurrent",
    "algorithm.n_step",
    "algorithm.discount",
    "algorithm.updates_per_step",
    "replay.tables",
    "replay.tables.train",
    "replay.tables.train.kind",
    "replay.tables.train.unrolls",
    "replay.tables.train.overlap_unrolls",
    "replay.tables.train.samples_per_insert",
    "actor",
    "launch",
    "learner",
    "policy",
    "replay",
]


WRONG = ["[1]", "{a: 1}", "many", "1.5.2", "-1", "0"]


@pytest.mark.parametrize("name", ["ppo", "r2d2"])
@pytest.mark.parametrize("path", SOURCES)
@pytest.mark.parametrize("value", WRONG)
def test_wrong_values_that_others_are_derived_from_are_named_in_one_line(
    name: str, path: str, value: str
) -> None:
    message = refusal(name, "policy.recurrent=lstm", f"{path}={value}")
    # The learner's table is one of the replay's.
    sections = ("replay.tables", "learner") if path == "learner.table" else (path.partition(".")[0],)
    assert message is None or ("\n" not in message and any(section in message for section in sections))


def refusal(name: str, *sets: str) -> str | None:
    try:
        config_of(name, *sets)
    except ConfigError as error:
        return str(error)
    return None


def test_a_sequence_that_is_all_overlap_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"overlap_unrolls \(2\) must be below unrolls \(2\)"):
        config_of("impala", "replay.tables.train={kind: sequence, unrolls: 2, overlap_unrolls: 2}")


@pytest.mark.parametrize(
    "path", ["actor.envs", "launch.actors", "launch.replay_shards", "actor.unroll_length"]
)
@pytest.mark.parametrize("value", ["[1]", "many", "0", "null"])
def test_and_they_are_refused(path: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"^config key '{path}'"):
        config_of("ppo", f"{path}={value}")


def test_the_tree_that_is_given_stays_as_it_is() -> None:
    tree: dict[str, Any] = {"replay": {"tables": {"train": {"max_items": 5}}}, "algorithm": {"name": "apex"}}
    before = yaml.safe_dump(tree)
    profiles = {name: yaml.safe_dump(_plain(profile)) for name, profile in PROFILES.items()}
    complete(tree, Task("discrete", has_images=True))
    assert yaml.safe_dump(tree) == before
    assert {name: yaml.safe_dump(_plain(profile)) for name, profile in PROFILES.items()} == profiles


def _plain(profile: Profile) -> list[Any]:
    return [profile.values, profile.images, profile.continuous]


def test_every_service_can_read_profiles_without_torch() -> None:
    code = (
        "import sys, shoal.config.profiles, shoal.config.load, shoal.config.trainable;"
        "shoal.config.load.load_config(None, ['algorithm.name=sac'], {}); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert "shoal.algorithms.sac.profile" in loaded
    assert not loaded & {"torch", "gymnasium", "grpc"}
