"""What a command needs that is not always installed: said at once, in one line, and without importing it."""

from __future__ import annotations

import importlib.util

from shoal.errors import UserError


def require(doing: str, modules: tuple[str, ...], extra: str) -> None:
    """Raises UserError if one of the modules is missing; `extra` of this distribution brings all of them."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise UserError(f"{doing} needs {' and '.join(missing)}: pip install 'shoal[{extra}]'")
