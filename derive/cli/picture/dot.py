"""A data flow as text: for a terminal, and in the languages of Graphviz and Mermaid."""

from __future__ import annotations

from textwrap import wrap

from derive.catalog.graph import Flow, FlowGraph, Node

_WIDTH = 80


def visible(text: str) -> str:
    """Return a text with non-printable characters as escapes, including terminal and bidirectional controls."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def render_text(graph: FlowGraph) -> str:
    """Return each node with its sources beneath; lines have at most 80 columns unless a single word is longer."""
    incoming: dict[str, list[Flow]] = {}
    for flow in graph.flows:
        incoming.setdefault(flow.target, []).append(flow)
    blocks = [_plain_node_lines(node, incoming.get(node.name, [])) for node in graph.nodes]
    lone = [lines[0] for lines in blocks if len(lines) == 1]
    flowing = ["\n".join(lines) for lines in blocks if len(lines) > 1]
    return "\n\n".join(["\n".join(lone), *flowing] if lone else flowing) + "\n" if blocks else ""


def _plain_node_lines(node: Node, flows: list[Flow]) -> list[str]:
    lines = _wrapped(f"{visible(node.name)}  ({node.kind})", "", node.notes)
    for flow in flows:
        mark = " (feedback: one tick later)" if flow.feedback else ""
        lines += _wrapped(f"  <- {visible(flow.source)}{mark}", "       ", ())
        lines += _wrapped(f"     {visible(flow.label)}:", "       ", flow.notes)
    return lines


def _wrapped(head: str, indent: str, notes: tuple[str, ...]) -> list[str]:
    text = " ".join([head.strip(), "; ".join(visible(note) for note in notes)]).strip()
    begin = head[: len(head) - len(head.lstrip())]
    return wrap(
        text,
        _WIDTH,
        initial_indent=begin,
        subsequent_indent=indent or "    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


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
