"""The page that `report.html` is: its skeleton and style sheet. One file, no JavaScript, no network.

Used by `shoal.cli.report`, which fills the sections.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #fff; --ink: #1b2430; --soft: #5d6b7c; --rule: #e3e7ec;
  --c0: #2563c9; --c1: #d9730d; --c2: #12876a; --c3: #b5397f; --c4: #6d4fc4; --c5: #8a6d00; --c6: #445;
  --w0: #8793a2; --w1: #a9b3bf; --w2: #c5ccd5; --good: #12876a; --bad: #c2352b; --warn: #b26a00; }
@media (prefers-color-scheme: dark) { :root {
  --page: #11161d; --card: #19202a; --ink: #e5eaf0; --soft: #97a5b5; --rule: #2b3542;
  --c0: #6aa5ff; --c1: #ffa14a; --c2: #48c9a3; --c3: #f084bd; --c4: #a993f5; --c5: #d9b938; --c6: #dde;
  --w0: #97a3b2; --w1: #7d8998; --w2: #677382; --good: #48c9a3; --bad: #ff7b70; --warn: #ffb454; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0 12px 0 0; display: inline-block; }
h2 { font-size: 17px; margin: 0 0 4px; }
h3 { font-size: 14px; margin: 16px 0 6px; } h3 .soft { font-weight: normal; }
p { margin: 2px 0; } .soft, .empty { color: var(--soft); } .empty { padding: 24px 0; }
.badge { display: inline-block; padding: 1px 10px; border-radius: 99px; border: 1px solid; font-size: 13px;
  vertical-align: 4px; }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 20px 0; }
.tile, section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.tile { padding: 12px 16px; } .tile b { display: block; font-size: 22px; font-weight: 600; line-height: 1.3; }
.tile span { color: var(--soft); font-size: 13px; }
section { padding: 18px 20px; margin: 0 0 16px; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(400px, 1fr)); gap: 8px 24px; }
svg { display: block; width: 100%; height: auto; } svg.bar { border-radius: 6px; }
.grid { stroke: var(--rule); } .target { stroke: var(--soft); stroke-dasharray: 5 4; }
.tick, .axis { fill: var(--soft); font-size: 12.5px; font-variant-numeric: tabular-nums; }
.middle { text-anchor: middle; } .end { text-anchor: end; }
.curve { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.inside { fill: var(--card); font-size: 12px; font-weight: 600; }
.series-0 { --c: var(--c0); } .series-1 { --c: var(--c1); } .series-2 { --c: var(--c2); }
.series-3 { --c: var(--c3); } .series-4 { --c: var(--c4); } .series-5 { --c: var(--c5); }
.series-6, .series-7, .series-8 { --c: var(--c6); }
.waiting-0 { --c: var(--w0); } .waiting-1 { --c: var(--w1); } .waiting-2, .waiting-3 { --c: var(--w2); }
.curve { stroke: var(--c); } .fill { fill: var(--c); } .key { background: var(--c); }
.legend { list-style: none; margin: 6px 0 4px; padding: 0; display: flex; flex-wrap: wrap; gap: 2px 18px;
  font-size: 13px; }
.legend b { font-weight: 600; } .legend span { color: var(--soft); }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
td, th { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; }
td:first-child { white-space: nowrap; color: var(--soft); font-variant-numeric: tabular-nums; }
pre { margin: 8px 0 0; overflow-x: auto; font: 12.5px/1.5 ui-monospace, monospace; }
summary { cursor: pointer; font-weight: 600; }
"""
# Nothing may be fetched, whatever a run's names and messages contain.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, body: Sequence[str]) -> str:
    """A whole HTML document."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def section(title: str, note: str, *content: str) -> str:
    """A card with a heading and a line that says what it shows."""
    return f'<section><h2>{escape(title)}</h2><p class="soft">{escape(note)}</p>{"".join(content)}</section>'


def pair(*content: str) -> str:
    """Side by side where there is room."""
    return f'<div class="pair">{"".join(f"<div>{one}</div>" for one in content)}</div>'


def tiles(figures: Sequence[tuple[str, str]]) -> str:
    """(label, figure) as a row of large numbers."""
    cells = "".join(
        f'<div class="tile"><b>{escape(figure)}</b><span>{escape(name)}</span></div>'
        for name, figure in figures
    )
    return f'<div class="tiles">{cells}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def details(summary: str, text: str) -> str:
    """Text that unfolds on a click."""
    inner = f"<summary>{escape(summary)}</summary><pre>{escape(text)}</pre>"
    return f"<section><details>{inner}</details></section>"
