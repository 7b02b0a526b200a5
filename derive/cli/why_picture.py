"""Explanations as graphs for `derive.cli.graph_picture`: documents and rows become nodes, transforms become flows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from derive.catalog.graph import Flow, FlowGraph, Kind, Node
from derive.cli.graph_picture import shortened

if TYPE_CHECKING:
    from derive.algebra.types import Row
    from derive.why.trace import Cause, Trace, TracedDocument
    from derive.why.views import ExplainedRow, TracedRows

_MOST_CELLS = 72
"""Number of characters of a document or value in a picture."""


def trace_graph(explained: Trace) -> FlowGraph:
    """Return the explanation of a document as a graph, sources first."""
    graph = _Graph()
    graph.add_trace(explained)
    return graph.made()


def row_graph(explained: ExplainedRow, above: Mapping[int, Sequence[Trace | None]]) -> FlowGraph:
    """Return the explanation of a view's row as a graph, sources first; see `derive.cli.why_tree.row_lines`."""
    from derive.cli.why_tree import row_text

    graph = _Graph()
    sources = [
        (name, source.condition or "all columns")
        for index, source in enumerate(explained.sources)
        for name in graph.add_source(source, above.get(index, ()))
    ]
    name = f"a row of {explained.view}"
    graph.add_node(name, "derivation", row_text(explained.columns, explained.row))
    for source_name, condition in sources:
        graph.add_flow(source_name, name, condition)
    return graph.made()


class _Graph:
    """A graph to which nodes are added, each after its sources."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._flows: dict[tuple[str, str, str], Flow] = {}
        self._numbers = count(1)

    def made(self) -> FlowGraph:
        """Return the graph."""
        places = {name: place for place, name in enumerate(self._nodes)}
        flows = sorted(self._flows.values(), key=lambda flow: places[flow.target])
        return FlowGraph(tuple(self._nodes.values()), tuple(flows))

    def add_node(self, name: str, kind: Kind, *notes: str) -> None:
        """Add a node, unless the graph has a node with this name."""
        self._nodes.setdefault(name, Node(name, kind, tuple(shortened(note, _MOST_CELLS) for note in notes)))

    def add_flow(self, source: str, target: str, label: str, *notes: str, feedback: bool = False) -> None:
        """Add a flow, unless the graph has an equal flow."""
        label, others = shortened(label, _MOST_CELLS), tuple(shortened(note, _MOST_CELLS) for note in notes)
        self._flows.setdefault((source, target, label), Flow(source, target, label, others, feedback))

    def add_trace(self, explained: Trace) -> str:
        """Add the explanation of a document; return the name of its node."""
        from derive.document.key import show_key

        kind: Kind = "derivation" if explained.is_derived else "collection"
        documents = [
            (self._document(explained.collection, document, kind), document) for document in explained.documents
        ]
        name = f"{explained.collection} {show_key(explained.key)}"
        value = "is deleted" if explained.value is None else f"= {explained.value}"
        omitted = [f"after {explained.omitted:,} earlier documents"] if explained.omitted else []
        unequal = [] if explained.is_equal else ["replayed: NOT equal to what is stored"]
        self.add_node(name, kind, value, *omitted, *unequal)
        for source, document in documents:
            reduced = [] if document.reduced is None else [f"⇒ {document.reduced}"]
            self.add_flow(source, name, "reduced", *reduced)
        return name

    def _document(self, collection: str, document: TracedDocument, kind: Kind) -> str:
        """Add a stored document and its causes; return the name of its node."""
        name = _name(collection, document.stored.key, document.stored.clock, document.stored.seq)
        causes = [(self._cause(cause), cause) for cause in document.causes if cause.transform is not None]
        notes = [f"{document.omitted:,} earlier causes in this tick"] if document.omitted else []
        if len(causes) < len(document.causes):
            notes.append("by flush() at the end of the tick")
        self.add_node(name, kind, document.stored.text, *notes)
        for source, cause in causes:
            self.add_flow(source, name, cause.transform or "", *_notes(cause), feedback=cause.feedback > 0)
        return name

    def _cause(self, cause: Cause) -> str:
        kind: Kind = "derivation" if cause.is_derived else "collection"
        if cause.above is not None:
            return self._document(cause.source, cause.above, kind)
        name = _name(cause.source, cause.row.key, cause.row.clock, cause.row.seq)
        self.add_node(name, kind, cause.row.text)
        return name

    def add_source(self, source: TracedRows, above: Sequence[Trace | None]) -> list[str]:
        """Add the rows of a source of a view's row; return the names of their nodes."""
        from derive.cli.why_tree import source_text

        if not source.rows:
            self.add_node(source_text(source), "collection")
            return [source_text(source)]
        names = [
            self._row(source, row) if trace is None else self.add_trace(trace)
            for row, trace in zip(source.rows, above or [None] * len(source.rows), strict=True)
        ]
        if source.count > len(source.rows):
            more = f"{source.count - len(source.rows):,} more rows of {source.name}"
            self.add_node(more, "collection", source.condition)
            names.append(more)
        return names

    def _row(self, source: TracedRows, row: Row) -> str:
        from derive.cli.why_tree import stored_row_text
        from derive.document.key import show_key

        key = source.key(row)
        name = f"{source.name} row {next(self._numbers)}" if key is None else f"{source.name} {show_key(key)}"
        self.add_node(name, "collection", stored_row_text(source, row))
        return name


def _name(collection: str, key: bytes, clock: int, seq: int) -> str:
    from derive.document.clock import format_rfc3339
    from derive.document.key import show_key

    number = f", number {seq}" if seq else ""
    return f"{collection} {show_key(key)} at {format_rfc3339(clock)}{number}"


def _notes(cause: Cause) -> list[str]:
    """Return the notes of a flow: delays, and the work of the lambda."""
    from derive.cli.why_tree import observation_lines, waits

    seen = [] if cause.observation is None else [text for _, text in observation_lines(cause.observation, 0)]
    return [*waits(cause), *seen]
