"""Line charts and stacked bars as inline SVG. Pure functions: numbers in, text out.

Colours, fonts and dark mode come from the page's style sheet by class (`series-0` ...); nothing here needs
JavaScript or the network. Hovering shows values by the SVG's own <title>.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 240
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 14, 42
# More points than pixels say nothing more.
MAX_POINTS = 500
BAR_WIDTH, BAR_HEIGHT = 1000, 28
# Of the style sheet; further lines begin anew.
NUM_COLOURS = 7
NO_DATA = '<p class="empty">No data was recorded.</p>'

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One curve; `points` in order of drawing."""

    label: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Axis:
    """What an axis shows. `from_zero`: it starts at 0 however far away the values are."""

    label: str
    from_zero: bool = False


@dataclass(frozen=True)
class Segment:
    """A part of a stacked bar; time spent waiting is drawn in grey, work in colour."""

    label: str
    seconds: float
    is_waiting: bool = False


@dataclass(frozen=True)
class _Frame:
    """The plot area: where a point goes."""

    x_low: float
    x_high: float
    y_ticks: Sequence[float]

    def x(self, value: float) -> float:
        share = (value - self.x_low) / (self.x_high - self.x_low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.y_ticks[0]) / (self.y_ticks[-1] - self.y_ticks[0])
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def line_chart(lines: Sequence[Line], x: Axis, y: Axis, *, target: float | None = None) -> str:
    """A chart of all `lines` that have points; `target` is a dashed level that the run should reach."""
    drawn = [Line(line.label, _finite(line.points)) for line in lines]
    drawn = [line for line in drawn if line.points]
    if not drawn:
        return NO_DATA
    if target is not None and not math.isfinite(target):
        target = None
    across = [point[0] for line in drawn for point in line.points]
    up = [point[1] for line in drawn for point in line.points]
    up += [target] if target is not None else []
    x_low = 0.0 if x.from_zero else min(across)
    x_high = max(across) if max(across) > x_low else x_low + 1.0
    frame = _Frame(x_low, x_high, ticks(min(up), max(up), from_zero=y.from_zero))
    parts = [_grid(frame), _axis_labels(x.label, y.label)]
    if target is not None:
        parts.append(_target(frame, target))
    parts += [_curve(number % NUM_COLOURS, line, frame) for number, line in enumerate(drawn)]
    legend = _legend([line.label for line in drawn]) if len(drawn) > 1 else ""
    label = escape(f"{y.label} over {x.label}", quote=True)
    return (
        f'<svg class="chart" role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f"{''.join(parts)}</svg>{legend}"
    )


def stacked_bar(segments: Sequence[Segment]) -> str:
    """One bar whose segments share its whole width, with a legend of their shares and seconds."""
    total = sum(segment.seconds for segment in segments)
    if total <= 0:
        return NO_DATA
    shapes, keys, left, numbers = [], [], 0.0, {True: 0, False: 0}
    for segment in segments:
        name = escape(segment.label)
        colour = f"{'waiting' if segment.is_waiting else 'series'}-{numbers[segment.is_waiting]}"
        numbers[segment.is_waiting] += 1
        width = BAR_WIDTH * segment.seconds / total
        share, spent = f"{100 * segment.seconds / total:.1f} %", duration(segment.seconds)
        shapes.append(
            f'<rect class="fill {colour}" x="{left:.1f}" width="{width:.1f}" height="{BAR_HEIGHT}">'
            f"<title>{name}: {share}, {spent}</title></rect>"
        )
        if width > 8 * len(name) + 16:
            shapes.append(f'<text class="inside" x="{left + 8:.1f}" y="{BAR_HEIGHT - 10}">{name}</text>')
        keys.append(f'<li><i class="key {colour}"></i>{name} <b>{share}</b> <span>{spent}</span></li>')
        left += width
    return (
        f'<svg class="bar" role="img" viewBox="0 0 {BAR_WIDTH} {BAR_HEIGHT}">{"".join(shapes)}</svg>'
        f'<ul class="legend">{"".join(keys)}</ul>'
    )


def ticks(low: float, high: float, *, from_zero: bool = False, count: int = 6) -> list[float]:
    """About `count` round numbers that span [low, high]; at least two."""
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high <= low:
        room = abs(low) * 0.1 or 1.0
        low, high = (low, low + room) if from_zero else (low - room, high + room)
    rough = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(s for s in (magnitude * f for f in (1, 2, 2.5, 5, 10)) if s >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def short(value: float) -> str:
    """At most four digits and a unit prefix: 1.25M, 300k, 0.02."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.4g}{suffix}"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Seconds as people say them: 12.3 s, 4 min 05 s, 2 h 07 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _finite(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]


def _grid(frame: _Frame) -> str:
    parts = []
    for value in frame.y_ticks:
        y = frame.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 8}" y="{y + 4:.1f}">{short(value)}</text>')
    # The x axis ends where the data does: only the round numbers inside are marked.
    for value in ticks(frame.x_low, frame.x_high):
        if not frame.x_low <= value <= frame.x_high:
            continue
        x = frame.x(value)
        parts.append(f'<text class="tick middle" x="{x:.1f}" y="{HEIGHT - 24}">{short(value)}</text>')
    return "".join(parts)


def _axis_labels(x: str, y: str) -> str:
    centre_x, centre_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    return (
        f'<text class="axis middle" x="{centre_x}" y="{HEIGHT - 6}">{escape(x)}</text>'
        f'<text class="axis middle" transform="translate(14 {centre_y}) rotate(-90)">{escape(y)}</text>'
    )


def _target(frame: _Frame, level: float) -> str:
    y = frame.y(level)
    return (
        f'<line class="target" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{LEFT + 6}" y="{y - 5:.1f}">target {short(level)}</text>'
    )


def _curve(number: int, line: Line, frame: _Frame) -> str:
    stride = math.ceil(len(line.points) / MAX_POINTS)
    # The last point is where the run got to: it is never thinned away.
    points = [*line.points[:-1:stride], line.points[-1]]
    placed = [(frame.x(x), frame.y(y)) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    end_x, end_y = placed[-1]
    label = escape(line.label)
    tip = f"{label}: {short(points[-1][1])} at {short(points[-1][0])}"
    return (
        f'<polyline class="curve series-{number}" points="{path}"><title>{label}</title></polyline>'
        f'<circle class="fill series-{number}" cx="{end_x:.1f}" cy="{end_y:.1f}" r="3.5">'
        f"<title>{tip}</title></circle>"
    )


def _legend(labels: Sequence[str]) -> str:
    keys = "".join(
        f'<li><i class="key series-{number % NUM_COLOURS}"></i>{escape(label)}</li>'
        for number, label in enumerate(labels)
    )
    return f'<ul class="legend">{keys}</ul>'
