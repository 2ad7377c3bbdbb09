"""What an algorithm needs to learn: the one place that knows, for everything outside of its own folder.

A profile is torch-free data: the section with the algorithm's hyperparameters, the actions that it can take,
the table that it learns from, and values for the rest of the configuration that suit it.
`shoal.config.profiles` puts those under whatever the user sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.algorithms.settings import AlgorithmSection

# A part of the configuration, as it stands in a file.
Tree = dict[str, Any]

ActionKind = Literal["discrete", "multi_discrete", "box", "unbounded_box"]

ANY_ACTION: frozenset[ActionKind] = frozenset({"discrete", "multi_discrete", "box", "unbounded_box"})


@dataclass(frozen=True)
class Task:
    """What decides between defaults, as far as the environment's spec shows it."""

    action: ActionKind
    has_images: bool = False
    # Of a multi-agent environment: the most slots of one policy per environment.
    num_agents: int = 1


@dataclass(frozen=True)
class TableProfile:
    """The table that is learned from, counted in environment steps: items are as long as its kind says."""

    # Of a queue: unrolls of all environments that wait; of the others: steps that are kept.
    max_unrolls: int = 2
    max_steps: int = 1_000_000
    # Nothing is sampled before.
    min_steps: int = 1
    alpha: float = 0.0


@dataclass(frozen=True)
class Profile:
    """One algorithm. `values` are for vectors and any action; the other trees go over them."""

    settings: type[AlgorithmSection]
    # In a few words, for `--help` and the first line of a run.
    summary: str
    actions: frozenset[ActionKind]
    table: TableProfile
    values: Tree
    # Where the observation holds an image.
    images: Tree = field(default_factory=dict)
    # Where actions are real numbers.
    continuous: Tree = field(default_factory=dict)
    # Where the policy has a recurrent core.
    recurrent: Tree = field(default_factory=dict)
    image_table: TableProfile | None = None

    @property
    def name(self) -> str:
        name: str = self.settings.model_fields["name"].default
        return name

    def tree(self, task: Task | None, is_recurrent: bool = False) -> Tree:
        """All values for a task; without one, those for vectors and discrete actions."""
        layers = [self.values]
        if is_recurrent:
            layers.append(self.recurrent)
        if task is not None and task.action in ("box", "unbounded_box"):
            layers.append(self.continuous)
        if task is not None and task.has_images:
            layers.append(self.images)
        merged: Tree = {}
        for layer in layers:
            merge(merged, layer)
        return merged

    def table_for(self, task: Task | None) -> TableProfile:
        if task is not None and task.has_images and self.image_table is not None:
            return self.image_table
        return self.table


def merge(base: Tree, top: Mapping[str, Any]) -> None:
    """Write `top` over `base`, mapping by mapping; `top` stays as it is."""
    for key, value in top.items():
        if isinstance(value, dict):
            inner = base.get(key)
            base[key] = inner = dict(inner) if isinstance(inner, dict) else {}
            merge(inner, value)
        else:
            base[key] = value
