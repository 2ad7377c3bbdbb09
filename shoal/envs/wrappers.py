"""Wrappers from the configuration: found by import path, put around each environment or around the batch.

Called by `shoal.envs.make`, also inside worker processes. Importing and wrapping run the user's code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gymnasium.vector import VectorWrapper

from shoal.config.tree import WrapperSection
from shoal.envs.faults import one_line
from shoal.errors import UserError
from shoal.imports import load_attribute


@dataclass(frozen=True)
class Wrapper:
    """One wrapper, with its arguments."""

    path: str
    wrap: Callable[..., Any]
    kwargs: dict[str, Any]

    @property
    def wraps_batch(self) -> bool:
        """Whether it goes around a batch instead of around each environment."""
        return isinstance(self.wrap, type) and issubclass(self.wrap, VectorWrapper)


def load_wrappers(sections: Sequence[WrapperSection]) -> tuple[Wrapper, ...]:
    """Raises UserError for one that is not there, and if some wrap batches and others not."""
    wrappers = tuple(_load(section) for section in sections)
    of_batches = [wrapper.path for wrapper in wrappers if wrapper.wraps_batch]
    of_single = [wrapper.path for wrapper in wrappers if not wrapper.wraps_batch]
    if of_batches and of_single:
        raise UserError(
            f"env.wrappers: {of_batches[0]!r} wraps a batch of environments and {of_single[0]!r} a single "
            "one; use only one of the two kinds"
        )
    return wrappers


def apply_wrappers(env: Any, wrappers: Sequence[Wrapper]) -> Any:
    """`env` with all wrappers around it, the first one innermost."""
    for wrapper in wrappers:
        try:
            env = wrapper.wrap(env, **wrapper.kwargs)
        except Exception as e:  # the user's own code
            raise UserError(f"env.wrappers: {wrapper.path!r} raised {one_line(e)}") from e
    return env


def _load(section: WrapperSection) -> Wrapper:
    found = load_attribute(section.path, "env.wrappers")
    if not callable(found):
        raise UserError(f"env.wrappers: {section.path!r} is a {type(found).__name__}, which wraps nothing")
    return Wrapper(section.path, found, section.kwargs)
