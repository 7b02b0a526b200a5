"""A data flow as a self-contained SVG picture, and as an HTML page with the same data as a table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from math import copysign

from derive.catalog.graph import Flow, FlowGraph, Node
from derive.cli.picture.dot import visible
from derive.cli.picture.layout import LABEL_SIZE, NAME_SIZE, NOTE_SIZE, PAD, Box, Layout, Point, Row, Wire, lay_out

_STYLE = """\
.flow { background: #ffffff; }
.flow text { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2430; }
.flow .name { font-weight: 600; }
.flow .note { fill: #5b6472; }
.flow .body { fill: #ffffff; stroke: #c3cad5; }
.flow .rule { stroke: #e3e7ed; }
.flow .bar.collection { fill: #3572c6; }
.flow .bar.derivation { fill: #1f8a5b; }
.flow .bar.capture { fill: #b7791f; }
.flow .bar.materialization { fill: #8250c4; }
.flow .wire path { fill: none; }
.flow .wire .hit { stroke: transparent; stroke-width: 12; }
.flow .wire .line { stroke: #8a94a6; stroke-width: 1.5; }
.flow .wire polygon { fill: #8a94a6; }
.flow .wire.feedback .line { stroke: #c2541b; stroke-dasharray: 5 4; }
.flow .wire.feedback polygon { fill: #c2541b; }
.flow .feedback.label { fill: #c2541b; }
.flow .wire:hover .line { stroke-width: 3; }
.flow .node:hover .body { stroke: #3572c6; }
@media (prefers-color-scheme: dark) {
.flow { background: #14171c; }
.flow text { fill: #e4e8ee; }
.flow .note { fill: #9aa4b2; }
.flow .body { fill: #1d2229; stroke: #3d4653; }
.flow .rule { stroke: #2d343e; }
.flow .bar.collection { fill: #5c9aef; }
.flow .bar.derivation { fill: #45b583; }
.flow .bar.capture { fill: #d9a441; }
.flow .bar.materialization { fill: #a983e6; }
.flow .wire .line { stroke: #75808f; }
.flow .wire polygon { fill: #75808f; }
.flow .wire.feedback .line { stroke: #f0884e; }
.flow .wire.feedback polygon, .flow .feedback.label { fill: #f0884e; }
}
"""
_RADIUS = 7.0
_LEGEND = "dashed: feedback, read one tick later"
_LEGEND_WIDTH, _LEGEND_HEIGHT = 300.0, 28.0


def text_of(text: str) -> str:
    """Return a text escaped for SVG and HTML, valid between tags and in quotes."""
    return escape(visible(text), quote=True)


def render_svg(graph: FlowGraph) -> str:
    """Return the picture as an SVG file."""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + svg_element(graph)


def svg_element(graph: FlowGraph) -> str:
    """Return the picture as an SVG element, which can be embedded in HTML."""
    layout = lay_out(graph)
    feedback = any(flow.feedback for flow in graph.flows)
    width = max(layout.width, _LEGEND_WIDTH) if feedback else layout.width
    height = layout.height + (_LEGEND_HEIGHT if feedback else 0)
    size = f'width="{_n(width)}" height="{_n(height)}" viewBox="0 0 {_n(width)} {_n(height)}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="flow" role="img" aria-label="Data flow" {size}>',
        f"<style>\n{_STYLE}</style>",
        *(_wire(wire) for wire in layout.wires),
        *(_box(box) for box in layout.boxes),
        *([_legend(layout)] if feedback else []),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(x: float, y: float, size: float, kind: str, text: str) -> str:
    return f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}">{text_of(text)}</text>'


def _box(box: Box) -> str:
    x, y = box.x + PAD, box.y + PAD + NAME_SIZE
    size = f'y="{_n(box.y)}" height="{_n(box.height)}"'
    parts = [
        f'<g class="node"><title>{text_of(_node_title(box.node))}</title>',
        f'<rect class="body" x="{_n(box.x)}" {size} width="{_n(box.width)}" rx="6"/>',
        f'<rect class="bar {box.node.kind}" x="{_n(box.x)}" {size} width="4" rx="2"/>',
        _text(x, y, NAME_SIZE, "name", box.name),
    ]
    for number, note in enumerate(box.notes, start=1):
        parts.append(_text(x, y + 3 + 15 * number, NOTE_SIZE, "note", note))
    return "".join([*parts, *(_row(box, row) for row in box.rows), "</g>"])


def _row(box: Box, row: Row) -> str:
    x, y = box.x + PAD, row.port + LABEL_SIZE / 3
    kind = "feedback label" if row.flow.feedback else "label"
    rule = f'<line class="rule" x1="{_n(x)}" x2="{_n(box.x + box.width - PAD)}" y1="{_n(row.y)}" y2="{_n(row.y)}"/>'
    notes = [_text(x, y + 15 * number, NOTE_SIZE, "note", note) for number, note in enumerate(row.notes, start=1)]
    title = f"<title>{text_of(flow_title(row.flow))}</title>"
    return "".join(["<g>", title, rule, _text(x, y, LABEL_SIZE, kind, row.label), *notes, "</g>"])


def _wire(wire: Wire) -> str:
    path = _rounded(wire.points) if wire.back else _curved(wire.points)
    x, y = wire.points[-1]
    head = f"{_n(x - 8)},{_n(y - 4)} {_n(x)},{_n(y)} {_n(x - 8)},{_n(y + 4)}"
    kind = "wire feedback" if wire.flow.feedback else "wire"
    return (
        f'<g class="{kind}"><title>{text_of(flow_title(wire.flow))}</title><path class="hit" d="{path}"/>'
        f'<path class="line" d="{path}"/><polygon points="{head}"/></g>'
    )


def _curved(points: Sequence[Point]) -> str:
    """Return a path of curves between columns, and of straight pieces across them."""
    path = f"M{_n(points[0][0])} {_n(points[0][1])}"
    for number, ((x, y), (to_x, to_y)) in enumerate(pairwise(points)):
        middle = (x + to_x) / 2
        curve = f"C{_n(middle)} {_n(y)} {_n(middle)} {_n(to_y)} {_n(to_x)} {_n(to_y)}"
        path += f"H{_n(to_x)}" if number % 2 else curve
    return path


def _rounded(points: Sequence[Point]) -> str:
    """Return a path of lines along the axes, with round corners."""
    path = f"M{_n(points[0][0])} {_n(points[0][1])}"
    for before, corner, after in zip(points[:-2], points[1:-1], points[2:], strict=True):
        into, out = _towards(corner, before), _towards(corner, after)
        path += f"L{_n(into[0])} {_n(into[1])}Q{_n(corner[0])} {_n(corner[1])} {_n(out[0])} {_n(out[1])}"
    return path + f"L{_n(points[-1][0])} {_n(points[-1][1])}"


def _towards(corner: Point, end: Point) -> Point:
    across, down = end[0] - corner[0], end[1] - corner[1]
    far = min(_RADIUS, max(abs(across), abs(down)) / 2)
    return corner[0] + (copysign(far, across) if across else 0), corner[1] + (copysign(far, down) if down else 0)


def _legend(layout: Layout) -> str:
    y = layout.height + 4
    line = f'<path class="line" d="M24 {_n(y)}H52"/>'
    return f'<g class="wire feedback">{line}{_text(60, y + 4, NOTE_SIZE, "note", _LEGEND)}</g>'


def _node_title(node: Node) -> str:
    return f"{node.name} ({node.kind}): {', '.join(node.notes)}"


def flow_title(flow: Flow) -> str:
    """Return the description of a flow in one line, used as a tooltip."""
    mark = " (feedback)" if flow.feedback else ""
    return f"{flow.label}: {flow.source} → {flow.target}{mark}; {', '.join(flow.notes)}"


_PAGE_STYLE = """\
:root { color-scheme: light dark; }
body { margin: 2rem; font-family: system-ui, sans-serif; color: #1f2430; background: #ffffff; }
h1 { font-size: 1.2rem; overflow-wrap: anywhere; }
.picture { overflow-x: auto; }
table { border-collapse: collapse; margin-top: 2rem; font-size: 0.85rem; }
th, td { text-align: left; padding: 0.35rem 1rem 0.35rem 0; border-bottom: 1px solid #c3cad5; vertical-align: top; }
td { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) {
body { color: #e4e8ee; background: #14171c; }
th, td { border-color: #3d4653; }
}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_html(graph: FlowGraph, title: str) -> str:
    """Return the page, with the heading `title`."""
    heading = text_of(f"Data flow of {title}")
    rows = "".join(_table_row(flow) for flow in graph.flows)
    head = "<tr><th>Derived</th><th>Transform</th><th>Source</th><th>How it reads</th></tr>"
    table = f"<table>\n<thead>{head}</thead>\n<tbody>\n{rows}</tbody>\n</table>\n" if graph.flows else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{heading}</title>\n<style>\n{_PAGE_STYLE}</style>\n</head>\n<body>\n<h1>{heading}</h1>\n"
        f'<div class="picture">\n{svg_element(graph)}</div>\n{table}</body>\n</html>\n'
    )


def _table_row(flow: Flow) -> str:
    notes = [*flow.notes, *(["feedback"] if flow.feedback else [])]
    cells = (flow.target, flow.label, flow.source, "; ".join(notes))
    return "<tr>" + "".join(f"<td>{text_of(cell)}</td>" for cell in cells) + "</tr>\n"
