"""The processes of a run and what each is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli.plan import ProcessSpec, child_environment, plan_processes
from shoal.cli.presets import PRESETS
from shoal.config import Config, load_config
from shoal.config.ranks import Ranks, at_rank, ranks_of

SOCKETS = Path("/tmp/shoal-x")


def plan(*overrides: str) -> dict[str, ProcessSpec]:
    config = load_config(None, overrides, environ={})
    return {spec.name: spec for spec in plan_processes(config, SOCKETS)}


def told(spec: ProcessSpec) -> Config:
    """The config that the process will load."""
    return load_config(None, spec.overrides, environ={})


def test_every_axis_is_counted_and_slow_starters_come_first() -> None:
    specs = plan("launch.actors=3", "launch.inference=2", "launch.replay_shards=2", "launch.evaluators=1")
    assert list(specs) == [
        "learner-0", "inference-0", "inference-1", "replay-0", "replay-1",
        "actor-0", "actor-1", "actor-2", "evaluator-0",
    ]  # fmt: skip


def test_learners_are_told_the_same_and_know_their_rank() -> None:
    specs = plan("launch.learners=2")
    chief, other = specs["learner-0"], specs["learner-1"]
    assert list(specs)[:3] == ["learner-0", "learner-1", "inference-0"]
    assert chief.overrides == other.overrides
    assert (chief.ranks, other.ranks) == (Ranks(0, 2, 0, 2), Ranks(1, 2, 1, 2))
    for spec in (chief, other):
        assert at_rank(told(spec), spec.ranks).learner.listen.announce == spec.announce
    assert chief.announce != other.announce


def test_no_rank_leaks_from_whatever_started_us() -> None:
    leaking = {"RANK": "3", "WORLD_SIZE": "8", "TORCHELASTIC_USE_AGENT_STORE": "True", "PATH": "/bin"}
    for learners in (1, 2):
        config = load_config(None, [f"launch.learners={learners}"], environ={})
        environment = child_environment(config, "token", leaking, SOCKETS)
        assert ranks_of(environment) == Ranks()
        assert not any(key.startswith("TORCHELASTIC") for key in environment)
        assert ("GLOO_SOCKET_IFNAME" in environment) == (learners > 1)


def test_peers_are_where_their_servers_listen() -> None:
    specs = plan("launch.inference=2", "launch.replay_shards=2")
    listening = {
        "learner": (told(specs["learner-0"]).learner.listen.grpc,),
        "inference": tuple(told(specs[f"inference-{i}"]).inference.listen.grpc for i in range(2)),
        "replay": tuple(told(specs[f"replay-{i}"]).replay.listen.grpc for i in range(2)),
    }
    actor = told(specs["actor-0"])
    assert actor.addresses.inference == listening["inference"]
    assert actor.addresses.replay == listening["replay"]
    assert told(specs["learner-0"]).addresses.replay == listening["replay"]
    assert (told(specs["inference-1"]).addresses.learner,) == listening["learner"]
    assert all(address.startswith("unix:/tmp/shoal-x/") for group in listening.values() for address in group)


def test_no_two_processes_share_an_address_or_a_name() -> None:
    specs = plan("launch.actors=2", "launch.inference=2", "launch.replay_shards=2", "launch.evaluators=2")
    own = [
        value
        for spec in specs.values()
        for value in spec.overrides
        if ".listen." in value or value.split("=")[0].endswith(".id")
    ]
    values = [value.split("=", 1)[1] for value in own]
    assert len(values) == len(set(values))


def test_evaluator_is_an_actor_that_evaluates() -> None:
    spec = plan("launch.evaluators=1")["evaluator-0"]
    assert spec.service == "actor"
    assert (told(spec).actor.mode, told(spec).actor.id) == ("evaluate", "evaluator-0")


def test_drains_fit_into_the_stop_of_the_whole_run() -> None:
    assert told(plan()["learner-0"]).rpc.drain_s == 4.0
    assert told(plan("rpc.drain_s=0.5")["learner-0"]).rpc.drain_s == 0.5


def test_command_runs_the_service_with_the_runs_config() -> None:
    command = plan()["actor-0"].command(Path("/runs/x/config.yaml"))
    module = command.index("-m")
    assert command[module : module + 4] == ["-m", "services.actor", "--config", "/runs/x/config.yaml"]


def test_files_of_the_users_hide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = plan()["actor-0"]
    monkeypatch.chdir(tmp_path)
    assert "-P" in spec.command(Path("c.yaml"))
    monkeypatch.chdir(PRESETS.parent)
    assert "-P" not in spec.command(Path("c.yaml")), "a checkout need not be installed"


def test_token_travels_in_the_environment_only() -> None:
    environment = child_environment(
        Config(), "secret-token", {"PATH": "/bin", "SHOAL__ACTOR__ENVS": "3"}, SOCKETS
    )
    assert environment["SHOAL__SECURITY__TOKEN"] == "secret-token"
    assert environment["PATH"] == "/bin"
    assert environment["TMPDIR"] == str(SOCKETS), "what is left there goes with the run"
    assert "SHOAL__ACTOR__ENVS" not in environment
    assert not any("secret-token" in part for spec in plan().values() for part in spec.command(Path("c")))


def test_users_own_token_is_kept() -> None:
    given = load_config(None, ["security.token=mine"], environ={})
    assert child_environment(given, "random", {}, SOCKETS)["SHOAL__SECURITY__TOKEN"] == "mine"
    by_file = load_config(None, ["security.token_file=/t"], environ={})
    assert "SHOAL__SECURITY__TOKEN" not in child_environment(by_file, "random", {}, SOCKETS)


def test_threads_are_one_unless_the_user_says_otherwise() -> None:
    environment = child_environment(Config(), "t", {"OMP_NUM_THREADS": "4"}, SOCKETS)
    assert (environment["OMP_NUM_THREADS"], environment["MKL_NUM_THREADS"]) == ("4", "1")
