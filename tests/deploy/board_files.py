"""The committed dashboards as data: every query of every panel, with its variables filled in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.tools import ROOT

BOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))


@dataclass(frozen=True)
class Query:
    """One query of a panel, as it is in the file."""

    board: str
    panel: str
    expression: str

    def __str__(self) -> str:
        return f"{self.board} / {self.panel}: {self.expression}"

    def filled_in(self, run: str = ".*", policy: str = ".*", window: str = "15s") -> str:
        filled = self.expression.replace("$__rate_interval", window)
        return filled.replace("$run", run).replace("$policy", policy)


def boards() -> dict[str, dict[str, Any]]:
    return {path.name: json.loads(path.read_text()) for path in BOARDS}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All but the rows' headings; those of folded rows too."""
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def queries() -> list[Query]:
    return [
        Query(name, panel["title"], target["expr"])
        for name, board in boards().items()
        for panel in panels(board)
        for target in panel["targets"]
    ]
