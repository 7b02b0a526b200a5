"""A data flow in the languages of two drawing programs: Graphviz and Mermaid."""

from __future__ import annotations

from derive.catalog.graph import Flow, FlowGraph, Node
from derive.cli.picture.plain import visible

_DOT_SHAPES = {"collection": "box", "derivation": "component", "capture": "cds", "materialization": "cylinder"}
_MERMAID_SHAPES = {
    "collection": ("[", "]"),
    "derivation": ("[[", "]]"),
    "capture": ("([", "])"),
    "materialization": ("[(", ")]"),
}
_HARMLESS = frozenset(" /._-,:()=")


def render_dot(graph: FlowGraph) -> str:
    """Return the graph for Graphviz's `dot`."""
    numbers = _numbers(graph)
    lines = ["digraph catalog {", "  rankdir=LR;", '  node [fontname="monospace"];', '  edge [fontname="monospace"];']
    lines += [
        f"  n{numbers[node.name]} [shape={_DOT_SHAPES[node.kind]}, label={_dot(_node_lines(node))}];"
        for node in graph.nodes
    ]
    for flow in graph.flows:
        style = ", style=dashed, constraint=false" if flow.feedback else ""
        ends = f"n{numbers[flow.source]} -> n{numbers[flow.target]}"
        lines.append(f"  {ends} [label={_dot(_flow_lines(flow))}{style}];")
    return "\n".join([*lines, "}"]) + "\n"


def render_mermaid(graph: FlowGraph) -> str:
    """Return the graph for Mermaid, which GitHub and many editors draw inside Markdown."""
    numbers = _numbers(graph)
    lines = ["flowchart LR"]
    for node in graph.nodes:
        opening, closing = _MERMAID_SHAPES[node.kind]
        lines.append(f"  n{numbers[node.name]}{opening}{_mermaid(_node_lines(node))}{closing}")
    for flow in graph.flows:
        arrow = "-.->" if flow.feedback else "-->"
        label = _mermaid(_flow_lines(flow))
        lines.append(f"  n{numbers[flow.source]} {arrow}|{label}| n{numbers[flow.target]}")
    return "\n".join(lines) + "\n"


def _numbers(graph: FlowGraph) -> dict[str, int]:
    return {node.name: number for number, node in enumerate(graph.nodes)}


def _node_lines(node: Node) -> list[str]:
    return [node.name, *node.notes]


def _flow_lines(flow: Flow) -> list[str]:
    return [flow.label, *flow.notes, *(["feedback"] if flow.feedback else [])]


def _dot(lines: list[str]) -> str:
    # Graphviz interprets both backslash escapes and HTML entities in a quoted label.
    escaped = [visible(line).replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in lines]
    return '"' + "\\n".join(escaped) + '"'


def _mermaid(lines: list[str]) -> str:
    # Mermaid interprets HTML, Markdown and its own entities in a quoted label; a code point can stand for any
    # character.
    escaped = ["".join(_mermaid_character(character) for character in visible(line)) for line in lines]
    return '"' + "<br>".join(escaped) + '"'


def _mermaid_character(character: str) -> str:
    return character if character.isalnum() or character in _HARMLESS else f"#{ord(character)};"
