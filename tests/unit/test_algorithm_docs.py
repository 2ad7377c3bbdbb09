"""The pages of docs/algorithms against the code: each algorithm has one, and quotes lines that exist."""

from __future__ import annotations

import re
import typing
from pathlib import Path

import pytest

from shoal.config.algorithms import AnyAlgorithm

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/algorithms"
ALGORITHMS = sorted(
    kind.model_fields["name"].default for kind in typing.get_args(typing.get_args(AnyAlgorithm)[0])
)
# | paper | `line of code` | [file](path) |
QUOTE = re.compile(r"^\|[^|]*\| `([^`]+)` \| \[[^\]]+\]\(([^)]+)\) \|$", re.MULTILINE)
# "name": value, in the dictionary of metrics of a loss.
METRIC = re.compile(r'^\s+"(\w+)": ', re.MULTILINE)
SECTIONS = ("## Equations", "## Metrics", "## Where it departs from the paper", "## Results")


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_has_its_page(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    missing = [section for section in SECTIONS if section not in page]
    assert not missing, f"{name}.md lacks {missing}"
    assert f"]({name}.md)" in (PAGES / "README.md").read_text()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_quoted_lines_are_in_the_code(name: str) -> None:
    quotes = QUOTE.findall((PAGES / f"{name}.md").read_text())
    assert len(quotes) >= 3, f"{name}.md quotes {len(quotes)} lines of code"
    for line, path in quotes:
        source = (PAGES / path).resolve().read_text()
        assert squeezed(line) in squeezed(source), f"{name}.md quotes a line that is not in {path}: {line}"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_metric_is_explained(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    metrics = METRIC.findall((ROOT / f"shoal/algorithms/{name}/loss.py").read_text())
    assert len(metrics) >= 3, f"the metrics of {name} were not found"
    unexplained = [metric for metric in metrics if f"| `{metric}` |" not in page]
    assert not unexplained, f"{name}.md does not explain {unexplained}"
