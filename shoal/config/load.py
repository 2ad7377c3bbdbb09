"""Fills the config tree: default < file < environment < `--set`.

Called by every composition root and by the CLI. Every mistake is a ConfigError of one line that names the
key, the value and, for an unknown key, the nearest known one.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
    tree = read_yaml(path) if path is not None else {}
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
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"unknown config key {path!r}{_nearest(problem['loc'])}"
    text = problem["msg"].removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    if not path:
        return f"config: {text}"
    # Whatever stands in this section may be or hold a secret.
    if problem["loc"][0] == "security":
        return f"config key {path!r}: {text}"
    received = repr(problem["input"])
    return f"config key {path!r}: {text} (got {received if len(received) <= 80 else received[:77] + '...'})"


def _nearest(loc: tuple[str | int, ...]) -> str:
    known = _known_keys(loc[:-1])
    close = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
    prefix = "".join(f"{part}." for part in loc[:-1])
    if close:
        return f": did you mean {prefix + close[0]!r}?"
    return f": known keys are {', '.join(known)}" if known else ""


def _known_keys(loc: tuple[str | int, ...]) -> list[str]:
    """Field names of the section at `loc`; the keys of `replay.tables` are the user's own."""
    model: Any = Config
    for part in loc:
        field = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        annotation = field.annotation if field is not None else None
        if annotation is None and hasattr(model, "__args__"):
            annotation = model.__args__[-1]
        model = annotation
    if isinstance(model, type) and issubclass(model, BaseModel):
        return list(model.model_fields)
    return []
