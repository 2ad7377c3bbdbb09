"""Configuration: the typed tree and how it is filled."""

from shoal.config.load import load_config, parse_overrides, to_yaml
from shoal.config.tree import Config

__all__ = ["Config", "load_config", "parse_overrides", "to_yaml"]
