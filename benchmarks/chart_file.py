"""A chart of the report as an SVG file of its own: with its style, and its legend inside the picture."""

from __future__ import annotations

from collections.abc import Sequence

COLOURS = ("#2a6fdb", "#d9730d", "#2e9d5b", "#b8336a", "#6a4fc9", "#8a6d3b", "#5a6b7b")
STYLE = (
    "text { font: 12.5px system-ui, sans-serif; fill: #667; } .grid { stroke: #dde; }"
    " .target { stroke: #889; stroke-dasharray: 5 4; }"
    " .middle { text-anchor: middle; } .end { text-anchor: end; }"
    " .curve { fill: none; stroke-width: 2; stroke-linejoin: round; }"
    + "".join(
        f" .curve.series-{n} {{ stroke: {c}; }} .fill.series-{n} {{ fill: {c}; }}"
        for n, c in enumerate(COLOURS)
    )
)


def standalone(chart: str, labels: Sequence[str]) -> str:
    """`chart` is what `shoal.cli.charts.line_chart` made of lines with these labels."""
    svg, _, _ = chart.partition("</svg>")
    keys = ""
    for n, label in enumerate(labels):
        colour = COLOURS[n % len(COLOURS)]
        keys += f'<text x="500" y="{150 + 16 * n}" class="end" style="fill: {colour}">{label}</text>'
    opening = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" width="780" ', 1)
    head, bracket, rest = opening.partition(">")
    paper = f'<style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>'
    return f"{head}{bracket}{paper}{rest}{keys}</svg>\n"
