"""The place of a learner among several: from the environment, and what follows for its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.config.connections import ListenSection
from shoal.config.load import build_config, load_config
from shoal.config.ranks import (
    Ranks,
    at_rank,
    batch_share,
    check_shareable,
    env_shares,
    listen_of,
    ranks_of,
)
from shoal.config.trainable import check_trainable
from shoal.errors import ConfigError


def test_alone_unless_the_environment_says_otherwise() -> None:
    assert ranks_of({}) == ranks_of({"LOCAL_RANK": "3"}) == Ranks(0, 1, 0, 1)


def test_what_a_learner_is_started_with_is_what_it_reads() -> None:
    ranks = Ranks(3, 4, 1, 2)
    environment = ranks.environment("10.0.0.1", 29500)
    assert ranks_of(environment) == ranks
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("10.0.0.1", "29500")
    assert ranks_of({"RANK": "1", "WORLD_SIZE": "2"}) == Ranks(1, 2, 0, 1), "a machine each"


@pytest.mark.parametrize(("rank", "size"), [("2", "2"), ("-1", "2"), ("one", "2"), ("0", "0")])
def test_an_impossible_place_is_refused(rank: str, size: str) -> None:
    with pytest.raises(ConfigError, match=f"RANK='{rank}', WORLD_SIZE='{size}', which is no place"):
        ranks_of({"RANK": rank, "WORLD_SIZE": size})


IMPALA = ["algorithm.name=impala", "learner.batch_envs=64"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["learner.batch_envs=63"], "'learner.batch_envs': 63 cannot be divided among 2 .* such as 64"),
        (
            ["env.policies={red: [a], blue: [b]}", "learner.sharding=fsdp"],
            "'env.policies': red, blue does not go with learner.sharding 'fsdp'",
        ),
        (["algorithm.name=sac", "learner.sharding=fsdp"], "'algorithm.name': sac does not go with"),
        (["learner.sharding=fsdp", "learner.compile=true"], "'learner.compile': True does not go with"),
        (["learner.sharding=fsdp", "learner.accumulate=2"], "'learner.accumulate': 2 does not go with"),
        (
            ["algorithm={name: appo, minibatches: 8}", "learner.batch_envs=8", "policy.recurrent=lstm"],
            "'algorithm.minibatches': 8 is above the 4 environments",
        ),
        (["learner.accumulate=64"], "'learner.accumulate': 64 is above the 32 environments"),
        (
            ["algorithm={name: ppo, minibatches: 1}", "actor={envs: 1, groups: 1}", "learner.batch_envs=4"],
            "'actor.envs': 1 environments cannot be divided among 2 learners",
        ),
        (
            [
                "algorithm={name: ppo, minibatches: 3}",
                "actor={envs: 5, groups: 1}",
                "learner.batch_envs=5",
                "policy.frame_stack=2",
            ],
            "'algorithm.minibatches': 3 is above the 2 environments",
        ),
        (
            [
                "algorithm={name: ppo, minibatches: 33}",
                "actor={envs: 16, unroll_length: 4}",
                "learner.batch_envs=16",
            ],
            "'algorithm.minibatches': 33 is above the 32 steps",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused(overrides: list[str], message: str) -> None:
    config = load_config(None, [*IMPALA, *overrides, "launch.learners=2"], {})
    with pytest.raises(ConfigError, match=message):
        check_trainable(config)
    check_shareable(load_config(None, [*IMPALA, *overrides], {}), 1)


@pytest.mark.parametrize(
    "overrides",
    [
        ["launch.learners=4"],
        ["launch.learners=2", "algorithm.name=ppo"],
        ["launch.learners=2", "env.policies={red: [a], blue: [b]}"],
        ["launch.learners=2", "algorithm.name=ppo", "env.policies={red: [a], blue: [b]}"],
        ["launch.learners=3", "algorithm.name=ppo"],
    ],
)
def test_what_can_be_shared(overrides: list[str]) -> None:
    check_trainable(load_config(None, overrides, {}))


@pytest.mark.parametrize(("launched", "started"), [(1, 2), (2, 1), (2, 4)])
def test_actors_of_a_synchronous_run_must_know_how_many_learners_there_are(
    launched: int, started: int
) -> None:
    config = load_config(None, ["algorithm.name=ppo", f"launch.learners={launched}"], {})
    message = f"'launch.learners': {launched}, but this is one of {started} learners.* set it to {started} "
    with pytest.raises(ConfigError, match=message):
        check_shareable(config, started)
    # Others take what comes, and so any number can.
    check_shareable(load_config(None, [*IMPALA, f"launch.learners={launched}"], {}), started)


def test_learners_of_a_machine_listen_in_places_of_their_own() -> None:
    given = ListenSection(
        grpc="0.0.0.0:50071",
        health="unix:/run/h.sock",
        metrics="[::]:9100",
        announce=Path("/run/learner.json"),
    )
    assert listen_of(given, Ranks(0, 4, 0, 2)) == given
    assert listen_of(given, Ranks(1, 4, 1, 2)) == ListenSection(
        grpc="", health="unix:/run/h.sock.1", metrics="[::]:9101", announce=Path("/run/learner.json.1")
    )
    # The first on another machine.
    assert listen_of(given, Ranks(2, 4, 0, 2)) == given.model_copy(update={"grpc": ""})


def test_a_free_port_stays_one() -> None:
    config = at_rank(build_config({}), Ranks(1, 2, 1, 2))
    assert (config.learner.listen.metrics, config.learner.listen.announce) == ("127.0.0.1:0", None)


def test_environments_are_divided_as_equally_as_can_be() -> None:
    assert env_shares(8, 2) == (range(4), range(4, 8))
    assert env_shares(8, 3) == (range(2), range(2, 5), range(5, 8))
    assert env_shares(3, 1) == (range(3),)


@pytest.mark.parametrize("num_learners", [1, 2, 3, 5])
@pytest.mark.parametrize("num_actors", [1, 4])
def test_shares_of_a_synchronous_batch_are_all_of_it(num_learners: int, num_actors: int) -> None:
    """A learner has the same environments of every actor."""
    config = build_config(
        {
            "algorithm": {"name": "ppo"},
            "actor": {"envs": 16},
            "learner": {"batch_envs": num_actors * 16},
            "launch": {"learners": num_learners, "actors": num_actors},
        }
    )
    shares = [batch_share(config, rank, num_learners) for rank in range(num_learners)]
    assert sum(shares) == num_actors * 16
    assert shares == [num_actors * len(envs) for envs in env_shares(16, num_learners)]


def test_a_batch_of_others_is_divided_equally() -> None:
    config = load_config(None, IMPALA, {})
    assert [batch_share(config, rank, 4) for rank in range(4)] == [16] * 4
