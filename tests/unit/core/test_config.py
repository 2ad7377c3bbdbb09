"""The config tree: precedence, errors that name the key, secrets that stay secret."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel

from shoal.config import Config, load_config, to_yaml
from shoal.config.load import build_config
from shoal.config.trainable import check_launched, check_trainable
from shoal.errors import ConfigError

ALGORITHMS = "the algorithms ppo, impala, appo, apex, r2d2, sac, td3"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


def test_defaults_are_valid() -> None:
    assert load_config(None, [], {}) == Config()


def test_precedence_is_default_file_environment_set(tmp_path: Path) -> None:
    path = write(tmp_path, "learner: {batch_envs: 2, threads: 2, publish_every: 2}")
    environ = {"SHOAL__LEARNER__THREADS": "3", "SHOAL__LEARNER__PUBLISH_EVERY": "3", "PATH": "/bin"}
    config = load_config(path, ["learner.publish_every=4"], environ)
    assert config.learner.batch_envs == 2
    assert config.learner.threads == 3
    assert config.learner.publish_every == 4
    assert config.learner.decode_threads == Config().learner.decode_threads


def test_addresses_may_be_a_comma_separated_text() -> None:
    config = load_config(None, [], {"SHOAL__ADDRESSES__REPLAY": "a:1, b:2"})
    assert config.addresses.replay == ("a:1", "b:2")


def test_what_is_saved_loads_to_the_same_tree(tmp_path: Path) -> None:
    config = load_config(None, ["env.id=Pendulum-v1", "replay.tables.train.max_items=3", "stop.steps=9"], {})
    assert load_config(write(tmp_path, to_yaml(config)), [], {}) == config


def test_secrets_are_never_written_or_shown() -> None:
    config = load_config(None, [], {"SHOAL__SECURITY__TOKEN": "12345"})
    assert config.security.token is not None
    assert config.security.token.get_secret_value() == "12345"
    assert "12345" not in to_yaml(config) + repr(config)
    for wrong in ({"token": "12345", "token_file": "f"}, {"token": ["12345"]}, {"tokn": "12345"}):
        with pytest.raises(ConfigError) as caught:
            build_config({"security": wrong})
        assert "12345" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("learner.batch_env=1", "unknown config key 'learner.batch_env': did you mean 'learner.batch_envs'?"),
        ("lerner.threads=1", "unknown config key 'lerner': did you mean 'learner'?"),
        ("replay.tables.train.max_item=1", "did you mean 'replay.tables.train.max_items'?"),
        (
            "replay.tables.queue={kind: sequence, alpa: 1}",
            "unknown config key 'replay.tables.queue.alpa': did you mean 'replay.tables.queue.alpha'?",
        ),
        (
            "replay.tables.train={kind: transition, zzz: 1}",
            "unknown config key 'replay.tables.train.zzz': known keys are max_items, ",
        ),
        ("replay.tables.train={kind: transition, zzz: 1}", "kind, n_step, discount"),
        (
            "replay.tables.train.samples_per_insert=2",
            "'replay.tables.train.samples_per_insert' (from --set): only kind sequence or transition has it",
        ),
        (
            "replay.tables.train.samples_per_insert=2",
            "; replay.tables.train.kind is queue: leave the key out, or set replay.tables.train.kind to one",
        ),
        (
            "replay.tables.train={kind: sequence, alpha: -1}",
            "config key 'replay.tables.train.alpha': input should be greater than or equal to 0 (got -1)",
        ),
        (
            # Not of the table that is learned from: what follows from its length is worked out before.
            "replay.tables.other={kind: sequence, unrolls: 2, overlap_unrolls: 2}",
            "config key 'replay.tables.other': overlap_unrolls (2) must be below unrolls (2)",
        ),
        (
            "replay.tables.train={kind: transition, samples_per_insert: 2.5, max_times_sampled: 2}",
            "samples_per_insert (2.5) is above max_times_sampled (2)",
        ),
        (
            "replay.tables.train.kind=seq",
            "key 'replay.tables.train.kind': 'seq' is not one of the kinds queue, sequence, transition",
        ),
        ("replay.tables.train.kind=[queue]", "['queue'] is not one of the kinds queue, sequence, transition"),
        ("replay.tables.train=3", "'replay.tables.train': input should be a valid dictionary"),
        ("replay.tables.train=3", "(got 3): set replay.tables.train.kind to one of queue, sequence, tran"),
        ("algorithm.name=dqn", f"config key 'algorithm.name': 'dqn' is not one of {ALGORITHMS}"),
        ("algorithm.name=", f"config key 'algorithm.name': None is not one of {ALGORITHMS}"),
        ("algorithm.name=[ppo]", f"config key 'algorithm.name': ['ppo'] is not one of {ALGORITHMS}"),
        ("algorithm.name={ppo: 1}", f"config key 'algorithm.name': {{'ppo': 1}} is not one of {ALGORITHMS}"),
        ("algorithm=dqn", "(got 'dqn'): set algorithm.name to one of ppo, impala, "),
        ("run.name=off", "(got False): YAML reads a bare on, off, yes or no as true or false; put the word"),
        ("actor.listen.metrix=x", "did you mean 'actor.listen.metrics'?"),
        ("algorithm.learning_rat=1", "did you mean 'algorithm.learning_rate'?"),
        ("learner.zzz=1", "known keys are device, table"),
        ("learner.batch_envs=0", "'learner.batch_envs': input should be greater than or equal to 1 (got 0)"),
        ("actor={envs: 3, groups: 2}", "envs (3) must be a multiple of groups (2)"),
        ("inference.min_batch=9000", "min_batch (9000) is above max_batch (8192)"),
        ("run.name=../etc", "'run.name'"),
        ("stop.until_return=.inf", "'stop.until_return': input should be a finite number"),
        ("stop.until_return=.nan", "'stop.until_return': input should be a finite number"),
        ("run.seed=99999999999", "'run.seed'"),
        ("policy.hidden_sizes=[64, 0]", "'policy.hidden_sizes.1'"),
        ("limits.max_message_bytes=2147483648", "'limits.max_message_bytes'"),
        ("learner.batch_envs=[", "no valid YAML"),
        ("batch_envs", "section.field=value"),
        ("security.tls.cert=a.pem", "cert and key go together"),
    ],
)
def test_mistakes_are_named_in_one_line(override: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(None, [override], {})
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "no valid YAML"),
        ("env: {id: a}\nenv: {id: b}", "key 'env' stands twice"),
        ("- 1", "must hold a mapping"),
        ("!!python/object:os.system {}", "no valid YAML"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_config(write(tmp_path, text), [], {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: No such file"):
        load_config(tmp_path / "absent.yaml", [], {})


def test_unknown_environment_variables_with_our_prefix_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'learner\.threads'"):
        load_config(None, [], {"SHOAL__LEARNER__THREAD": "1"})


def test_an_unknown_algorithm_in_the_environment_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=rf"'algorithm\.name': 'dqn' is not one of {ALGORITHMS}"):
        load_config(None, [], {"SHOAL__ALGORITHM__NAME": "dqn"})


def test_a_key_that_only_others_have_comes_with_its_origin_and_what_to_do(tmp_path: Path) -> None:
    path = write(tmp_path, "algorithm: {name: impala, entropy_cost: 0.1, c_clip: 1, discount: 0.9}")
    with pytest.raises(ConfigError) as caught:
        load_config(path, ["algorithm.name=sac", "algorithm.clip=0.3"], {"SHOAL__ALGORITHM__EPOCHS": "2"})
    *keys, leave, copy = str(caught.value).split("; ")
    assert {key.removeprefix("unknown config key ") for key in keys} == {
        f"'algorithm.entropy_cost' (from {path}): only algorithm ppo, impala or appo has it",
        f"'algorithm.c_clip' (from {path}): only algorithm impala or appo has it",
        "'algorithm.clip' (from --set): only algorithm ppo or appo has it",
        "'algorithm.epochs' (from a SHOAL__ variable): only algorithm ppo or appo has it",
    }
    todo = {part.removeprefix("algorithm.name is sac: ") for part in (leave, copy)}
    assert todo == {
        "leave the key out, or set algorithm.name to one that has it",
        f"for that, copy {path}, remove the keys that it does not have, and pass the copy",
    }


def test_of_several_origins_the_one_that_counts_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "replay: {tables: {train: {alpha: 1}}}")
    with pytest.raises(ConfigError, match=r"train\.alpha' \(from --set\): only kind sequence or transition"):
        load_config(path, ["replay.tables.train={alpha: 2}"], {})
    with pytest.raises(ConfigError, match=r"train\.alpha' \(from a SHOAL__ variable\)"):
        load_config(path, ["replay.id=a"], {"SHOAL__REPLAY__TABLES": "{train: {alpha: 2}}"})
    with pytest.raises(ConfigError, match=r"train\.alpha': only kind sequence or transition has it$"):
        build_config({"replay": {"tables": {"train": {"alpha": 2}}}})


def words_that_yaml_takes_for_booleans(section: type[BaseModel], path: str = "") -> Iterator[tuple[str, str]]:
    """Paths and words of all fields that offer such a word; algorithms and tables are looked at, too."""
    for name, field in section.model_fields.items():
        yield from ((f"{path}{name}", word) for word in _offered(field.annotation) if _is_boolean(word))
        for inside in _sections(field.annotation):
            yield from words_that_yaml_takes_for_booleans(inside, f"{path}{name}.")


def _offered(annotation: object) -> list[str]:
    if get_origin(annotation) is Literal:
        return [word for word in get_args(annotation) if isinstance(word, str)]
    return [word for part in get_args(annotation) for word in _offered(part)]


def _sections(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in _sections(part)]


def _is_boolean(word: str) -> bool:
    return isinstance(yaml.safe_load(word), bool)


BOOLEAN_WORDS = list(words_that_yaml_takes_for_booleans(Config))


def test_the_guards_offer_such_a_word() -> None:
    assert ("learner.guards.entropy_collapse.action", "off") in BOOLEAN_WORDS
    assert ("learner.guards.memory_growth.action", "off") in BOOLEAN_WORDS


@pytest.mark.parametrize(("path", "word"), BOOLEAN_WORDS)
def test_words_that_yaml_takes_for_booleans_can_be_set(tmp_path: Path, path: str, word: str) -> None:
    *sections, field = path.split(".")
    lines = [f"{'  ' * depth}{key}:" for depth, key in enumerate(sections)]
    lines.append(f"{'  ' * len(sections)}{field}: {word}")
    by_set: Any = load_config(None, [f"{path}={word}"], {})
    assert by_set == load_config(write(tmp_path, "\n".join(lines)), [], {})
    assert by_set == load_config(None, [], {"SHOAL__" + "__".join(path.split(".")).upper(): word})
    assert by_set == load_config(write(tmp_path, to_yaml(by_set)), [], {})
    for key in (*sections, field):
        by_set = getattr(by_set, key)
    assert by_set == word


@pytest.mark.parametrize("table", ["{}", "{kind: sequence, samples_per_insert: 2}"])
def test_impala_learns_from_queues_and_uniform_sequences(table: str) -> None:
    check_trainable(load_config(None, ["algorithm.name=impala", f"replay.tables.train={table}"], {}))


def test_a_replay_on_its_own_has_tables_of_any_names_and_training_needs_the_learners() -> None:
    config = load_config(None, ["replay.tables={mine: {}, yours: {kind: transition}}"], {})
    assert list(config.replay.tables) == ["mine", "yours"]
    with pytest.raises(
        ConfigError, match=r"'learner.table': 'train' is not one of replay.tables \(mine, yours\)"
    ):
        check_trainable(config)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            "{kind: transition}",
            r"kind': impala cannot learn from a table of kind 'transition' .*: set it to queue or sequence",
        ),
        (
            "{kind: sequence, alpha: 0.6}",
            r"'replay.tables.train.alpha': impala sets no priorities .*0\.6.*0$",
        ),
    ],
)
def test_a_table_that_the_algorithm_cannot_learn_from_is_refused_for_training(
    table: str, expected: str
) -> None:
    config = load_config(None, ["algorithm.name=impala", f"replay.tables.train={table}"], {})
    with pytest.raises(ConfigError, match=expected):
        check_trainable(config)


def q_learning(*changes: str, table: str = "{kind: transition, n_step: 3}") -> Config:
    explored = ["algorithm.name=apex", "exploration.epsilon=0.4"]
    return load_config(None, [*explored, f"replay.tables.train={table}", *changes], {})


def test_rewards_that_a_table_adds_up_cannot_be_bent_one_by_one() -> None:
    check_trainable(q_learning("algorithm.reward_scale=0.1"))
    check_trainable(q_learning("algorithm.reward_clip=1", table="{kind: sequence}"))
    one_step = ("algorithm.n_step=1", "replay.tables.train.n_step=1")
    check_trainable(q_learning("algorithm.reward_clip=1", *one_step))
    for name, value in (("reward_clip", "1"), ("reward_symlog", "true")):
        with pytest.raises(
            ConfigError, match=rf"'algorithm\.{name}': the table sums up the rewards of 3 steps"
        ):
            check_trainable(q_learning(f"algorithm.{name}={value}"))


def test_a_burn_in_must_leave_something_of_the_sequence() -> None:
    def sequences(burn_in: int) -> Config:
        table = "{kind: sequence, unrolls: 2}"
        changes = [f"algorithm.burn_in={burn_in}", "actor.unroll_length=10", f"replay.tables.train={table}"]
        return load_config(None, ["algorithm.name=r2d2", "exploration.epsilon=0.4", *changes], {})

    check_trainable(sequences(19))
    with pytest.raises(ConfigError, match=r"'algorithm.burn_in': 20 leaves nothing of sequences of 20 steps"):
        check_trainable(sequences(20))


@pytest.mark.parametrize(
    ("table", "steps"),
    [
        ("{kind: transition, min_items: 1000}", 1000),
        ("{kind: sequence, min_items: 50}", 50 * 20),
        ("{kind: sequence, min_items: 50, unrolls: 4, overlap_unrolls: 1}", 50 * 3 * 20),
    ],
)
def test_a_run_that_ends_before_anything_is_sampled_is_refused(table: str, steps: int) -> None:
    sets = [f"replay.tables.train={table}", "algorithm={name: apex, n_step: 1}", "actor.unroll_length=20"]
    sets.append("exploration.epsilon=0.4")
    check_trainable(load_config(None, sets, {}))
    check_trainable(load_config(None, [*sets, f"stop.steps={steps + 1}"], {}))
    with pytest.raises(
        ConfigError, match=rf"train\.min_items': \d+ items are {steps} environment steps, .*after {steps} \("
    ):
        check_trainable(load_config(None, [*sets, f"stop.steps={steps}"], {}))


@pytest.mark.parametrize("state", ["policy.frame_stack=4", "policy.recurrent=lstm"])
def test_a_policy_with_state_needs_more_than_single_transitions(state: str) -> None:
    for kind in ("queue", "sequence"):
        check_trainable(
            load_config(None, ["algorithm.name=impala", f"replay.tables.train.kind={kind}", state], {})
        )
    config = load_config(None, ["algorithm.name=apex", "replay.tables.train.kind=transition", state], {})
    with pytest.raises(
        ConfigError, match=r"'replay.tables.train.kind': single transitions hold no state"
    ) as caught:
        check_trainable(config)
    name, _, value = state.partition("=")
    assert f"{name} is {value}" in str(caught.value).replace("'", "")


SYNCHRONOUS = ["algorithm.name=ppo", "actor.envs=32", "learner.batch_envs=64"]


def test_synchronous_training_needs_a_batch_of_all_environments() -> None:
    check_trainable(load_config(None, SYNCHRONOUS, {}))
    check_launched(load_config(None, [*SYNCHRONOUS, "launch.actors=2"], {}))
    # Some agents for each environment.
    check_launched(load_config(None, [*SYNCHRONOUS, "launch.actors=1"], {}))
    with pytest.raises(ConfigError, match=r"'learner.batch_envs': 64, but 3 x actor.envs are 96.* to 96"):
        check_launched(load_config(None, [*SYNCHRONOUS, "launch.actors=3"], {}))
    others = ("algorithm.synchronous=false", "launch.actors=3", "learner.publish_every=2", "actor.envs=60")
    for check in (check_launched, check_trainable):
        check(load_config(None, [*SYNCHRONOUS, *others], {}))


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("actor.envs=48", r"'learner.batch_envs': 64 is no multiple of actor.envs \(48\)"),
        ("learner.publish_every=2", r"'learner.publish_every': 2, but synchronous actors wait"),
    ],
)
def test_what_synchronous_training_would_wait_for_in_vain_is_refused(setting: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        check_trainable(load_config(None, [*SYNCHRONOUS, setting], {}))


@pytest.mark.parametrize("kind", ["q", "soft_actor_critic", "deterministic"])
def test_a_policy_that_the_algorithm_cannot_train_is_refused(kind: str) -> None:
    config = load_config(None, [f"policy.kind={kind}"], {})
    with pytest.raises(
        ConfigError, match=rf"'policy.kind': ppo cannot train .* kind '{kind}': set it to actor_critic"
    ):
        check_trainable(config)
