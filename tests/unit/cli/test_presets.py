"""What the argument of `shoal train` is taken for."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.cli import task, train
from shoal.cli.presets import PRESETS, Target, preset_names, resolve, resume
from shoal.cli.task import Seen
from shoal.config import Config, load_config
from shoal.config.trainable import check_launched, check_trainable
from shoal.errors import ConfigError, UserError
from shoal.policy.network import build_policy
from shoal.records import ActionSpec, ArraySpec, BoxAction, DiscreteAction, EnvSpec

VECTOR = ArraySpec("observation", "float32", (4,))
IMAGE = ArraySpec("observation", "uint8", (84, 84))
SPEC = EnvSpec("X-v0", (VECTOR,), DiscreteAction(2))
BOX = BoxAction((2,), (-1.0, -1.0), (1.0, 1.0))


@pytest.fixture(autouse=True)
def _any_environment_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "look_at", lambda section, play_s: Seen({"policy": SPEC}, {"policy": 1}))


def effective_config(target: Target, overrides: list[str]) -> Config:
    config, _ = train.settle(train.layers_of(target, overrides), target, will_run=True)
    return config


@pytest.fixture
def presets(tmp_path: Path) -> Path:
    directory = tmp_path / "configs"
    directory.mkdir()
    for name in ("cartpole", "pong"):
        (directory / f"{name}.yaml").write_text("env: {id: X-v0}\n")
    return directory


def test_preset_by_name(presets: Path) -> None:
    target = resolve("cartpole", presets)
    assert (target.name, target.file, target.overrides) == ("cartpole", presets / "cartpole.yaml", ())


def test_file(tmp_path: Path, presets: Path) -> None:
    file = tmp_path / "my run.yaml"
    file.write_text("{}")
    target = resolve(str(file), presets)
    assert (target.name, target.file) == ("my-run", file)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ALE/Pong-v5", "mine:maze", "Maze", "maze-v0"])
def test_anything_else_is_an_env_id(presets: Path, env_id: str) -> None:
    target = resolve(env_id, presets)
    assert target.file is None
    assert load_config(target.file, target.overrides, environ={}).env.id == env_id


def test_unknown_preset_names_the_nearest(presets: Path) -> None:
    with pytest.raises(
        UserError, match=r"no preset 'cartpol': did you mean 'cartpole'\? \(presets: cartpole, pong;"
    ):
        resolve("cartpol", presets)


def test_missing_file_names_the_nearest(tmp_path: Path, presets: Path) -> None:
    with pytest.raises(UserError, match=r"no config file .*pang\.yaml: did you mean 'pong\.yaml'\?"):
        resolve(str(presets / "pang.yaml"), presets)


def test_run_directory_is_resumed_where_it_is_now(tmp_path: Path) -> None:
    run = tmp_path / "moved: here"
    run.mkdir()
    (run / "config.yaml").write_text("run: {name: old, dir: /elsewhere}\nlearner: {batch_envs: 7}\n")
    (run / "checkpoints" / "000001-step-5").mkdir(parents=True)
    config = effective_config(resume(run), [])
    assert (config.run.dir, config.run.name, config.learner.batch_envs) == (run, "old", 7)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ((), "no directory, so there is no run"),
        (("checkpoints/",), r"a directory without config\.yaml"),
        (("config.yaml",), "the run has no checkpoint to go on from"),
        (("config.yaml", "checkpoints/.tmp-000001-step-5/"), "no checkpoint to go on from"),
    ],
)
def test_what_cannot_be_resumed(tmp_path: Path, made: tuple[str, ...], expected: str) -> None:
    for name in made:
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(parents=True) if name.endswith("/") else path.touch()
    with pytest.raises(UserError, match=rf"--resume .*/run: .*{expected}"):
        resume(tmp_path / "run")


def test_a_run_of_several_policies_is_resumed_too(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    (tmp_path / "policies" / "red" / "checkpoints" / "000001-step-5").mkdir(parents=True)
    assert resume(tmp_path).file == tmp_path / "config.yaml"


@pytest.mark.parametrize("name", ["some", "d.yaml", "Maze-v0"])
def test_a_directory_is_not_trained_on(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=rf"{name} is a directory: .* go on with --resume"):
        resolve(str(tmp_path / name))


def test_a_directory_does_not_hide_a_preset(
    tmp_path: Path, presets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pong").mkdir()
    assert resolve("pong", presets).file == presets / "pong.yaml"


def test_flags_win_over_the_file_and_later_ones_over_earlier(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("actor: {envs: 4}\nlaunch: {actors: 2}\n")
    config = effective_config(resolve(str(file)), ["actor.envs=8", "actor.envs=16"])
    assert (config.actor.envs, config.launch.actors) == (16, 2)


def test_run_gets_a_name_and_a_directory_of_its_own() -> None:
    config = effective_config(resolve("ALE/Pong-v5"), [])
    assert config.run.name == "ALE-Pong-v5"
    assert config.run.dir.parent == Path("runs")
    assert config.run.dir.name.startswith("ALE-Pong-v5-")


def test_given_name_and_directory_stay(tmp_path: Path) -> None:
    config = effective_config(resolve("X-v0"), ["run.name=mine", f"run.dir={tmp_path}"])
    assert (config.run.name, config.run.dir) == ("mine", tmp_path)


def test_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"unknown config key 'actor\.env': did you mean 'actor\.envs'\?"):
        effective_config(resolve("X-v0"), ["actor.env=1"])


@pytest.mark.parametrize("name", preset_names())
def test_shipped_presets_are_valid(name: str) -> None:
    config = load_config(PRESETS / f"{name}.yaml", environ={})
    check_trainable(config)
    check_launched(config)
    assert config.run.name == name
    assert f"[{name}]({name}.yaml)" in (PRESETS / "README.md").read_text()


@pytest.mark.parametrize("name", preset_names())
def test_shipped_presets_are_complete(name: str) -> None:
    """Nothing has to be looked at: with what a preset says, its policy can be built."""
    config = load_config(PRESETS / f"{name}.yaml", environ={})
    is_box = any(word in name for word in ("halfcheetah", "pendulum"))
    action: ActionSpec = BOX if is_box else DiscreteAction(3)
    seen = IMAGE if config.env.id.startswith("ALE/") else VECTOR
    build_policy(config.policy, EnvSpec(config.env.id, (seen,), action))


def test_there_is_a_cartpole_preset() -> None:
    assert "cartpole" in preset_names()
