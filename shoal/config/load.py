"""Fills the config tree: default < file < environment < `--set`.

Called by every composition root and by the CLI. Every mistake is a ConfigError of one line, which
`shoal.config.explain` words.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from shoal.config.explain import Origin, Tree, explain
from shoal.config.tree import Config
from shoal.errors import ConfigError

ENVIRONMENT_PREFIX = "SHOAL__"


def load_config(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """The effective configuration. `overrides` are texts like `learner.batch_envs=128`."""
    return complete_config(read_yaml(path) if path is not None else {}, overrides, environ, path)


def complete_config(
    tree: Tree,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> Config:
    """As `load_config`, with `tree` in the place of the file; it is written over. `file` is for messages."""
    variables, settings = _from_environment(environ), parse_overrides(overrides)
    merge(tree, variables)
    merge(tree, settings)
    origins = [Origin("--set", settings), Origin(f"a {ENVIRONMENT_PREFIX} variable", variables)]
    if file is not None:
        # By now it holds the others' values too: it comes last.
        origins.append(Origin(str(file), tree, is_file=True))
    return build_config(tree, origins)


def build_config(tree: Tree, origins: Sequence[Origin] = ()) -> Config:
    """Validate a plain tree. `origins` say where its values came from; of several the first that has it."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, origins)) from None


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
