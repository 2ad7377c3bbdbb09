"""Panels and dashboards in the house's form, made with Grafana's own builders.

A panel is a title, one line that says what to do when it looks bad, and queries with their legends. The
builders are made from Grafana's schema: what they write is JSON that Grafana knows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.models.common import (
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "shoal"
LAST = common.ReduceDataOptions().calcs(["lastNotNull"])
LEGEND = (
    common.VizLegendOptions()
    .display_mode(LegendDisplayMode.LIST)
    .placement(LegendPlacement.BOTTOM)
    .show_legend(True)
)
ALL = VariableOption(selected=True, text="All", value="$__all")


@dataclass(frozen=True)
class Panel:
    """`kind`: `lines`, `stacked`, `number`, `words` (the legend is what counts) or `ranking`."""

    title: str
    description: str
    queries: Sequence[tuple[str, str]]
    kind: str = "lines"
    unit: str = "short"
    width: int = 8
    height: int = 8
    largest: float | None = None

    def build(self, number: int) -> Any:
        panel = getattr(self, f"_{self.kind}")()
        panel.id(number).title(self.title).description(self.description).datasource(SOURCE)
        panel.span(self.width).height(self.height).unit(self.unit)
        if self.largest is not None:
            panel.min(0).max(self.largest)
        for index, (expression, legend) in enumerate(self.queries):
            query = prometheus.Dataquery().expr(expression).legend_format(legend).datasource(SOURCE)
            query.ref_id(chr(ord("A") + index))
            panel.with_target(query.instant() if self._is_instant else query.range())
        return panel

    @property
    def _is_instant(self) -> bool:
        return self.kind in ("number", "words", "ranking")

    def _lines(self) -> Any:
        tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
        return timeseries.Panel().line_width(1).fill_opacity(5).legend(LEGEND).tooltip(tooltip)

    def _stacked(self) -> Any:
        stacking = common.StackingConfig().mode(StackingMode.NORMAL)
        return self._lines().fill_opacity(60).stacking(stacking)

    def _number(self) -> Any:
        return stat.Panel().reduce_options(LAST)

    def _words(self) -> Any:
        return self._number().text_mode(BigValueTextMode.NAME)

    def _ranking(self) -> Any:
        return bargauge.Panel().reduce_options(LAST)


@dataclass(frozen=True)
class Board:
    """One dashboard: rows of panels by title."""

    uid: str
    title: str
    description: str
    rows: dict[str, Sequence[Panel]] = field(default_factory=dict)
    has_policies: bool = False

    def build(self) -> Dashboard:
        board = (
            dashboard.Dashboard(f"shoal: {self.title}")
            .uid(self.uid)
            .description(self.description)
            .tags([TAG])
            .time("now-30m", "now")
            .refresh("10s")
            .timezone("browser")
            .editable()
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .link(
                dashboard.DashboardLink("shoal")
                .type(DashboardLinkType.DASHBOARDS)
                .tags([TAG])
                .include_vars(True)
                .keep_time(True)
            )
        )
        board.with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        board.with_variable(_choice("run", "label_values(up, run)"))
        if self.has_policies:
            board.with_variable(
                _choice("policy", 'label_values(shoal_learner_steps_total{run=~"$run"}, policy)')
            )
        numbers = itertools.count(1)
        for title, panels in self.rows.items():
            board.with_row(dashboard.Row(title).id(next(numbers)))
            for panel in panels:
                board.with_panel(panel.build(next(numbers)))
        return board.build()


def _choice(name: str, query: str) -> Any:
    """Any number of values of a label; all of them, and series without the label, unless one is picked."""
    return (
        dashboard.QueryVariable(name)
        .label(name)
        .query(query)
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(ALL)
    )
