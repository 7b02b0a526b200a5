"""Pictures of a data flow: layout, and text of each format, without other programs.

The layout is layered. A node is to the right of all its sources (longest path). A flow that crosses a column gets a
stop in the column. Each column is ordered by the mean position of linked items, so that few flows cross.

Source: Sugiyama, Tagawa, Toda, "Methods for visual understanding of hierarchical system structures" (1981).

A node is a box: a head with its name and notes, and one row for each flow that enters the node. The label of a flow is
in its row, so labels cannot overlap. Flows to the right pass between boxes. Back flows pass beneath the boxes, each in
its own lane.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, copysign
from statistics import fmean
from typing import TypeAlias

from derive.catalog.graph import Flow, FlowGraph, Node
from derive.cli.folding import cells, folded

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

    A picture draws each component below the previous component.
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

    A flow from an earlier node of `graph.nodes` to a later node leads to the right; every other flow is a back flow. A
    node without sources is directly before its first reader.
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
    """Return the items of each column from top to bottom, in the tried order with the fewest crossings."""
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


def text_width(text: str, size: float) -> float:
    """Return the maximum width of a text in pixels.

    A character of a monospaced font is 0.6 of the font size wide, rounded up for hinted fonts.
    """
    return cells(text) * ceil(size * 0.602)


def shortened(text: str, most: int) -> str:
    """Return the text; if it has more than `most` columns, its beginning with an ellipsis."""
    text = visible(text)
    if cells(text) <= most:
        return text
    while cells(text) > most - 1:
        text = text[:-1]
    return text + "…"


def shortened_name(text: str, most: int) -> str:
    """Return the name; if it has more than `most` columns, its beginning and its end, which tells names apart."""
    text = visible(text)
    if cells(text) <= most:
        return text
    begin, end = text, text
    while cells(begin) > most // 2:
        begin = begin[:-1]
    while cells(begin) + 1 + cells(end) > most:
        end = end[1:]
    return f"{begin}…{end}"


def lay_out(graph: FlowGraph) -> Layout:
    """Place a graph, with its connected components one below the other."""
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
    """Return the distances of a link's two ends from the tops of its items, in pixels."""
    leave = _STOP / 2 if isinstance(link.left, tuple) else drafts[link.left].head / 2
    if isinstance(link.right, tuple):
        return leave, _STOP / 2
    rows = drafts[link.right].rows
    return leave, rows[round(link.entry * (len(rows) + 1)) - 1].port


def spread(desired: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Return the tops of stacked items that are nearest to the desired tops by least squares.

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
    name, notes = shortened_name(node.name, _NAME_CELLS), _note_lines(node.notes)
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
        into = "into " if node.kind == "materialization" else ""
        colon = ":" if flow.notes else ""
        lines += _wrapped(f"     {into}{visible(flow.label)}{colon}", "       ", flow.notes)
    return lines


def _wrapped(head: str, indent: str, notes: tuple[str, ...]) -> list[str]:
    text = " ".join([head.strip(), "; ".join(visible(note) for note in notes)]).strip()
    begin = head[: len(head) - len(head.lstrip())]
    return folded(text, _WIDTH, begin, indent or "    ")


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


STYLE = """\
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


@dataclass(frozen=True, slots=True)
class Mark:
    """An addition to a node of a picture on a page.

    Attributes:
        link: URL of the page about the node; empty for none.
        kind: class of the node, for style sheets.
    """

    link: str
    kind: str


_MODERATE = 1600
"""Greatest width of a picture that stays readable when a page makes it as narrow as a wide window."""


def svg_element(graph: FlowGraph, marks: Mapping[str, Mark] | None = None, label: str = "Data flow") -> str:
    """Return the picture as an SVG element, which can be embedded in HTML.

    Args:
        graph: the data flow.
        marks: additions to all nodes, by name, for a page that has `STYLE` in its style sheets; None for a picture
            without links, which has its own styles.
        label: name of the picture for people who cannot see it.
    """
    layout = lay_out(graph)
    feedback = any(flow.feedback for flow in graph.flows)
    width = max(layout.width, _LEGEND_WIDTH) if feedback else layout.width
    height = layout.height + (_LEGEND_HEIGHT if feedback else 0)
    size = f'width="{_n(width)}" height="{_n(height)}" viewBox="0 0 {_n(width)} {_n(height)}"'
    role, kind = ("img", "flow") if marks is None else ("group", "flow moderate" if width <= _MODERATE else "flow")
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" role="{role}" aria-label="{text_of(label)}" {size}>',
        *([f"<style>\n{STYLE}</style>"] if marks is None else []),
        *(_wire(wire) for wire in layout.wires),
        *(_box(box, None if marks is None else marks[box.node.name]) for box in layout.boxes),
        *([_legend(layout)] if feedback else []),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(x: float, y: float, size: float, kind: str, text: str) -> str:
    return f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}">{text_of(text)}</text>'


def _box(box: Box, mark: Mark | None) -> str:
    x, y = box.x + PAD, box.y + PAD + NAME_SIZE
    size = f'y="{_n(box.y)}" height="{_n(box.height)}"'
    kind = "node" if mark is None else f"node {mark.kind}"
    parts = [
        f'<g class="{kind}"><title>{text_of(_node_title(box.node))}</title>',
        f'<rect class="body" x="{_n(box.x)}" {size} width="{_n(box.width)}" rx="6"/>',
        f'<rect class="bar {box.node.kind}" x="{_n(box.x)}" {size} width="4" rx="2"/>',
        _text(x, y, NAME_SIZE, "name", box.name),
    ]
    for number, note in enumerate(box.notes, start=1):
        parts.append(_text(x, y + 3 + 15 * number, NOTE_SIZE, "note", note))
    drawn = "".join([*parts, *(_row(box, row) for row in box.rows), "</g>"])
    if mark is None or not mark.link:
        return drawn
    return f'<a href="{text_of(mark.link)}" id="node-{text_of(box.node.name)}">{drawn}</a>'


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
    """Return a path with curves between columns, and straight pieces across columns."""
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
    return "; ".join(filter(None, [f"{flow.label}: {flow.source} → {flow.target}{mark}", ", ".join(flow.notes)]))


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
