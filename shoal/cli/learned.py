"""Whether a run has learned, in words: for its last lines and its report. Pure over `result.json`.

The learner decides: `has_learned` compares its last episodes with those of the untrained policy. What to try
comes from `shoal.algorithms.advice`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shoal.algorithms.advice import to_try
from shoal.cli.charts import short
from shoal.config import Config


def note_advice(record: dict[str, Any], config: Config) -> None:
    """Keeps what to try with the result of a run that has not learned: its report says it too."""
    if not list(_not_learned(record)):
        return
    is_early = (record.get("env_steps") or 0) < config.learner.guards.no_progress.after_env_steps
    record["advice"] = f"{'train for longer, or ' if is_early else ''}try {to_try(config.algorithm)}"


def not_learned(record: Mapping[str, Any]) -> list[str]:
    """A line for each policy that is known not to have learned."""
    advice = f"; {record['advice']}" if record.get("advice") else ""
    return [f"{_sentence(whose, of)}{advice}" for whose, of in _not_learned(record)]


def compared(record: Mapping[str, Any]) -> str:
    """Beside a return: ` (untrained 22.1)`; after few episodes ` (untrained 22.1, last 40 episodes 96.3)`."""
    untrained, newest = record.get("untrained_return"), record.get("newest_return")
    parts = [] if untrained is None else [f"untrained {untrained:,.1f}"]
    if newest is not None:
        parts.append(f"last {record['newest_episodes']} episodes {newest:,.1f}")
    return f" ({', '.join(parts)})" if parts else ""


def _not_learned(record: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """With `policy NAME ` where there are several. What reached the wanted return has learned enough."""
    policies: Mapping[str, Mapping[str, Any]] = record.get("policies", {})
    named = [(f"policy {name} ", of) for name, of in policies.items()] or [("", record)]
    return [
        (whose, of)
        for whose, of in named
        if of.get("has_learned") is False and of.get("reason") != "until_return"
    ]


def _sentence(whose: str, record: Mapping[str, Any]) -> str:
    # The best of many means is a lucky one, unless the guard has seen it fall.
    has_fallen = "return_collapse" in record.get("guards", {})
    best = f" (at best {record['best_return']:,.1f})" if has_fallen else ""
    return (
        f"{whose}has not learned: mean return {record['mean_return']:,.1f}{best} after "
        f"{short(record['env_steps'])} steps, "
        f"the untrained policy's was {record['untrained_return']:,.1f}"
    )
