"""Axes and numbers of the report's charts."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cli.charts import (
    NUM_COLOURS,
    Axis,
    Line,
    Segment,
    duration,
    line_chart,
    short,
    stacked_bar,
    ticks,
)
from shoal.cli.page import STYLE

numbers = st.floats(-1e12, 1e12, allow_subnormal=False)


@given(numbers, numbers, st.booleans())
def test_ticks_span_the_values_and_are_few(a: float, b: float, from_zero: bool) -> None:
    low, high = min(a, b), max(a, b)
    if 0 < high - low < 1e-6 * max(abs(low), abs(high)):
        return  # closer than the digits of a label
    found = ticks(low, high, from_zero=from_zero)
    room = 1e-6 * max(abs(low), abs(high), found[-1] - found[0])
    assert found[0] <= low + room
    assert found[-1] >= high - room
    assert 2 <= len(found) <= 10
    assert found == sorted(set(found))
    assert not from_zero or found[0] <= 0 <= found[-1]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 500, [0, 100, 200, 300, 400, 500]),
        (0, 0, [-1, -0.5, 0, 0.5, 1]),
        (9, 21, [8, 10, 12, 14, 16, 18, 20, 22]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.02, "0.02"), (475, "475"), (1500, "1.5k"), (2_500_000, "2.5M"), (-3e9, "-3G")],
)
def test_short_numbers(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (12.34, "12.3 s"), (245, "4 min 05 s"), (7630, "2 h 07 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_points_stay_inside_the_chart_and_the_last_is_drawn() -> None:
    points = [(float(i), math.sin(i / 50)) for i in range(5000)]
    svg = line_chart([Line("wave", points)], Axis("x", from_zero=True), Axis("y"))
    drawn = svg.split('points="')[1].split('"')[0].split()
    assert 100 < len(drawn) <= 501
    pairs = [tuple(map(float, point.split(","))) for point in drawn]
    assert all(0 <= x <= 520 and 0 <= y <= 240 for x, y in pairs)
    assert pairs[-1][0] == 504.0


def test_values_that_are_not_finite_are_left_out() -> None:
    points = [(0.0, 1.0), (1.0, math.nan), (2.0, math.inf), (3.0, 2.0)]
    svg = line_chart([Line("a", points)], Axis("x"), Axis("y"))
    assert len(svg.split('points="')[1].split('"')[0].split()) == 2
    assert "nan" not in svg
    assert "inf" not in svg


def test_a_single_point_and_no_point() -> None:
    assert "<circle" in line_chart([Line("a", [(0.0, 0.0)])], Axis("x", from_zero=True), Axis("y"))
    assert "No data" in line_chart([Line("a", [])], Axis("x"), Axis("y"))


def test_bar_segments_fill_the_bar() -> None:
    svg = stacked_bar([Segment("train", 3.0), Segment("wait", 1.0, is_waiting=True)])
    widths = [float(part.split('"')[0]) for part in svg.split('width="')[1:]]
    assert widths == [750.0, 250.0]
    assert "75.0 %" in svg
    assert "waiting-0" in svg
    assert "No data" in stacked_bar([Segment("train", 0.0)])


@pytest.mark.parametrize("target", [math.inf, -math.inf, math.nan])
def test_a_target_that_cannot_be_drawn_is_left_out(target: float) -> None:
    lines, x, y = [Line("a", [(0.0, 1.0), (1.0, 2.0)])], Axis("x"), Axis("y")
    assert line_chart(lines, x, y, target=target) == line_chart(lines, x, y)


def test_more_lines_than_colours_begin_anew_with_the_first() -> None:
    lines = [Line(f"policy {n}", [(0.0, n), (1.0, n)]) for n in range(NUM_COLOURS + 2)]
    chart = line_chart(lines, Axis("x"), Axis("y"))
    used = re.findall(r'<polyline class="curve series-(\d+)"', chart)
    assert used == [*(str(n) for n in range(NUM_COLOURS)), "0", "1"]
    assert all(re.search(rf"\.series-{n}[ ,]", STYLE) for n in used)
