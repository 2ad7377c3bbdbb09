"""The documents against the code: metrics, configuration, links, paths and make targets that they name."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from shoal.algorithms.profiles import AnyAlgorithm
from shoal.config.tables import AnyTable
from shoal.config.tree import Config, WrapperSection

ROOT = Path(__file__).resolve().parents[2]
METRICS = ROOT / "docs/metrics.md"
CONFIGURATION = ROOT / "docs/configuration.md"
TABLE = "replay.tables.<name>."
TABLES = get_args(get_args(AnyTable)[0])
ALGORITHMS = get_args(get_args(AnyAlgorithm)[0])
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "services/*/README.md", "deploy/**/*.md", "benchmarks/**/*.md")
    for path in ROOT.glob(pattern)
)
# Folders whose files a page may name in code font; such a path must exist.
FOLDERS = (
    "shoal",
    "services",
    "proto",
    "configs",
    "docs",
    "tests",
    "scripts",
    "benchmarks",
    "deploy",
    "examples",
)


def links(text: str) -> Iterator[str]:
    """Targets of the page's links and images, code left out."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    yield from re.findall(r"\]\(([^)\s]+)[^)]*\)", prose)


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = re.findall(r"^#+ +(.+?) *$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    local = [link for link in links(page.read_text()) if not re.match(r"[a-z]+:", link)]
    return [link for link in local if not _resolves(page, link)]


def _resolves(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return False
    return not anchor or target.suffix != ".md" or anchor in anchors(target.read_text())


def missing_paths(page: Path) -> list[str]:
    """Paths in code font that do not exist; `<name>` and `*` stand for anything, `::` goes before a test."""
    named = re.findall(rf"`((?:{'|'.join(FOLDERS)})/[^`\s]*)`", page.read_text())
    return [name for name in named if not _is_there(name)]


def _is_there(name: str) -> bool:
    path, _, function = name.partition("::")
    found = list(ROOT.glob(re.sub(r"<[^>]*>|\{[^}]*\}", "*", path).rstrip("/")))
    return bool(found) and (not function or f"def {function}(" in found[0].read_text())


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):(?!=)", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def named_targets(text: str) -> set[str]:
    """Targets of `make x` in code font and in code blocks."""
    code = re.findall(r"```.*?```|`[^`\n]*`", text, flags=re.DOTALL)
    return {target for block in code for target in re.findall(r"(?:^|[`\s])make ([a-z][a-z0-9-]*)", block)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page: Path) -> None:
    assert broken_links(page) == []
    assert missing_paths(page) == []
    assert named_targets(page.read_text()) - make_targets() == set()


def test_missing_things_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One, two\n[a](gone.md) [b](#one-two) [c](#three) [d](https://example.org/) `[e](gone.md)`\n"
        "`shoal/gone.py` `shoal/codec.py` `services/<name>/metrics.py` `make nothing`\n"
        "`tests/unit/test_docs.py::test_missing_things_are_seen` `tests/unit/test_docs.py::test_gone`\n"
        "```\nmake nowhere\nmake test\n```\n"
    )
    assert broken_links(page) == ["gone.md", "#three"]
    assert missing_paths(page) == ["shoal/gone.py", "tests/unit/test_docs.py::test_gone"]
    assert named_targets(page.read_text()) - make_targets() == {"nothing", "nowhere"}


def test_the_pages_that_a_reader_expects_are_there() -> None:
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    expected = {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"}
    expected |= {
        f"docs/{name}.md"
        for name in ("architecture", "protocol", "metrics", "configuration", "failure-model")
    }
    assert expected <= names


def test_every_make_target_has_a_line_of_help() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    listed = {line.split()[1] for line in done.stdout.splitlines()}
    assert listed == make_targets()


def test_the_metrics_page_is_what_the_services_register() -> None:
    done = check_tables("metrics_doc.py", METRICS)
    assert done.returncode == 0, done.stderr


def test_a_metric_that_is_missing_or_made_up_is_seen(tmp_path: Path) -> None:
    text = METRICS.read_text()
    row = re.search(r"^\| `shoal_\w+` .*$", text, flags=re.MULTILINE)
    assert row is not None
    page = tmp_path / "metrics.md"
    page.write_text(text.replace(row[0], row[0].replace("`shoal_", "`shoal_made_up_", 1)))
    done = check_tables("metrics_doc.py", page)
    assert done.returncode == 1
    assert f"missing: {row[0]}" in done.stderr
    assert "stale: | `shoal_made_up_" in done.stderr


def test_the_configuration_page_is_what_the_tree_has() -> None:
    done = check_tables("config_doc.py", CONFIGURATION)
    assert done.returncode == 0, done.stderr


def test_a_default_or_field_that_has_changed_is_seen(tmp_path: Path) -> None:
    text = CONFIGURATION.read_text()
    row = "| `actor.groups` | integer 1 to 64 | `1` | Groups of envs in flight: one steps, others wait. |"
    assert row in text
    page = tmp_path / "configuration.md"
    page.write_text(text.replace(row, row.replace("`1`", "`3`")))
    done = check_tables("config_doc.py", page)
    assert done.returncode == 1
    assert f"missing: {row}" in done.stderr
    assert "stale: | `actor.groups` | integer 1 to 64 | `3` |" in done.stderr


def test_the_configuration_page_has_every_field() -> None:
    keys = set(re.findall(r"^\| `([^`]+)` \|", CONFIGURATION.read_text(), flags=re.MULTILINE))
    expected = {path.replace("replay.tables.train.", TABLE) for path in leaves(Config().model_dump())}
    expected |= {f"algorithm.{name}" for each in ALGORITHMS for name in each.model_fields}
    expected |= {f"{TABLE}{name}" for each in TABLES for name in each.model_fields}
    expected |= {f"env.wrappers[].{name}" for name in WrapperSection.model_fields}
    assert keys - {"replay.tables"} == expected


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}{key}.")
        else:
            yield path + key


def check_tables(script: str, page: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / script), "--check", "--page", str(page)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_metric_names_follow_the_scheme() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", METRICS.read_text(), flags=re.MULTILINE)
    assert len(rows) == len({name for name, _ in rows}), "a metric is there twice"
    for name, kind in rows:
        assert re.fullmatch(r"shoal_(actor|inference|replay|learner)_[a-z0-9_]+", name), name
        assert name.endswith("_total") == (kind == "counter"), f"{name} is a {kind}"
        assert not re.search(r"_(ms|us|minutes|mb|kb)(_|$)", name), f"{name}: seconds and bytes only"
