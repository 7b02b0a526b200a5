"""A data flow as text for a terminal of 80 columns."""

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
    blocks = [_node_lines(node, incoming.get(node.name, [])) for node in graph.nodes]
    lone = [lines[0] for lines in blocks if len(lines) == 1]
    flowing = ["\n".join(lines) for lines in blocks if len(lines) > 1]
    return "\n\n".join(["\n".join(lone), *flowing] if lone else flowing) + "\n" if blocks else ""


def _node_lines(node: Node, flows: list[Flow]) -> list[str]:
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
