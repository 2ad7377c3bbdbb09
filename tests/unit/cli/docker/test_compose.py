"""Which compose command and files are used; compose itself is not called here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from shoal.cli.docker.compose import Compose, check_project, find_command, find_files
from shoal.errors import UserError


def answering(**versions: str) -> object:
    def ask(command: Sequence[str]) -> str | None:
        return versions.get("plugin" if command[0] == "docker" else "standalone")

    return ask


@pytest.mark.parametrize(
    ("versions", "command"),
    [
        ({"plugin": "2.29.1", "standalone": "1.29.2"}, ("docker", "compose")),
        ({"plugin": "v2.3"}, ("docker", "compose")),
        ({"standalone": "1.29.2"}, ("docker-compose",)),
        ({"standalone": "2.5.0"}, ("docker-compose",)),
    ],
)
def test_the_plugin_comes_before_the_old_command(versions: dict[str, str], command: tuple[str, ...]) -> None:
    assert find_command(answering(**versions)) == command  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("versions", "reason"),
    [({}, "none is on PATH"), ({"standalone": "1.28.6"}, "docker-compose is 1.28.6, too old")],
)
def test_no_usable_command(versions: dict[str, str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        find_command(answering(**versions))  # type: ignore[arg-type]


def test_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no docker-compose.yml in .*: go to shoal's checkout, or name one"):
        find_files([], tmp_path)
    (tmp_path / "compose.yaml").touch()
    assert find_files([], tmp_path) == (tmp_path / "compose.yaml",)
    (tmp_path / "docker-compose.yml").touch()
    assert find_files([], tmp_path) == (tmp_path / "docker-compose.yml",)
    given = [tmp_path / "compose.yaml", tmp_path / "gpu.yml"]
    with pytest.raises(UserError, match=r"no compose file .*gpu.yml"):
        find_files(given, tmp_path)
    (tmp_path / "gpu.yml").touch()
    assert find_files(given, tmp_path) == tuple(given)


@pytest.mark.parametrize("name", ["", "Shoal", "-x", "a b", "a/b", "--help"])
def test_names_that_compose_would_refuse(name: str) -> None:
    with pytest.raises(UserError, match="--project"):
        check_project(name)


def test_arguments() -> None:
    compose = Compose(("docker", "compose"), (Path("a.yml"), Path("b.yml")), "shoal")
    expected = ["docker", "compose", "-p", "shoal", "-f", "a.yml", "-f", "b.yml", "up", "-d"]
    assert compose.arguments("up", "-d") == expected


@pytest.mark.parametrize("version", [None, "3.8"])
def test_environment_goes_on_top_of_the_users_files(tmp_path: Path, version: str | None) -> None:
    file = tmp_path / "docker-compose.yml"
    tree = {"services": {"learner": {"image": "x"}}} | ({} if version is None else {"version": version})
    file.write_text(yaml.safe_dump(tree))
    compose = Compose(("docker-compose",), (file,), "shoal")
    with compose.with_environment("learner", {}) as same:
        assert same is compose
    with compose.with_environment("learner", {"SHOAL__STOP__UNTIL_RETURN": "450.0"}) as more:
        assert more.files[0] == file
        on_top = yaml.safe_load(more.files[1].read_text())
        assert on_top["services"] == {"learner": {"environment": {"SHOAL__STOP__UNTIL_RETURN": "450.0"}}}
        assert on_top.get("version") == version
    assert not more.files[1].exists()
    assert file.read_text() == yaml.safe_dump(tree)


def test_a_file_that_is_no_yaml(tmp_path: Path) -> None:
    file = tmp_path / "docker-compose.yml"
    file.write_text("services: [")
    compose = Compose(("docker-compose",), (file,), "shoal")
    with (
        pytest.raises(UserError, match="cannot be read"),
        compose.with_environment("learner", {"A": "b"}),
    ):
        pass
