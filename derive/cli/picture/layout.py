"""Layout: the position of each part of a data flow picture, in pixels, from columns of ordered nodes.

This is the layered method. A node stands to the right of all its sources (longest path). A flow that passes a column
gets a stop in the column. Each column is ordered by the mean position of linked items, so that few flows cross.

Source: Sugiyama, Tagawa, Toda, "Methods for visual understanding of hierarchical system structures" (1981).

A node is a box: a head with its name and notes, and one row for each flow that enters the node. Flows enter at their
rows, so their labels stand in the box and cannot overlap. Flows to the right pass between boxes; back flows run beneath
the boxes, each in a lane of its own.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import fmean
from typing import TypeAlias
from unicodedata import combining, east_asian_width

from derive.catalog.graph import Flow, FlowGraph, Node
from derive.cli.picture.dot import visible

Item: TypeAlias = str | tuple[int, int]
"""An item of a column: a node's name, or the stop of a flow as (index of the flow, column)."""

_ORDER_SWEEPS = 8
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
    for sweep in range(_ORDER_SWEEPS):
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


Point: TypeAlias = tuple[float, float]
"""x to the right and y down, in pixels."""

NAME_SIZE, LABEL_SIZE, NOTE_SIZE = 13.0, 12.0, 11.0
PAD = 12.0
"""Pixels between a box's edge and its text."""

_NAME_CELLS, _LABEL_CELLS, _NOTE_CELLS = 44, 46, 52
_LINE, _NAME_LINE = 15.0, 19.0
_MARGIN, _BETWEEN, _GAP, _STOP = 24.0, 24.0, 72.0, 14.0
_OUTSET, _LANE = 16.0, 9.0
_SWEEPS = 12


@dataclass(frozen=True, slots=True)
class Row:
    """The text of a box about one incoming flow; `y` is the row's top, `port` the height at which the flow enters."""

    flow: Flow
    label: str
    notes: tuple[str, ...]
    y: float
    port: float


@dataclass(frozen=True, slots=True)
class Box:
    """A node in a picture, with its upper left corner and the lines of its head."""

    node: Node
    name: str
    notes: tuple[str, ...]
    rows: tuple[Row, ...]
    x: float
    y: float
    width: float
    height: float
    head: float


@dataclass(frozen=True, slots=True)
class Wire:
    """A flow in a picture.

    Attributes:
        flow: the flow.
        points: corners of a line if `back`; otherwise ends of curves (even index) and of straight pieces (odd index).
        back: whether the flow leads to the left, beneath the boxes.
    """

    flow: Flow
    points: tuple[Point, ...]
    back: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """A whole picture."""

    boxes: tuple[Box, ...]
    wires: tuple[Wire, ...]
    width: float
    height: float


def cells(text: str) -> int:
    """Return the width of a text in columns of a monospaced font: wide characters take two, combining ones none."""
    return sum(0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1 for character in text)


def text_width(text: str, size: float) -> float:
    """Return the maximum width of a text in pixels.

    Monospaced fonts are 0.6 of their size wide, rounded up where they are hinted.
    """
    return cells(text) * ceil(size * 0.602)


def shortened(text: str, most: int) -> str:
    """Return the text, or as much of its beginning as fits into `most` columns with an ellipsis."""
    text = visible(text)
    if cells(text) <= most:
        return text
    while cells(text) > most - 1:
        text = text[:-1]
    return text + "…"


def lay_out(graph: FlowGraph) -> Layout:
    """Place a graph: its connected components one below the other."""
    boxes: list[Box] = []
    wires: list[Wire] = []
    width, top = 0.0, _MARGIN
    for part in components(graph):
        placed = _Part(part, top)
        boxes += placed.boxes.values()
        wires += placed.wires
        width = max(width, placed.right)
        top = placed.bottom + 2 * _BETWEEN
    height = top - 2 * _BETWEEN if boxes else top
    return Layout(tuple(boxes), tuple(wires), width + _MARGIN, height + _MARGIN)


class _Part:
    """The placement of one connected component of a graph, whose top is at `top`."""

    def __init__(self, graph: FlowGraph, top: float) -> None:
        self.column = columns(graph)
        self._links = links_of(graph, self.column)
        self._order = arrange(graph, self.column, self._links)
        self._back = [flow for flow in graph.flows if is_back(flow, self.column)]
        drafts = {
            node.name: _box_of(node, [flow for flow in graph.flows if flow.target == node.name]) for node in graph.nodes
        }
        self._tops = self._place(drafts, top)
        self.boxes = self._boxes(graph, drafts)
        ends = [box.y + box.height + self._below(box.node.name) for box in self.boxes.values()]
        ends += [y + _STOP for item, y in self._tops.items() if isinstance(item, tuple)]
        self.bottom = max(ends)
        forward = [(index, flow) for index, flow in enumerate(graph.flows) if not is_back(flow, self.column)]
        self.wires = [self._forward(index, flow) for index, flow in forward]
        self.wires += [self._backward(number, flow) for number, flow in enumerate(self._back)]
        outset = _OUTSET + _LANE * len(self._back) if self._back else 0.0
        self.right = max(box.x + box.width for box in self.boxes.values()) + outset

    def _below(self, name: str) -> float:
        """Return the pixels that the self-reads of a node need beneath its box."""
        loops = sum(1 for flow in self._back if flow.source == flow.target == name)
        return _LANE * (loops + 1) if loops else 0.0

    def _place(self, drafts: Mapping[str, Box], top: float) -> dict[Item, float]:
        """Compute the top of each item by moving each column in turn towards its linked items."""
        height = {item: _STOP if isinstance(item, tuple) else 0.0 for items in self._order for item in items}
        for name, box in drafts.items():
            height[name] = box.height + _BETWEEN + self._below(name)
        tops: dict[Item, float] = {}
        for items in self._order:
            y = 0.0
            for item in items:
                tops[item] = y
                y += height[item]
        pulls: dict[Item, list[tuple[Item, float]]] = {item: [] for item in height}
        for link in self._links:
            leave, enter = _ports(link, drafts)
            pulls[link.right].append((link.left, leave - enter))
            pulls[link.left].append((link.right, enter - leave))
        for sweep in range(_SWEEPS):
            for items in self._order if sweep % 2 == 0 else reversed(self._order):
                desired = [fmean([tops[near] + by for near, by in pulls[item]] or [tops[item]]) for item in items]
                tops.update(zip(items, spread(desired, [height[item] for item in items]), strict=True))
        least = min(tops.values())
        return {item: y - least + top for item, y in tops.items()}

    def _boxes(self, graph: FlowGraph, drafts: Mapping[str, Box]) -> dict[str, Box]:
        outset = _OUTSET + _LANE * len(self._back) if self._back else 0.0
        self._x: list[float] = []
        self._width: list[float] = []
        x = _MARGIN + outset
        for number in range(len(self._order)):
            width = max(drafts[name].width for name, node_column in self.column.items() if node_column == number)
            self._x.append(x)
            self._width.append(width)
            x += width + _GAP + 2 * outset
        return {node.name: self._moved(drafts[node.name]) for node in graph.nodes}

    def _moved(self, box: Box) -> Box:
        number, y = self.column[box.node.name], self._tops[box.node.name]
        rows = tuple(Row(row.flow, row.label, row.notes, row.y + y, row.port + y) for row in box.rows)
        return Box(box.node, box.name, box.notes, rows, self._x[number], y, self._width[number], box.height, box.head)

    def _entry(self, flow: Flow) -> Point:
        box = self.boxes[flow.target]
        return box.x, next(row.port for row in box.rows if row.flow is flow)

    def _forward(self, index: int, flow: Flow) -> Wire:
        source = self.boxes[flow.source]
        points: list[Point] = [(source.x + source.width, source.y + source.head / 2)]
        for number in range(self.column[flow.source] + 1, self.column[flow.target]):
            y = self._tops[index, number] + _STOP / 2
            points += [(self._x[number], y), (self._x[number] + self._width[number], y)]
        return Wire(flow, (*points, self._entry(flow)), back=False)

    def _backward(self, number: int, flow: Flow) -> Wire:
        source, (x, y) = self.boxes[flow.source], self._entry(flow)
        outset = _OUTSET + _LANE * number
        if flow.source == flow.target:
            loop = [other for other in self._back if other.source == other.target == flow.source].index(flow)
            lane = source.y + source.height + _LANE * (loop + 1)
        else:
            self.bottom += _LANE
            lane = self.bottom
        right, leave = source.x + source.width, source.y + source.head / 2
        corners = ((right, leave), (right + outset, leave), (right + outset, lane), (x - outset, lane), (x - outset, y))
        return Wire(flow, (*corners, (x, y)), back=True)


def _ports(link: Link, drafts: Mapping[str, Box]) -> tuple[float, float]:
    """Return how far below the tops of its items a link leaves and enters, in pixels."""
    leave = _STOP / 2 if isinstance(link.left, tuple) else drafts[link.left].head / 2
    if isinstance(link.right, tuple):
        return leave, _STOP / 2
    rows = drafts[link.right].rows
    return leave, rows[round(link.entry * (len(rows) + 1)) - 1].port


def spread(desired: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Return the tops of stacked items that are nearest to the wanted tops by least squares.

    Source: pooling of adjacent violators, as for isotonic regression.
    """
    blocks: list[tuple[float, int]] = []
    above = 0.0
    for top, height in zip(desired, heights, strict=True):
        mean, count = top - above, 1
        while blocks and blocks[-1][0] > mean:
            before, size = blocks.pop()
            mean, count = (before * size + mean * count) / (size + count), size + count
        blocks.append((mean, count))
        above += height
    tops = []
    above = 0.0
    free = iter(heights)
    for mean, count in blocks:
        for _ in range(count):
            tops.append(mean + above)
            above += next(free)
    return tops


def _box_of(node: Node, flows: Sequence[Flow]) -> Box:
    """Return the box of a node at the origin, as wide as its text needs."""
    name, notes = shortened(node.name, _NAME_CELLS), _note_lines(node.notes)
    head = y = PAD + _NAME_LINE + _LINE * len(notes) + PAD / 2
    rows = []
    for flow in flows:
        label, lines = shortened(flow.label, _LABEL_CELLS), _note_lines(flow.notes)
        height = PAD / 2 + _LINE * (1 + len(lines)) + PAD / 2
        rows.append(Row(flow, label, lines, y, y + PAD / 2 + _LINE / 2))
        y += height
    needed = [text_width(name, NAME_SIZE), *(text_width(note, NOTE_SIZE) for note in notes)]
    for row in rows:
        needed += [text_width(row.label, LABEL_SIZE), *(text_width(note, NOTE_SIZE) for note in row.notes)]
    return Box(node, name, notes, tuple(rows), 0.0, 0.0, max(needed) + 2 * PAD, y, head)


def _note_lines(notes: Sequence[str]) -> tuple[str, ...]:
    lines: list[str] = []
    for note in (shortened(text, _NOTE_CELLS) for text in notes):
        if lines and cells(lines[-1]) + 3 + cells(note) <= _NOTE_CELLS:
            lines[-1] += f" · {note}"
        else:
            lines.append(note)
    return tuple(lines)
