"""Fills the config tree: default < file < environment < `--set`.

Called by every composition root and by the CLI. Every mistake is a ConfigError of one line, which
`shoal.config.explain` words.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from shoal.algorithms.profile import Task, Tree, merge
from shoal.algorithms.profiles import PROFILES
from shoal.config.explain import Origin, explain
from shoal.config.profiles import complete, derived, over_profile, profile_values
from shoal.config.tree import Config
from shoal.errors import ConfigError

ENVIRONMENT_PREFIX = "SHOAL__"


def load_config(
    path: Path | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Config:
    """The effective configuration. `overrides` are texts like `learner.batch_envs=128`."""
    return load_layers(path, overrides, environ).config()


def complete_config(
    tree: Tree,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    file: Path | None = None,
) -> Config:
    """As `load_config`, with `tree` in the place of the file. `file` is for messages."""
    return Layers(tree, _from_environment(environ), parse_overrides(overrides), file).config()


def load_layers(
    path: Path | None = None, overrides: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> Layers:
    """What `load_config` puts together, before it does."""
    tree = read_yaml(path) if path is not None else {}
    return Layers(tree, _from_environment(environ), parse_overrides(overrides), path)


@dataclass(frozen=True)
class Layers:
    """Where values come from, the weakest first; below them are the algorithm's profile and the defaults."""

    of_file: Tree
    of_environment: Tree
    of_flags: Tree
    file: Path | None = None

    def merged(self) -> Tree:
        tree: Tree = {}
        for layer in (self.of_file, self.of_environment, self.of_flags):
            merge(tree, layer)
        return tree

    def config(self, task: Task | None = None) -> Config:
        """`task`: what the environment is like, if that is known. Raises ConfigError."""
        origins = [
            Origin("--set", self.of_flags),
            Origin(f"a {ENVIRONMENT_PREFIX} variable", self.of_environment),
        ]
        if self.file is not None:
            origins.append(Origin(str(self.file), self.of_file, is_file=True))
        return build_config(complete(self.merged(), task), origins)

    def origins(self, config: Config, task: Task | None = None) -> Iterator[tuple[str, Any, str]]:
        """Every value of the configuration that these make: its key, the value, and what it comes from."""
        profile, merged = PROFILES[config.algorithm.name], self.merged()
        below = profile_values(merged, profile, task)
        whole = over_profile(merged, profile, task)
        merge(whole, {"algorithm": {"name": profile.name}})
        name = "file" if self.file is None else str(self.file)
        layers = [
            Origin("flag", self.of_flags),
            Origin("environment", self.of_environment),
            Origin(name, self.of_file),
            Origin("derived", derived(whole, profile, task)),
            Origin(f"profile {profile.name}", below),
        ]
        tree = config.model_dump(mode="json", exclude={"security": {"token"}})
        for keys, value in _leaves(tree, ()):
            found = (layer.name for layer in layers if layer.has(keys))
            yield ".".join(keys), value, next(found, "default")


def _leaves(tree: Tree, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


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
