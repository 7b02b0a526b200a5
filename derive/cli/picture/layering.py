"""Layering: assign each node of a picture to a column, and order the items within each column.

This is the layered method. A node stands to the right of all its sources (longest path). A flow that passes a column
gets a stop in the column. Each column is ordered by the mean position of linked items, so that few flows cross.

Source: Sugiyama, Tagawa, Toda, "Methods for visual understanding of hierarchical system structures" (1981).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TypeAlias

from derive.catalog.graph import Flow, FlowGraph

Item: TypeAlias = str | tuple[int, int]
"""An item of a column: a node's name, or the stop of a flow as (index of the flow, column)."""

_SWEEPS = 8
_LONE_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class Link:
    """A piece of a flow from one column to the next.

    Attributes:
        left: item where the piece begins.
        right: item where the piece ends.
        entry: height of the entry into `right`, from 0 (top) to 1.
    """

    left: Item
    right: Item
    entry: float = 0.5


def components(graph: FlowGraph) -> list[FlowGraph]:
    """Return the connected components of a graph, by their first node; the nodes without flows form the last component.

    A picture draws each component below the one before.
    """
    part = {node.name: number for number, node in enumerate(graph.nodes)}
    members = {number: [name] for name, number in part.items()}
    for flow in graph.flows:
        kept, merged = sorted((part[flow.source], part[flow.target]))
        if kept != merged:
            for name in members[merged]:
                part[name] = kept
            members[kept] += members.pop(merged)
    flowing = {name for flow in graph.flows for name in (flow.source, flow.target)}
    numbers = sorted({part[name] for name in flowing})
    parts = [_within(graph, set(members[number])) for number in numbers]
    lone = {node.name for node in graph.nodes} - flowing
    return [*parts, _within(graph, lone)] if lone else parts


def _within(graph: FlowGraph, names: set[str]) -> FlowGraph:
    nodes = tuple(node for node in graph.nodes if node.name in names)
    return FlowGraph(nodes, tuple(flow for flow in graph.flows if flow.target in names))


def columns(graph: FlowGraph) -> dict[str, int]:
    """Return the column of each node, from 0 on the left.

    Every flow from an earlier node of `graph.nodes` to a later one leads to the right; any other flow is a back flow. A
    node without sources stands directly before its first reader.
    """
    if not graph.flows:
        return {node.name: number % _LONE_COLUMNS for number, node in enumerate(graph.nodes)}
    rank = {node.name: number for number, node in enumerate(graph.nodes)}
    column = dict.fromkeys(rank, 0)
    forward = [flow for flow in graph.flows if rank[flow.source] < rank[flow.target]]
    for flow in sorted(forward, key=lambda flow: rank[flow.target]):
        column[flow.target] = max(column[flow.target], column[flow.source] + 1)
    reading = {flow.target for flow in forward}
    for name in rank:
        readers = [column[flow.target] for flow in forward if flow.source == name]
        if name not in reading and readers:
            column[name] = min(readers) - 1
    return column


def is_back(flow: Flow, column: Mapping[str, int]) -> bool:
    """Return whether a flow does not lead to the right."""
    return column[flow.source] >= column[flow.target]


def links_of(graph: FlowGraph, column: Mapping[str, int]) -> list[Link]:
    """Return the pieces of all flows that lead to the right, through their stops."""
    rows: dict[str, int] = {}
    total: dict[str, int] = {}
    for flow in graph.flows:
        total[flow.target] = total.get(flow.target, 0) + 1
    links = []
    for index, flow in enumerate(graph.flows):
        row = rows[flow.target] = rows.get(flow.target, 0) + 1
        if is_back(flow, column):
            continue
        between = range(column[flow.source] + 1, column[flow.target])
        stops: list[Item] = [flow.source, *((index, number) for number in between), flow.target]
        links += [Link(left, right) for left, right in pairwise(stops[:-1])]
        links.append(Link(stops[-2], flow.target, row / (total[flow.target] + 1)))
    return links


def arrange(graph: FlowGraph, column: Mapping[str, int], links: Sequence[Link]) -> list[list[Item]]:
    """Return the items of each column from top to bottom: the order with the fewest crossings among those tried."""
    order: list[list[Item]] = [[] for _ in range(max(column.values()) + 1)]
    for node in graph.nodes:
        order[column[node.name]].append(node.name)
    for link in links:
        if isinstance(link.right, tuple):
            order[link.right[1]].append(link.right)
    best, fewest = order, crossings(order, links)
    for sweep in range(_SWEEPS):
        if fewest == 0:
            break
        order = _swept(order, links, rightward=sweep % 2 == 0)
        count = crossings(order, links)
        if count < fewest:
            best, fewest = order, count
    return best


def _swept(order: Sequence[Sequence[Item]], links: Sequence[Link], *, rightward: bool) -> list[list[Item]]:
    position: dict[Item, float] = {item: index for items in order for index, item in enumerate(items)}
    near: dict[Item, list[Link]] = {}
    for link in links:
        near.setdefault(link.right if rightward else link.left, []).append(link)
    result = [list(items) for items in order]
    for items in result if rightward else reversed(result):
        mean = {
            item: fmean(position[link.left] if rightward else position[link.right] + link.entry for link in near[item])
            if item in near
            else position[item]
            for item in items
        }
        items.sort(key=mean.__getitem__)
        position.update({item: index for index, item in enumerate(items)})
    return result


def crossings(order: Iterable[Sequence[Item]], links: Sequence[Link]) -> int:
    """Return the number of pairs of links that cross."""
    at = {item: (number, index) for number, items in enumerate(order) for index, item in enumerate(items)}
    by_column: dict[int, list[tuple[float, float]]] = {}
    for link in links:
        number, left = at[link.left]
        by_column.setdefault(number, []).append((left, at[link.right][1] + link.entry))
    count = 0
    for ends in by_column.values():
        seen: list[float] = []
        for _, right in sorted(ends):
            count += len(seen) - bisect_right(seen, right)
            insort(seen, right)
    return count
