"""What a user names by an import path: `package.module:name` or `path/to/file.py:name`.

Environments, wrappers and encoders of one's own are found here. Importing runs the user's code: whatever it
raises becomes a UserError of one line. Call it from one thread at a time. No torch, no gRPC.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from shoal.errors import UserError


def load_attribute(path: str, what: str) -> object:
    """The object that `path` names; `what` is the setting to name in errors, such as `policy.network`.

    A file is imported once, however often it is named, and may import the files beside it. A relative path
    starts at the working directory.
    """
    where, _, name = path.rpartition(":")
    if not where or not name.isidentifier():
        raise UserError(f"{what} is {path!r}: expected `module:name` or `path/to/file.py:name`")
    module = _load_file(where, path, what) if where.endswith(".py") else _load_module(where, path, what)
    try:
        found: object = getattr(module, name)
    except AttributeError:
        nearest = difflib.get_close_matches(name, vars(module), n=1)
        advice = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise UserError(f"{what} is {path!r}, but {where} has no {name!r}{advice}") from None
    return found


def _load_module(where: str, path: str, what: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name and _leads_to(error.name, where):
            advice = "is it installed, and on PYTHONPATH?"
            raise UserError(f"{what} is {path!r}, but there is no module {error.name!r}: {advice}") from error
        raise _import_error(where, path, what, error) from error


def _leads_to(missing: str, where: str) -> bool:
    """Whether it is the named module itself, or a package around it, that is missing."""
    return where == missing or where.startswith(missing + ".")


def _load_file(where: str, path: str, what: str) -> ModuleType:
    file = Path(where).resolve()
    if not file.is_file():
        raise UserError(f"{what} is {path!r}, but there is no file {file}")
    # Its own name could be that of an installed module.
    module_name = f"shoal_file_{hashlib.sha256(str(file).encode()).hexdigest()[:16]}_{file.stem}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(file.parent) not in sys.path:
        # Last, so that a file beside it never hides an installed module.
        sys.path.append(str(file.parent))
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise _import_error(where, path, what, error) from error
    return module


def _import_error(where: str, path: str, what: str, error: BaseException) -> UserError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return UserError(f"{what} is {path!r}, but importing {where} failed: {reason}")
