"""The direction of imports and the other rules of the house that can be read off the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel

from shoal.config import Config

ROOT = Path(__file__).resolve().parents[2]
GENERATED = "shoal.v1"

TORCH_ALLOWED = ("shoal.policy", "shoal.algorithms", "services.learner", "services.inference")
TORCH_ALLOWED_IN_FUNCTIONS = ("shoal.cli",)
GRPC_ALLOWED = ("shoal.rpc", "shoal.clients", "shoal.wire", "shoal.journal.format")
# All of these can run code while they read data.
CODE_LOADERS = (
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "shelve",
    "marshal",
    "joblib",
    "jsonpickle",
)
UNSAFE_CALLS = ("torch.load", "yaml.load", "yaml.full_load", "yaml.unsafe_load", "eval", "exec")
VAGUE_NAMES = ("utils.py", "helpers.py", "common.py", "manager.py")
MAX_LINES = 400


@dataclass(frozen=True)
class Import:
    """One imported name, with the line that imports it."""

    target: str
    line: int
    in_function: bool


@dataclass(frozen=True)
class Module:
    """One source file of the two packages."""

    name: str
    path: Path
    source: str

    @property
    def tree(self) -> ast.Module:
        return _parse(self.source)

    def imports(self) -> Iterator[Import]:
        yield from _imports(self.tree, in_function=False)


@cache
def _parse(source: str) -> ast.Module:
    return ast.parse(source)


def _imports(node: ast.AST, *, in_function: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, in_function) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            # `from shoal import v1` and `from shoal.v1 import x` must look the same.
            yield from (Import(f"{child.module}.{a.name}", child.lineno, in_function) for a in child.names)
        else:
            inside = in_function or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, in_function=inside)


@cache
def modules() -> tuple[Module, ...]:
    found = []
    for path in sorted([*ROOT.glob("shoal/**/*.py"), *ROOT.glob("services/**/*.py")]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if not within(name, GENERATED):
            found.append(Module(name, path, path.read_text()))
    return tuple(found)


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def offences(rule: str, modules: tuple[Module, ...]) -> list[str]:
    check = {
        "upward": _imports_upward,
        "sideways": _imports_sideways,
        "torch": _imports_torch,
        "grpc": _imports_grpc,
        "code loaders": _loads_code,
    }[rule]
    return [
        f"{module.name}:{item.line} imports {item.target}"
        for module in modules
        for item in module.imports()
        if check(module.name, item)
    ]


def _imports_upward(module: str, item: Import) -> bool:
    return within(module, "shoal") and within(item.target, "services")


def _imports_sideways(module: str, item: Import) -> bool:
    service = ".".join(module.split(".")[:2])
    return within(module, "services") and within(item.target, "services") and not within(item.target, service)


def _imports_torch(module: str, item: Import) -> bool:
    if not within(item.target, "torch", "safetensors.torch"):
        return False
    if item.in_function and within(module, *TORCH_ALLOWED_IN_FUNCTIONS):
        return False
    return not within(module, *TORCH_ALLOWED) or module.endswith(".metrics")


def _imports_grpc(module: str, item: Import) -> bool:
    if not within(item.target, "grpc", "grpc_health", "google.protobuf", GENERATED):
        return False
    return not within(module, *GRPC_ALLOWED) and not module.endswith(".servicer")


def _loads_code(module: str, item: Import) -> bool:
    return within(item.target, *CODE_LOADERS)


RULES = ("upward", "sideways", "torch", "grpc", "code loaders")


@pytest.mark.parametrize("rule", RULES)
def test_imports_keep_the_rule(rule: str) -> None:
    assert offences(rule, modules()) == []


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [
        ("upward", "shoal.wire", "import services.actor"),
        ("upward", "shoal.wire", "from services import actor"),
        ("sideways", "services.actor.loop", "from services.replay.tables import Tables"),
        ("sideways", "services.actor", "from services import replay"),
        ("torch", "services.actor.loop", "import torch"),
        ("torch", "services.replay.tables", "def f():\n    from torch import nn"),
        ("torch", "shoal.cli.train", "import torch"),
        ("torch", "services.learner.metrics", "import torch"),
        ("torch", "shoal.config.tree", "if TYPE_CHECKING:\n    import torch"),
        ("grpc", "services.replay.tables", "from shoal.v1 import replay_service_pb2"),
        ("grpc", "services.replay.tables", "from shoal import v1"),
        ("grpc", "services.replay.__main__", "import grpc.aio"),
        ("code loaders", "shoal.codec", "import pickle"),
        ("code loaders", "shoal.codec", "from marshal import loads"),
    ],
)
def test_each_rule_sees_its_offence(rule: str, name: str, source: str) -> None:
    assert len(offences(rule, (Module(name, Path("x.py"), source),))) == 1


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [
        ("sideways", "services.actor.loop", "from services.actor import unroll"),
        ("torch", "shoal.cli.train", "def f():\n    import torch"),
        ("torch", "services.learner.trainer", "import torch"),
        ("grpc", "services.replay.servicer", "from shoal.v1 import replay_service_pb2"),
        ("grpc", "shoal.rpc.server", "import grpc"),
    ],
)
def test_no_rule_forbids_what_is_allowed(rule: str, name: str, source: str) -> None:
    assert offences(rule, (Module(name, Path("x.py"), source),)) == []


def test_nothing_calls_a_function_that_runs_what_it_reads() -> None:
    assert [call for module in modules() for call in _unsafe_calls(module.tree, module.name)] == []


@pytest.mark.parametrize(
    "source",
    ["torch.load(f)", "yaml.load(t)", "eval(t)", "np.load(f, allow_pickle=True)", "np.load(f, None, True)"],
)
def test_an_unsafe_call_is_seen(source: str) -> None:
    assert list(_unsafe_calls(ast.parse(source), "x"))


def _unsafe_calls(tree: ast.AST, where: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            # NumPy reads pickles only if asked to; nobody may ask, by keyword or by position.
            numpy_pickle = name in ("np.load", "numpy.load") and (len(node.args) > 1 or node.keywords)
            if name in UNSAFE_CALLS or numpy_pickle:
                yield f"{where}:{node.lineno} calls {name}"


def test_files_are_named_for_what_they_own_and_can_be_read_at_once() -> None:
    for module in modules():
        assert module.path.name not in VAGUE_NAMES, f"{module.path}: say what it owns"
        lines = module.source.count("\n")
        assert lines <= MAX_LINES, f"{module.path} has {lines} lines, above {MAX_LINES}: look for the seam"


def test_every_module_says_what_it_owns() -> None:
    silent = [m.name for m in modules() if m.source.strip() and not ast.get_docstring(m.tree)]
    assert silent == []


def test_every_service_has_the_same_skeleton() -> None:
    for service in ("actor", "inference", "learner", "replay"):
        for name in ("__init__.py", "__main__.py", "metrics.py", "README.md"):
            assert (ROOT / "services" / service / name).is_file(), f"services/{service}/{name} is missing"


# A composition root may import lazily, so all modules of the service are imported.
IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(found.name)
"""


@pytest.mark.parametrize("service", ["actor", "replay"])
def test_the_actor_and_the_replay_import_where_torch_is_not_installed(service: str) -> None:
    # None in sys.modules makes every import of that name fail, as if it were not there.
    _run_python("import sys; sys.modules['torch'] = None" + IMPORT_ALL, f"services.{service}")


@pytest.mark.parametrize("service", ["actor", "replay"])
def test_importing_the_actor_and_the_replay_leaves_torch_out(service: str) -> None:
    program = IMPORT_ALL + "print('torch' in sys.modules)"
    assert _run_python(program, f"services.{service}") == "False"


def test_a_service_with_torch_is_seen() -> None:
    program = IMPORT_ALL + "print('torch' in sys.modules)"
    assert _run_python(program, "services.inference") == "True"


@pytest.mark.parametrize("service", ["actor", "inference", "learner", "replay"])
def test_importing_a_service_registers_no_metric(service: str) -> None:
    program = IMPORT_ALL + (
        "from prometheus_client import REGISTRY\n"
        "print([metric.name for metric in REGISTRY.collect() if metric.name.startswith('shoal')])"
    )
    assert _run_python(program, f"services.{service}") == "[]"


def _run_python(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """`model` and every section below it, each once."""
    seen: set[type[BaseModel]] = set()
    waiting = [model]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        yield current
        for field in current.model_fields.values():
            waiting += _models_in(field.annotation)


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]


@cache
def attributes_read() -> frozenset[str]:
    """Every `x.name` that is read anywhere outside shoal.config."""
    return frozenset(
        node.attr
        for module in modules()
        if not within(module.name, "shoal.config")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    )


@cache
def settings_derived_from() -> frozenset[str]:
    """What `shoal.config.profiles` asks an algorithm's section for by name: `setting("name")`."""
    (profiles,) = [module for module in modules() if module.name == "shoal.config.profiles"]
    return frozenset(
        node.args[0].value
        for node in ast.walk(profiles.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "setting"
        and isinstance(node.args[0], ast.Constant)
    )


def test_every_config_field_is_described() -> None:
    silent = [
        f"{section.__name__}.{name}"
        for section in sections(Config)
        for name, field in section.model_fields.items()
        if not (field.description or "").endswith(".")
    ]
    assert silent == [], "describe each field in a sentence, with its unit"


def unread_fields(model: type[BaseModel]) -> list[str]:
    return [
        f"{section.__name__}.{name}"
        for section in sections(model)
        for name in section.model_fields
        if name not in attributes_read() | settings_derived_from()
    ]


def test_every_config_field_is_read() -> None:
    assert unread_fields(Config) == [], "a field that nothing reads promises what it does not keep"


def test_a_config_field_that_nothing_reads_is_seen() -> None:
    class Inner(BaseModel):
        field_of_no_use: int = 0

    class Outer(BaseModel):
        id: Inner = Inner()

    assert unread_fields(Outer) == ["Inner.field_of_no_use"]


def test_the_tree_is_walked_to_its_leaves() -> None:
    names = {section.__name__ for section in sections(Config)}
    # Reached through a dict's values and through a section in a section.
    assert {"Config", "QueueTable", "ListenSection", "TlsSection", "ImpalaConfig"} <= names
