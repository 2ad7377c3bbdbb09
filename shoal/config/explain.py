"""What is wrong with a configuration, in one line: the key, the value, what it may be and what to do.

Called by `shoal.config.load` with what pydantic found. An unknown key comes with the nearest known one, or
with the algorithms or kinds of tables that have it, and with where it was set.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from shoal.algorithms.profile import Tree
from shoal.config.tree import Config

# What the key that names a section's variant names.
_NOUNS = {"kind": "kind", "name": "algorithm"}


@dataclass(frozen=True)
class Origin:
    """Something that values came from, by the name that a user knows it by."""

    name: str
    tree: Tree
    is_file: bool = False

    def has(self, keys: Sequence[str]) -> bool:
        inside: Any = self.tree
        for key in keys:
            if not isinstance(inside, dict):
                return True
            if key not in inside:
                return False
            inside = inside[key]
        return True


@dataclass(frozen=True)
class _Variants:
    """The sections that one part of the tree can be, by the value of `key`, and which one it is."""

    path: str
    key: str
    sections: dict[str, Any]
    chosen: str


@dataclass(frozen=True)
class _Place:
    """The keys as the user wrote them, and the type of what holds the last one."""

    keys: list[str]
    inside: Any
    variants: _Variants | None

    @property
    def path(self) -> str:
        return ".".join(self.keys)


def explain(error: ValidationError, origins: Sequence[Origin] = ()) -> str:
    """`origins` say where values came from; of several the first that has a key."""
    lines: list[str] = []
    remedies: list[str] = []
    for problem in error.errors(include_url=False, include_context=False):
        place = _locate(problem["loc"])
        if problem["type"] == "extra_forbidden" and (owners := _owners(place)):
            origin = next((origin for origin in origins if origin.has(place.keys)), None)
            lines.append(_misplaced(place, owners, origin))
            remedies += _remedy(place, origin)
        else:
            lines.append(_explain_one(problem, place))
    # Several keys of one file need the same.
    return "; ".join([*lines, *dict.fromkeys(remedies)])


def _owners(place: _Place) -> list[str]:
    """The other variants of the section that have the key."""
    sections = place.variants.sections if place.variants is not None else {}
    return [name for name, section in sections.items() if place.keys[-1] in section.model_fields]


def _misplaced(place: _Place, owners: Sequence[str], origin: Origin | None) -> str:
    assert place.variants is not None
    names = " or ".join(filter(None, [", ".join(owners[:-1]), owners[-1]]))
    source = f" (from {origin.name})" if origin is not None else ""
    return f"unknown config key {place.path!r}{source}: only {_NOUNS[place.variants.key]} {names} has it"


def _remedy(place: _Place, origin: Origin | None) -> list[str]:
    variants = place.variants
    if origin is None or variants is None:
        return []
    choice = f"{variants.path}.{variants.key}"
    if origin.is_file:
        todo = f"for that, copy {origin.name}, remove the keys that it does not have, and pass the copy"
    else:
        todo = f"leave the key out, or set {choice} to one that has it"
    return [f"{choice} is {variants.chosen}: {todo}"]


def _explain_one(problem: Any, place: _Place) -> str:
    path = place.path
    if problem["type"] == "extra_forbidden":
        return f"unknown config key {path!r}{_nearest(place)}"
    if problem["type"].startswith("union_tag"):
        key, sections = _variants_of(place.inside)
        value, names = problem["input"].get(key), ", ".join(sections)
        return f"config key '{path}.{key}': {_shown(value)} is not one of the {_NOUNS[key]}s {names}"
    text = problem["msg"].removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    if not path:
        return f"config: {text}"
    # Whatever stands in this section may be or hold a secret.
    if place.keys[0] == "security":
        return f"config key {path!r}: {text}"
    return f"config key {path!r}: {text} (got {_shown(problem['input'])}){_hint(problem, place)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _hint(problem: Any, place: _Place) -> str:
    if problem["type"] in ("string_type", "path_type") and isinstance(problem["input"], bool):
        return ": YAML reads a bare on, off, yes or no as true or false; put the word in quotes"
    if problem["type"] == "model_attributes_type":
        key, sections = _variants_of(place.inside)
        return f": set {place.path}.{key} to one of {', '.join(sections)}"
    return ""


def _nearest(place: _Place) -> str:
    known = list(place.inside.model_fields) if _is_section(place.inside) else []
    close = difflib.get_close_matches(place.keys[-1], known, n=1, cutoff=0.5)
    if close:
        return f": did you mean {'.'.join([*place.keys[:-1], close[0]])!r}?"
    return f": known keys are {', '.join(known)}" if known else ""


def _locate(loc: Sequence[str | int]) -> _Place:
    """Where a section can be one of several, pydantic puts the one that it is between the keys."""
    keys: list[str] = []
    inside: Any = Config
    variants: _Variants | None = None
    for part in loc:
        key, sections = _variants_of(inside)
        if part in sections:
            variants = _Variants(".".join(keys), key, sections, str(part))
            inside = sections[str(part)]
            continue
        keys.append(str(part))
        if _is_section(inside):
            field = inside.model_fields.get(part)
            if field is None:
                break
            inside = field.annotation
        else:
            inside = (get_args(inside) or (None,))[-1]
    return _Place(keys, inside, variants)


def _variants_of(annotation: Any) -> tuple[str, dict[str, Any]]:
    """Of what can be one of several sections: the key that says which, and the sections by its values."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    sections = get_args(annotation)
    if not sections or not all(map(_is_section, sections)):
        return "", {}
    key = next(key for key in _NOUNS if key in sections[0].model_fields)
    return key, {section.model_fields[key].default: section for section in sections}


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
