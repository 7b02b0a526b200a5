"""A data flow as an HTML page: the picture, and the same data as a table that can be searched and copied."""

from __future__ import annotations

from derive.catalog.graph import Flow, FlowGraph
from derive.cli.picture.svg import svg_element, text_of

_STYLE = """\
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
    rows = "".join(_row(flow) for flow in graph.flows)
    head = "<tr><th>Derived</th><th>Transform</th><th>Source</th><th>How it reads</th></tr>"
    table = f"<table>\n<thead>{head}</thead>\n<tbody>\n{rows}</tbody>\n</table>\n" if graph.flows else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{heading}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n<h1>{heading}</h1>\n"
        f'<div class="picture">\n{svg_element(graph)}</div>\n{table}</body>\n</html>\n'
    )


def _row(flow: Flow) -> str:
    notes = [*flow.notes, *(["feedback"] if flow.feedback else [])]
    cells = (flow.target, flow.label, flow.source, "; ".join(notes))
    return "<tr>" + "".join(f"<td>{text_of(cell)}</td>" for cell in cells) + "</tr>\n"
