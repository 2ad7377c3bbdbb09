"""The pages of docs/algorithms against the code: each algorithm has one, and quotes lines that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from shoal.algorithms.settings import ReplayedSection
from shoal.config.load import build_config, load_config
from shoal.config.trainable import check_trainable
from tests.unit.learner.any_algorithm import NAMES, batch_of, build, config_of, spec_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/algorithms"
# | paper | `line of code` | [file](path) |
QUOTE = re.compile(r"^\|[^|]*\| `([^`]+)` \| \[[^\]]+\]\(([^)]+)\) \|$", re.MULTILINE)
SECTIONS = ("## Equations", "## Metrics", "## Where it departs from the paper", "## Results")


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("name", NAMES)
def test_an_algorithm_has_its_page(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    missing = [section for section in SECTIONS if section not in page]
    assert not missing, f"{name}.md lacks {missing}"
    assert f"]({name}.md)" in (PAGES / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_quoted_lines_are_in_the_code(name: str) -> None:
    quotes = QUOTE.findall((PAGES / f"{name}.md").read_text())
    assert len(quotes) >= 3, f"{name}.md quotes {len(quotes)} lines of code"
    for line, path in quotes:
        source = (PAGES / path).resolve().read_text()
        assert squeezed(line) in squeezed(source), f"{name}.md quotes a line that is not in {path}: {line}"


@pytest.mark.parametrize("name", NAMES)
def test_settings_that_a_page_shows_can_be_trained_with(name: str) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", (PAGES / f"{name}.md").read_text(), re.MULTILINE | re.DOTALL)
    assert bool(blocks) == isinstance(config_of(name).algorithm, ReplayedSection), "the table that it needs"
    for block in blocks:
        tree = yaml.safe_load(block)
        config = build_config(tree)
        check_trainable(config)
        assert config.algorithm.name == name
        # The preset that is named above the block has the same values, of its own or from its profile.
        presets = re.findall(r"`(configs/\w+\.yaml)`", (PAGES / f"{name}.md").read_text())
        effective = [load_config(ROOT / preset, [], {}).model_dump(mode="json") for preset in presets]
        assert any(holds(whole, tree) for whole in effective)


def holds(whole: object, part: object) -> bool:
    """Whether a tree has all that another one has."""
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(key in whole and holds(whole[key], value) for key, value in part.items())
    return whole == part


@pytest.mark.parametrize("name", NAMES)
def test_every_metric_is_explained(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    trainer = build(name, seed=1)
    # Two steps: some algorithms do not do everything at each.
    outcomes = [trainer.step(batch_of(trainer._algorithm, spec_of(name), seed)) for seed in range(2)]
    logged = {metric for outcome in outcomes for metric in outcome.metrics}
    explained = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert explained == logged
