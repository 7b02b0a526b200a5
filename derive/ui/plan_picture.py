"""The picture of a plan: a box for each operator, with an arrow from each of its inputs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from derive.catalog.graph import Flow, FlowGraph, Kind, Node
from derive.cli.graph_picture import Mark, svg_element
from derive.ui.rendering import path_of

_READ = "read "


def plan_graph(lines: Sequence[str]) -> FlowGraph:
    """Return the operators of a plan as a graph, inputs before their readers; a relation that is read is one node.

    >>> graph = plan_graph(["tier 1: join", "  read a", "  tier 2: distinct rows", "    read a"])
    >>> [node.name for node in graph.nodes]
    ['a', '3 · tier 2: distinct rows', '1 · tier 1: join']
    >>> [(flow.source[:1], flow.target[:1]) for flow in graph.flows]
    [('a', '3'), ('a', '1'), ('3', '1')]

    Args:
        lines: lines of EXPLAIN: each operator before its inputs, which are indented by two more spaces.
    """
    nodes: dict[str, Node] = {}
    inputs: dict[str, list[Flow]] = {}
    above: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=1):
        text = line.lstrip(" ")
        depth = len(line) - len(text)
        kind: Kind = "collection" if text.startswith(_READ) else "derivation"
        name = text.removeprefix(_READ) if kind == "collection" else f"{number} · {text}"
        while above and above[-1][0] >= depth:
            above.pop()
        nodes.setdefault(name, Node(name, kind))
        if above:
            reader = above[-1][1]
            flows = inputs.setdefault(reader, [])
            flows.append(Flow(name, reader, f"input {len(flows) + 1}"))
        if kind == "derivation":
            above.append((depth, name))
    operators = [node for node in reversed(nodes.values()) if node.kind == "derivation"]
    ordered = (*(node for node in nodes.values() if node.kind == "collection"), *operators)
    return FlowGraph(ordered, tuple(flow for node in ordered for flow in inputs.get(node.name, ())))


def plan_picture(lines: Sequence[str], collections: Collection[str]) -> str:
    """Return the picture of a plan as an SVG element.

    Args:
        lines: lines of EXPLAIN.
        collections: names of the collections that have a page.
    """
    graph = plan_graph(lines)
    marks = {
        node.name: Mark(f"/collections/{path_of(node.name)}" if node.name in collections else "", "operator")
        for node in graph.nodes
    }
    return svg_element(graph, marks, label="Plan of the query")
