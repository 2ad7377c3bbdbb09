"""Fills the config tree: default < file < environment < `--set`.

Called by every composition root and by the CLI. Every mistake is a ConfigError of one line that names the
key, the value and, for an unknown key, the nearest known one.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from shoal.config.tree import Config
from shoal.errors import ConfigError

ENVIRONMENT_PREFIX = "SHOAL__"

Tree = dict[str, Any]


def load_config(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """The effective configuration. `overrides` are texts like `learner.batch_envs=128`."""
    return complete_config(read_yaml(path) if path is not None else {}, overrides, environ)


def complete_config(
    tree: Tree, overrides: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> Config:
    """As `load_config`, with `tree` in the place of the file; it is written over."""
    merge(tree, _from_environment(environ))
    merge(tree, parse_overrides(overrides))
    return build_config(tree)


def build_config(tree: Tree) -> Config:
    """Validate a plain tree."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def to_yaml(config: Config) -> str:
    """The whole tree as a file that `load_config` takes; secrets are left out."""
    tree = config.model_dump(mode="json", exclude={"security": {"token"}})
    return yaml.safe_dump(tree, sort_keys=False)


class _UniqueKeys(yaml.SafeLoader):
    """YAML's safe loader, except that a key that stands twice is an error instead of a silent choice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} stands twice", node.start_mark
                )
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Tree:
    try:
        tree = _UniqueKeys(path.read_text()).get_single_data()
    except OSError as error:
        raise ConfigError(f"cannot read config file {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"config file {path} is no valid YAML: {reason}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"config file {path} must hold a mapping, not a {type(tree).__name__}")
    return tree


def parse_overrides(overrides: Iterable[str]) -> Tree:
    """`a.b=c` texts as a tree; values are YAML."""
    tree: Tree = {}
    for text in overrides:
        path, separator, value = text.partition("=")
        if not separator or not path.strip():
            raise ConfigError(f"cannot use --set {text!r}: write it as section.field=value")
        merge(tree, _nest(path.strip().split("."), _yaml_value(value, f"--set {path}")))
    return tree


def merge(base: Tree, top: Tree) -> None:
    """Write `top` over `base`, mapping by mapping."""
    for key, value in top.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            merge(base[key], value)
        else:
            base[key] = value


def _from_environment(environ: Mapping[str, str]) -> Tree:
    tree: Tree = {}
    for name, value in environ.items():
        if name.startswith(ENVIRONMENT_PREFIX):
            path = name[len(ENVIRONMENT_PREFIX) :].lower().split("__")
            # A secret is taken to the letter: a token made of digits is no number.
            plain = value if path == ["security", "token"] else _yaml_value(value, name)
            merge(tree, _nest(path, plain))
    return tree


def _nest(path: Sequence[str], value: Any) -> Tree:
    for key in reversed(path):
        value = {key: value}
    tree: Tree = value
    return tree


def _yaml_value(text: str, where: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"cannot read the value of {where}: {text!r} is no valid YAML") from None


def _explain(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False)
    lines = [_explain_one(problem) for problem in problems]
    return "; ".join(lines)


def _explain_one(problem: Any) -> str:
    keys, section, kinds = _locate(problem["loc"])
    path = ".".join(keys)
    if problem["type"] == "extra_forbidden":
        return f"unknown config key {path!r}{_advice(keys, section, kinds)}"
    if problem["type"].startswith("union_tag"):
        return (
            f"config key '{path}.kind': {problem['input']['kind']!r} is not one of the kinds "
            f"{', '.join(_members(section))}"
        )
    text = problem["msg"].removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    if not path:
        return f"config: {text}"
    # Whatever stands in this section may be or hold a secret.
    if keys[0] == "security":
        return f"config key {path!r}: {text}"
    received = repr(problem["input"])
    return f"config key {path!r}: {text} (got {received if len(received) <= 80 else received[:77] + '...'})"


def _advice(keys: Sequence[str], section: Any, kinds: Mapping[str, Any]) -> str:
    others = [kind for kind, member in kinds.items() if keys[-1] in member.model_fields]
    if others:
        return f": only kind {' or '.join(others)} has it"
    known = list(section.model_fields) if _is_section(section) else []
    close = difflib.get_close_matches(keys[-1], known, n=1, cutoff=0.5)
    prefix = "".join(f"{key}." for key in keys[:-1])
    if close:
        return f": did you mean {prefix + close[0]!r}?"
    return f": known keys are {', '.join(known)}" if known else ""


def _locate(loc: Sequence[str | int]) -> tuple[list[str], Any, dict[str, Any]]:
    """The keys as the user wrote them, the type of what holds the last one, and the kinds it could be of.

    Where a section can be of several kinds, pydantic puts the kind between the keys.
    """
    keys: list[str] = []
    inside: Any = Config
    kinds: dict[str, Any] = {}
    for part in loc:
        if part in _members(inside):
            kinds = _members(inside)
            inside = kinds[str(part)]
            continue
        keys.append(str(part))
        if _is_section(inside):
            field = inside.model_fields.get(part)
            if field is None:
                break
            inside = field.annotation
        else:
            inside = (get_args(inside) or (None,))[-1]
    return keys, inside, kinds


def _members(annotation: Any) -> dict[str, Any]:
    """The kinds of a section that can be of several, by name."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    sections = get_args(annotation)
    if not all(map(_is_section, sections)):
        return {}
    return {
        section.model_fields[key].default: section
        for section in sections
        for key in ("kind", "name")
        if key in section.model_fields
    }


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
