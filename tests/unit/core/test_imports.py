"""Import paths of users: modules and files, and every way they can be wrong."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.errors import UserError
from shoal.imports import load_attribute


@pytest.fixture(autouse=True)
def _imports_of_this_test_only() -> Iterator[None]:
    modules, paths = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = paths


def written(directory: Path, name: str, source: str) -> str:
    (directory / name).write_text(source)
    return str(directory / name)


def test_a_module_and_a_name() -> None:
    assert load_attribute("math:pi", "env.id") == math.pi
    assert load_attribute("os.path:join", "env.id") is __import__("os").path.join


def test_a_file_and_a_name(tmp_path: Path) -> None:
    file = written(tmp_path, "mine.py", "VALUE = 7\n")
    assert load_attribute(f"{file}:VALUE", "env.id") == 7


def test_a_relative_path_starts_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "mine.py", "VALUE = 7\n")
    monkeypatch.chdir(tmp_path)
    assert load_attribute("mine.py:VALUE", "env.id") == 7


def test_a_file_is_imported_once_so_that_its_classes_are_the_same(tmp_path: Path) -> None:
    file = written(tmp_path, "mine.py", "class Env: pass\nclass Wrapper(Env): pass\n")
    env, wrapper = load_attribute(f"{file}:Env", "env.id"), load_attribute(f"{file}:Wrapper", "env.id")
    assert isinstance(env, type)
    assert isinstance(wrapper, type)
    assert issubclass(wrapper, env)
    # dataclasses and pickle look a class's module up by its name.
    assert sys.modules[env.__module__].Env is env  # type: ignore[attr-defined]


def test_files_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = written(tmp_path / "a", "mine.py", "VALUE = 1\n")
    two = written(tmp_path / "b", "mine.py", "VALUE = 2\n")
    assert [load_attribute(f"{file}:VALUE", "env.id") for file in (one, two)] == [1, 2]


def test_a_file_may_import_the_one_beside_it_and_hides_no_installed_module(tmp_path: Path) -> None:
    written(tmp_path, "beside_it_for_shoal.py", "VALUE = 3\n")
    written(tmp_path, "fractions.py", "raise RuntimeError('hidden')\n")
    file = written(tmp_path, "json.py", "import fractions\nfrom beside_it_for_shoal import VALUE\n")
    assert load_attribute(f"{file}:VALUE", "env.id") == 3


@pytest.mark.parametrize("path", ["", "mine", ":name", "module:", "module:not-a-name", "file.py"])
def test_a_path_of_another_form_is_refused(path: str) -> None:
    with pytest.raises(UserError, match=r"policy\.network is .*expected `module:name`"):
        load_attribute(path, "policy.network")


def test_a_missing_module_is_named() -> None:
    with pytest.raises(UserError, match=r"'nowhere_to_be_found'.*PYTHONPATH"):
        load_attribute("nowhere_to_be_found.inner:name", "env.id")


def test_what_a_module_itself_lacks_is_told_apart_from_the_module(tmp_path: Path) -> None:
    file = written(tmp_path, "mine.py", "import nowhere_to_be_found\n")
    with pytest.raises(UserError, match=r"importing .*mine\.py failed: ModuleNotFoundError: .*nowhere"):
        load_attribute(f"{file}:name", "env.id")


def test_a_missing_file_is_named_in_full(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"no file {tmp_path}/none.py"):
        load_attribute(f"{tmp_path}/none.py:name", "env.id")


def test_a_missing_name_brings_the_nearest_one() -> None:
    with pytest.raises(UserError, match="no 'flor'; did you mean 'floor'"):
        load_attribute("math:flor", "env.id")


@pytest.mark.parametrize("source", ["1 / 0", "def broken(:", "raise SystemExit(3)"])
def test_whatever_importing_raises_is_one_line_and_leaves_nothing_half_imported(
    source: str, tmp_path: Path
) -> None:
    file = written(tmp_path, "mine.py", source + "\nVALUE = 1\n")
    with pytest.raises(UserError, match=r"importing .*mine\.py failed") as raised:
        load_attribute(f"{file}:VALUE", "env.id")
    assert "\n" not in str(raised.value)

    written(tmp_path, "mine.py", "# mended, and longer than it was before\nVALUE = 2\n")
    assert load_attribute(f"{file}:VALUE", "env.id") == 2
