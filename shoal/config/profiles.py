"""Puts an algorithm's profile under what the user has set, and works out what follows from both.

Trees in, trees out, before anything is validated: `shoal.config.tree` calls `complete` on whatever it is
given, so that every service fills in the same values. What cannot be worked out, because a value that it
depends on is no number, is left to validation to complain about. No torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from shoal.algorithms.profile import Profile, TableProfile, Task, Tree, merge
from shoal.algorithms.profiles import DEFAULT, PROFILES
from shoal.config.tables import TABLES

# What a policy that was saved before these settings came is like. A saved section holds all keys of its time.
_SINCE_THEN: Tree = {
    "value_trunk": "shared",
    "scale_actions": False,
    "initial_log_std": 0.0,
    "previous_inputs": False,
}
_SAVED_POLICY = ("network_kwargs", "hidden_sizes", "activation", "frame_stack", "recurrent_size", "dueling")

# How far either side may be ahead of `samples_per_insert`: a few batches, and what a few appends pay for.
_BATCHES_AHEAD, _APPENDS_AHEAD = 16, 2


def complete(tree: Tree, task: Task | None = None) -> Tree:
    """The tree with everything that it leaves to the algorithm; `tree` stays as it is."""
    algorithm = tree.get("algorithm", {})
    if not isinstance(algorithm, dict):
        return tree
    name = algorithm.get("name", DEFAULT)
    profile = PROFILES.get(name) if isinstance(name, str) else None
    if profile is None:
        merged: Tree = {}
        merge(merged, tree)
    else:
        merged = over_profile(tree, profile, task)
    merge(merged, {"algorithm": {"name": name}})
    if profile is not None and all(isinstance(merged.get(key, {}), dict) for key in _DERIVED_FROM):
        merge(merged, derived(merged, profile, task))
    return merged


def over_profile(tree: Tree, profile: Profile, task: Task | None) -> Tree:
    """A copy of the tree with the profile's values under its own."""
    merged = profile_values(tree, profile, task)
    merge(merged, tree)
    return merged


def profile_values(tree: Tree, profile: Profile, task: Task | None) -> Tree:
    """What the profile has for what a tree asks for."""
    policy = tree.get("policy", {})
    is_recurrent = isinstance(policy, dict) and policy.get("recurrent", "none") != "none"
    return profile.tree(task, is_recurrent)


_DERIVED_FROM = ("actor", "launch", "learner", "policy", "replay")


def derived(merged: Tree, profile: Profile, task: Task | None) -> Tree:
    """What follows from the rest of a tree, which has its profile's values already, and is not set."""
    found: Tree = {"policy": _policy(merged.get("policy", {}), profile)}
    numbers = _Numbers.of(merged)
    if numbers is None:
        return found
    learner = merged.get("learner", {})
    batch_envs = learner.get("batch_envs")
    if batch_envs is None:
        num_agents = 1 if task is None else task.num_agents
        batch_envs = num_agents * _usual_batch(merged, numbers)
        found["learner"] = {"batch_envs": batch_envs}
    name = learner.get("table", "train")
    if not isinstance(name, str):
        return found
    tables = merged.get("replay", {}).get("tables", {name: {}})
    table = tables.get(name) if isinstance(tables, dict) else None
    if isinstance(table, dict) and isinstance(batch_envs, int):
        found["replay"] = {"tables": {name: _table(table, merged, profile, task, numbers, batch_envs)}}
    return found


def of_its_time(policy: Tree) -> Tree:
    """What a policy section that was saved by an older release leaves out, and was then."""
    is_saved = all(key in policy for key in _SAVED_POLICY)
    return {key: value for key, value in _SINCE_THEN.items() if key not in policy} if is_saved else {}


def _policy(policy: Tree, profile: Profile) -> Tree:
    kind = {} if "kind" in policy else {"kind": profile.settings.trains}
    return kind | of_its_time(policy)


def _usual_batch(merged: Tree, numbers: _Numbers) -> int:
    """What one group of an actor hands over at a time; with several passes over a batch, one unroll of all.

    Every pass makes what waits to be trained on older: the fewer batches wait, the better.
    """
    if "epochs" in PROFILES[merged["algorithm"]["name"]].settings.model_fields:
        return numbers.actors * numbers.envs
    return max(1, numbers.envs // numbers.groups)


def _table(
    table: Tree,
    merged: Tree,
    profile: Profile,
    task: Task | None,
    numbers: _Numbers,
    batch_envs: int,
) -> Tree:
    """What the table that is learned from leaves to the algorithm."""
    kind = table.get("kind") or _usual_kind(merged, profile)
    section = TABLES.get(kind) if isinstance(kind, str) else None
    if section is None:
        return {}
    sizes = profile.table_for(task)
    if kind == "queue":
        usual: Tree = {"max_items": sizes.max_unrolls * numbers.groups}
    else:
        usual = _sampled(table, kind, merged, sizes, numbers, batch_envs)
    usual = {key: value for key, value in usual.items() if key in section.model_fields and key not in table}
    return {"kind": kind} | usual


def _usual_kind(merged: Tree, profile: Profile) -> str:
    """Single transitions hold no state of a policy: one that has some learns from sequences."""
    kinds, policy = profile.settings.learns_from, merged.get("policy", {})
    has_state = policy.get("frame_stack", 1) != 1 or policy.get("recurrent", "none") != "none"
    return "sequence" if has_state and kinds[0] == "transition" else kinds[0]


def _sampled(
    table: Tree, kind: str, merged: Tree, sizes: TableProfile, numbers: _Numbers, batch_envs: int
) -> Tree:
    settings = merged["algorithm"]
    section = PROFILES[settings["name"]].settings

    def setting(key: str) -> Any:
        field = section.model_fields.get(key)
        return settings.get(key, None if field is None else field.default)

    length = _new_unrolls(table) * numbers.unroll_length if kind == "sequence" else 1
    max_items = table.get("max_items", max(1, sizes.max_steps // length // numbers.shards))
    if type(max_items) is not int:
        return {}
    usual: Tree = {
        "max_items": max_items,
        "min_items": min(max_items, math.ceil(sizes.min_steps / length / numbers.shards)),
        "alpha": sizes.alpha,
        "n_step": setting("n_step") or 1,
        "discount": setting("discount"),
    }
    updates = setting("updates_per_step")
    if isinstance(updates, int | float):
        usual["samples_per_insert"] = updates * batch_envs * length
    ratio = table.get("samples_per_insert", usual.get("samples_per_insert"))
    if isinstance(ratio, int | float):
        inserted = numbers.envs // numbers.groups * max(1, numbers.unroll_length // length)
        usual["ratio_tolerance"] = float(_BATCHES_AHEAD * batch_envs + _APPENDS_AHEAD * inserted * ratio)
    return usual


def _new_unrolls(table: Tree) -> int:
    """Unrolls of a sequence that the one before did not have; 1 if what is set makes no sense."""
    unrolls, shared = table.get("unrolls", 1), table.get("overlap_unrolls", 0)
    if type(unrolls) is not int or type(shared) is not int:
        return 1
    return max(1, unrolls - shared)


@dataclass(frozen=True)
class _Numbers:
    """What derived values are computed from."""

    actors: int
    envs: int
    groups: int
    unroll_length: int
    shards: int

    @classmethod
    def of(cls, merged: Tree) -> _Numbers | None:
        """None if one of them is no number: validation says so."""
        actor, launch = merged.get("actor", {}), merged.get("launch", {})
        values = (
            launch.get("actors", 1),
            actor.get("envs", 64),
            actor.get("groups", 2),
            actor.get("unroll_length", 20),
            launch.get("replay_shards", 1),
        )
        are_numbers = all(type(value) is int and value > 0 for value in values)
        return cls(*values) if are_numbers else None
