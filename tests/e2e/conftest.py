"""The order of whole runs."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that may take longest first: at the end no processor waits for a long run on another one."""
    items.sort(key=_timeout, reverse=True)


def _timeout(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else 0.0
