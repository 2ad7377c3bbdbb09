"""Writes the tables of `docs/configuration.md` from the fields of the config tree and their descriptions.

Run by `make config-doc`; `--check` only compares and is what tests/unit/test_docs.py runs.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from page_tables import write_or_check
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

Section = type[BaseModel]


def tables(config: Section) -> str:
    whole = config()
    parts = [
        part
        for name, field in config.model_fields.items()
        for part in _section(name, field, getattr(whole, name))
    ]
    return "\n\n".join(parts)


def _section(path: str, field: FieldInfo, value: BaseModel) -> Iterator[str]:
    """A section of the whole: its own fields in one table, then what is below it."""
    sections = _sections_in(field.annotation)
    if len(sections) > 1:
        yield from _variants("##", path, sections)
        return
    yield f"## `{path}`\n\n{_text(sections[0].__doc__)}\n\n{_table(_own_rows(path, sections[0], value))}"
    for name, inner in sections[0].model_fields.items():
        yield from _subsection(f"{path}.{name}", inner, getattr(value, name))


def _subsection(path: str, field: FieldInfo, value: Any) -> Iterator[str]:
    sections = _sections_in(field.annotation)
    if not sections:
        return
    if not _is_section(field.annotation):
        path += ".<name>" if isinstance(value, Mapping) else "[]"
        value = None
    if len(sections) > 1:
        yield from _variants("###", path, sections)
        return
    text = f"{_text(field.description)} {_text(sections[0].__doc__)}"
    yield f"### `{path}`\n\n{text}\n\n{_table(_all_rows(path, sections[0], value))}"


def _variants(level: str, path: str, sections: Sequence[Section]) -> Iterator[str]:
    """What all of them have once, and then what each has besides, or has otherwise."""
    base = next(each for each in sections[0].__mro__ if all(issubclass(one, each) for one in sections))
    key = next(key for key in ("kind", "name") if key in sections[0].model_fields)
    names = [section.model_fields[key].default for section in sections]
    shared = list(_own_rows(path, base, None))
    choice = _row(f"{path}.{key}", _choices(names), names[0], "Which of those below.")
    yield f"{level} `{path}`\n\n{_text(base.__doc__)}\n\n{_table([choice, *shared])}"
    for name, section in zip(names, sections, strict=True):
        rows = [row for row in _own_rows(path, section, None, leave_out=key) if row not in shared]
        parts = [f"{level}# `{path}` with `{key}: {name}`", _text(section.__doc__)]
        yield "\n\n".join([*parts, _table(rows)] if rows else parts)


def _own_rows(
    path: str, section: Section, value: BaseModel | None, leave_out: str | None = None
) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if name != leave_out and not _is_section(field.annotation):
            yield _field_row(f"{path}.{name}", section, name, value)


def _all_rows(path: str, section: Section, value: BaseModel | None) -> Iterator[str]:
    """Those of the sections below it, too."""
    for name, field in section.model_fields.items():
        if _is_section(field.annotation):
            yield from _all_rows(f"{path}.{name}", field.annotation, getattr(value, name))
        else:
            yield _field_row(f"{path}.{name}", section, name, value)


def _field_row(path: str, section: Section, name: str, value: BaseModel | None) -> str:
    field = section.model_fields[name]
    default = field.get_default(call_default_factory=True) if value is None else getattr(value, name)
    kind = _type(section.model_json_schema()["properties"][name])
    return _row(path, kind, default, _text(field.description))


def _row(path: str, kind: str, default: Any, meaning: str) -> str:
    cells = (f"`{path}`", kind, _default(path, default), meaning)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _table(rows: Iterator[str] | Sequence[str]) -> str:
    return "\n".join(["| key | type and range | default | meaning |", "|---|---|---|---|", *rows])


def _default(path: str, value: Any) -> str:
    if value is PydanticUndefined:
        return "must be set"
    if isinstance(value, str | Path) and str(value):
        return f"`{value}`"
    if isinstance(value, Mapping):
        # A section as a user would write it: without what it has by default.
        value = {
            key: each.model_dump(exclude_defaults=True) if isinstance(each, BaseModel) else each
            for key, each in value.items()
        }
    size = f" ({_bytes(value)})" if path.endswith("_bytes") and value is not None else ""
    return f"`{json.dumps(to_jsonable_python(value))}`{size}"


def _bytes(value: int) -> str:
    return f"{value >> 30} GiB" if value >= 1 << 30 else f"{value >> 20} MiB"


def _type(schema: Mapping[str, Any]) -> str:
    """In words, of what pydantic says about a field in JSON Schema."""
    if "anyOf" in schema:
        # Pydantic puts null last: "number above 0 or null" could be misread.
        return " or ".join(
            "`null`" if each["type"] == "null" else _type(each) for each in schema["anyOf"][::-1]
        )
    if "enum" in schema or "const" in schema:
        return _choices(schema.get("enum") or [schema["const"]])
    if schema["type"] == "string":
        return _string(schema)
    if schema["type"] in ("integer", "number"):
        return " ".join([schema["type"], *_bounds(schema)])
    if schema["type"] == "array":
        items = schema["items"]
        most = f", at most {schema['maxItems']}" if "maxItems" in schema else ""
        return f"list of {'sections' if '$ref' in items else _type(items)}{most}"
    return {"object": "mapping", "boolean": "boolean"}[schema["type"]]


def _string(schema: Mapping[str, Any]) -> str:
    if "pattern" in schema:
        return f"text `{schema['pattern']}`"
    most = f", at most {schema['maxLength']} characters" if "maxLength" in schema else ""
    return {"path": "path", "password": "text, secret"}.get(schema.get("format", ""), "text") + most


def _bounds(schema: Mapping[str, Any]) -> list[str]:
    if "minimum" in schema and "maximum" in schema:
        return [f"{_number(schema['minimum'])} to {_number(schema['maximum'])}"]
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    found = [f"{word} {_number(schema[key])}" for key, word in words.items() if key in schema]
    return [", ".join(found)] if found else []


def _number(value: float) -> str:
    whole = int(value)
    if whole != value:
        return f"{value:g}"
    for power, rest in ((whole, ""), (whole + 1, " - 1")):
        if power >= 1 << 12 and power & (power - 1) == 0:
            return f"2^{power.bit_length() - 1}{rest}"
    if whole >= 10**9 and set(str(whole)[1:]) == {"0"} and str(whole)[0] == "1":
        return f"10^{len(str(whole)) - 1}"
    return f"{whole:,}"


def _choices(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _text(text: str | None) -> str:
    return " ".join((text or "").split())


def _sections_in(annotation: Any) -> list[Section]:
    if _is_section(annotation):
        return [annotation]
    return [section for part in getattr(annotation, "__args__", ()) for section in _sections_in(part)]


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _tables_of_the_tree() -> str:
    # In here, since the project is on the path only now.
    return tables(importlib.import_module("shoal.config.tree").Config)


if __name__ == "__main__":
    write_or_check(__doc__, "docs/configuration.md", "config-doc", _tables_of_the_tree)
