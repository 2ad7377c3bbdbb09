"""What to change when a run does not learn: settings that exist, and none that are already so."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter

from shoal.algorithms import advice
from shoal.algorithms.profiles import AnyAlgorithm
from shoal.algorithms.settings import AlgorithmSection
from shoal.config import Config

SECTIONS = get_args(get_args(AnyAlgorithm)[0])
ALL = (advice.for_no_progress, advice.for_values, advice.for_gradients, advice.for_collapse)


def section(**values: Any) -> AlgorithmSection:
    made: AlgorithmSection = TypeAdapter[AlgorithmSection](AnyAlgorithm).validate_python(values)
    return made


@pytest.mark.parametrize("kind", SECTIONS, ids=lambda kind: kind.__name__)
def test_every_algorithm_has_advice_that_names_its_own_settings(kind: type[AlgorithmSection]) -> None:
    made = section(name=kind.model_fields["name"].default)
    for give in ALL:
        text = give(made)
        print(f"{give.__name__}: {text}")
        assert text[0].isupper()
        keys = re.findall(r"algorithm\.(\w+)", text)
        assert keys
        assert set(keys) <= set(kind.model_fields), text
        for key in re.findall(r"exploration\.(\w+)", text):
            assert key in type(Config().exploration).model_fields


def test_what_is_already_so_is_not_advised() -> None:
    plain, normalised = (section(name="impala", normalise_returns=given) for given in (False, True))
    for give in (advice.for_no_progress, advice.for_values, advice.for_gradients):
        assert "normalise_returns=true" in give(plain)
        assert "normalise_returns" not in give(normalised)
    falling = section(name="impala", learning_rate_schedule="linear")
    assert "schedule=linear" in advice.for_collapse(plain)
    assert "schedule" not in advice.for_collapse(falling)
    assert "target_kl" in advice.for_collapse(section(name="ppo", target_kl=None))
    assert "target_kl" not in advice.for_collapse(section(name="ppo", target_kl=0.05))
