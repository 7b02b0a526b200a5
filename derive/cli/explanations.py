"""Explanations as trees and as graphs for people, and as JSON for programs.

In a graph for `derive.cli.graph_picture`, documents and rows are nodes, and transforms are flows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from derive.catalog.graph import Flow, FlowGraph, Kind, Node
from derive.cli.graph_picture import shortened
from derive.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from derive.algebra.types import Row
    from derive.why.observe import Observation, Writer
    from derive.why.trace import Cause, Trace, TracedDocument
    from derive.why.views import ExplainedRow, TracedRows

_WIDTH = 80
_SHOWN_ROWS = 6
_SHOWN_VALUE = 60
_MOST_SHOWN = 4_000
"""Number of characters of a document that a tree shows."""


def print_tree(lines: Iterable[tuple[int, str]]) -> None:
    """Print lines, each with its indentation, within the width of the terminal."""
    import shutil
    import sys

    from derive.cli.console import visible_line
    from derive.cli.folding import folded

    width = shutil.get_terminal_size((_WIDTH, 24)).columns
    for indent, text in lines:
        blank = " " * indent
        parts = folded(visible_line(_without_middle(text)), width, blank, f"{blank}  ")
        sys.stdout.write("".join(f"{part}\n" for part in parts))


def _without_middle(text: str) -> str:
    """Return a line of a tree; a very long line without its middle."""
    omitted = len(text) - _MOST_SHOWN
    if omitted <= 0:
        return text
    half = _MOST_SHOWN // 2
    return f"{text[:half]} … {counted(omitted, 'character')} left out; -o json has all … {text[-half:]}"


def trace_lines(explained: Trace) -> Iterator[tuple[int, str]]:
    """Yield the lines of the tree of a document, each with its indentation."""
    from derive.document.key import show_key

    yield 0, f"{explained.collection} {show_key(explained.key)} as of {_time(explained.as_of)}"
    yield from _value_lines(explained)


def _value_lines(explained: Trace) -> Iterator[tuple[int, str]]:
    yield 2, "is deleted" if explained.value is None else f"= {explained.value}"
    if explained.is_derived:
        yield from _equality(explained)
    if explained.omitted:
        before = "" if explained.omitted_value is None else f", reduced to {explained.omitted_value}"
        replaced = " that the last document replaces" if explained.omitted_value is None else ""
        yield 2, f"{explained.omitted:,} earlier document{'s' * (explained.omitted > 1)}{replaced}{before}"
    for document in explained.documents:
        how = "" if explained.is_derived else "ingested "
        yield 2, f"{how}{_time(document.stored.clock)}  {document.stored.text}"
        if document.reduced is not None:
            yield 4, f"⇒ {document.reduced}"
        yield from _causes(document, 4)


def _time(clock: int) -> str:
    from derive.document.clock import format_rfc3339

    return format_rfc3339(clock)


def _equality(explained: Trace) -> Iterator[tuple[int, str]]:
    counts = f"{counted(explained.replayed, 'document')} replayed, {explained.candidates:,} in the same ticks"
    if explained.is_equal:
        yield 2, f"replayed: equal to what is stored, byte for byte ({counts})"
        return
    yield 2, f"replayed: NOT equal to what is stored ({counts})"
    if explained.difference is not None:
        stored, made = explained.difference
        yield 4, "no document is stored" if stored is None else f"stored is {_time(stored.clock)}  {stored.text}"
        yield 4, f"the replay gives {made or 'nothing at this time'}"
    for reason in explained.reasons:
        yield 4, f"reason: {reason}"


def _causes(document: TracedDocument, indent: int) -> Iterator[tuple[int, str]]:
    if document.omitted:
        yield indent, f"{counted(document.omitted, 'earlier cause')} in this tick"
    for cause in document.causes:
        yield from _cause(cause, indent)


def _cause(cause: Cause, indent: int) -> Iterator[tuple[int, str]]:
    from derive.document.key import show_key

    if cause.transform is None:
        yield indent, f"└ by flush() at the end of the tick, {_time(cause.row.adjusted)}"
        return
    waited = "".join(f", {wait}" for wait in waits(cause))
    yield indent, f"└ by {cause.transform} from {cause.source} {show_key(cause.row.key)}{waited}"
    yield indent + 4, f"{_time(cause.row.clock)}  {cause.row.text}"
    if cause.observation is not None:
        yield from observation_lines(cause.observation, indent + 4)
    if cause.above is not None:
        if not cause.above.is_equal:
            yield indent + 6, "replayed: NOT equal to what is stored; explain this document for the reason"
        yield from _causes(cause.above, indent + 6)
    elif cause.is_derived:
        yield indent + 6, "… which is derived, too: see --depth"


def waits(cause: Cause) -> list[str]:
    """Return the times that a transform waited for a source document, with their reasons."""
    from derive.document.clock import format_duration

    delay = [f"{format_duration(cause.read_delay)} later, by its readDelay"] if cause.read_delay else []
    return [*delay, *([f"{format_duration(cause.feedback)} later, as it feeds back"] if cause.feedback else [])]


def observation_lines(seen: Observation, indent: int) -> Iterator[tuple[int, str]]:
    """Yield the lines of an observation, each with its indentation."""
    from derive.document.exact import dump_exact

    if seen.given:
        yield indent, "given " + ", ".join(f"{name} = {_sql(value)}" for name, value in seen.given.items())
    if seen.earlier:
        yield indent, f"after {counted(seen.earlier, 'document')} of the same shuffle key"
    for state in seen.state[:_SHOWN_ROWS]:
        by = "" if state.writer is None else f"  written {_writer(state.writer)}"
        yield indent, f"state {state.table}{_row(state.row)}{by}"
    if seen.state_rows > _SHOWN_ROWS:
        yield indent, f"state: {counted(seen.state_rows - _SHOWN_ROWS, 'more row')}"
    if seen.value_before is not None:
        yield indent, f"state {_short(dump_exact(seen.value_before).decode())}"
    for change in seen.changes:
        sides = (_row(row) for row in (change.before, change.after) if row is not None)
        verb = "inserted" if change.before is None else "deleted" if change.after is None else "updated"
        yield indent, f"{verb} {change.table}{' → '.join(sides)}"
    if seen.value_after is not None and seen.value_after != seen.value_before:
        yield indent, f"state after {_short(dump_exact(seen.value_after).decode())}"
    for document in seen.published:
        yield indent, f"published {dump_exact(document).decode()}"


def _writer(writer: Writer) -> str:
    from derive.document.key import show_key

    at = f"at {_time(writer.row.adjusted)}"
    if writer.transform is None:
        return f"{at} by flush()"
    return f"{at} by {writer.transform} for {writer.source} {show_key(writer.row.key)}"


def _row(row: Sequence[Any]) -> str:
    return f"({', '.join(map(_sql, row))})"


def _sql(value: Any) -> str:
    """Return a value of SQLite as a literal, shortened."""
    if isinstance(value, bytes):
        return f"x'{_short(value.hex())}'"
    if value is None or isinstance(value, bool):
        return {None: "NULL", False: "FALSE", True: "TRUE"}[value]
    return f"'{_short(value)}'" if isinstance(value, str) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}…"


def trace_json(explained: Trace) -> dict[str, Any]:
    """Return the explanation of a document as JSON."""
    from derive.document.key import unpack

    stored, made = explained.difference or (None, None)
    return {
        "collection": explained.collection,
        "key": list(unpack(explained.key)),
        "as_of": _time(explained.as_of),
        "value": _parsed(explained.value),
        "derived": explained.is_derived,
        "equal": explained.is_equal,
        "replayed": explained.replayed,
        "candidates": explained.candidates,
        "stored": None if stored is None else _parsed(stored.text),
        "replay_gives": _parsed(made),
        "reasons": list(explained.reasons),
        "omitted": explained.omitted,
        "omitted_value": _parsed(explained.omitted_value),
        "documents": [_document_json(document) for document in explained.documents],
    }


def _parsed(text: str | None) -> Any:
    from derive.document.exact import parse_exact

    return None if text is None else parse_exact(text.encode())


def _document_json(document: TracedDocument) -> dict[str, Any]:
    return {
        "at": _time(document.stored.clock),
        "document": _parsed(document.stored.text),
        "reduced": _parsed(document.reduced),
        "equal": document.is_equal,
        "omitted_causes": document.omitted,
        "causes": [_cause_json(cause) for cause in document.causes],
    }


def _cause_json(cause: Cause) -> dict[str, Any]:
    from derive.document.key import unpack

    if cause.transform is None:
        return {"transform": None, "at": _time(cause.row.adjusted)}
    seen = cause.observation
    return {
        "transform": cause.transform,
        "source": cause.source,
        "key": list(unpack(cause.row.key)),
        "at": _time(cause.row.clock),
        "processed_at": _time(cause.row.adjusted),
        "read_delay_seconds": cause.read_delay / 1e6,
        "feedback_seconds": cause.feedback / 1e6,
        "document": _parsed(cause.row.text),
        **({} if seen is None else _observation_json(seen)),
        "above": None if cause.above is None else _document_json(cause.above),
    }


def _observation_json(seen: Observation) -> dict[str, Any]:
    return {
        "given": {name: _json_value(value) for name, value in seen.given.items()},
        "earlier": seen.earlier,
        "state": [
            {
                "table": state.table,
                "row": list(map(_json_value, state.row)),
                "written_at": None if state.writer is None else _time(state.writer.row.adjusted),
                "written_by": None if state.writer is None else state.writer.transform,
                "written_for": None if state.writer is None else _writer_json(state.writer),
            }
            for state in seen.state
        ],
        "state_rows": seen.state_rows,
        "state_value": seen.value_before,
        "state_value_after": seen.value_after,
        "changes": [
            {
                "table": change.table,
                "before": None if change.before is None else list(map(_json_value, change.before)),
                "after": None if change.after is None else list(map(_json_value, change.after)),
            }
            for change in seen.changes
        ],
        "published": list(seen.published),
    }


def _writer_json(writer: Writer) -> dict[str, Any] | None:
    from derive.document.key import unpack

    if writer.transform is None:
        return None
    return {"source": writer.source, "key": list(unpack(writer.row.key))}


def _json_value(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def row_lines(explained: ExplainedRow, above: Mapping[int, Sequence[Trace | None]]) -> Iterator[tuple[int, str]]:
    """Yield the lines of the tree of a view's row, each with its indentation.

    Args:
        explained: the explanation.
        above: for each source (by index), the explanation of each shown row; None for a row without an explanation.
    """
    copies = f", {counted(explained.copies, 'time')}" if explained.copies > 1 else ""
    yield 0, f"a row of {explained.view} as of {_time(explained.as_of)}{copies}"
    yield 2, f"= {row_text(explained.columns, explained.row)}"
    rows = counted(sum(source.count for source in explained.sources), "row")
    if explained.is_equal is None:
        yield 2, f"not computed again, because it follows from {rows}"
    else:
        yield 2, f"computed again from {rows}: {'equal' if explained.is_equal else 'NOT equal'}"
    if explained.is_stored is not None:
        yield 2, f"stored by the materialized view: {'equal' if explained.is_stored else 'NOT equal'}"
    for index, source in enumerate(explained.sources):
        yield 2, f"└ {source_text(source)}"
        for row, trace in zip(source.rows, above.get(index, [None] * len(source.rows)), strict=True):
            yield 6, stored_row_text(source, row, trace)
            if trace is not None:
                yield from ((indent + 6, text) for indent, text in _value_lines(trace))
        if source.count > len(source.rows) > 0:
            yield 6, f"and {counted(source.count - len(source.rows), 'more row')}: see --limit"


def source_text(source: TracedRows) -> str:
    """Return a description of traced rows, such as `2 rows of shop/payments with customer = 'ann'`."""
    condition = f" with {source.condition}" if source.condition else ""
    if source.is_absence and not source.count:
        return f"no partner in {source.name}: no row{condition}"
    if source.is_whole:
        return f"all {counted(source.count, 'row')} of {source.name}"
    return f"{counted(source.count, 'row') if source.count else 'no row'} of {source.name}{condition}"


def stored_row_text(source: TracedRows, row: Row, trace: Trace | None = None) -> str:
    """Return a row of a table as JSON, or a document with its time; only its time if the lines of a trace show it."""
    from derive.document.exact import dump_exact, parse_exact

    stored = _stored_json(source, row)
    document = dump_exact(stored["row"])
    if stored["at"] is None:
        return document.decode()
    value = None if trace is None else trace.value
    if value is not None and parse_exact(document) == parse_exact(value.encode()):
        return str(stored["at"])
    return f"{stored['at']}  {document.decode()}"


def row_text(columns: Sequence[tuple[str, Any]], row: Row) -> str:
    """Return a row as JSON text."""
    from derive.document.exact import dump_exact

    return dump_exact(_row_json(columns, row)).decode()


def _row_json(columns: Sequence[tuple[str, Any]], row: Row) -> Any:
    import orjson

    from derive.cli.sql import json_of
    from derive.document.exact import parse_exact

    return parse_exact(orjson.dumps(json_of(columns, row)))


def _stored_json(source: TracedRows, row: Row) -> dict[str, Any]:
    """Return a row of a table, or the document of a row of a collection and its time."""
    from derive.relations.columns import columns_of
    from derive.schema.projection import UUID_POINTER

    columns = columns_of(source.source)
    document = source.document(row)
    if document is None:
        return {"at": None, "row": _row_json([(column.name, column.type) for column in columns], row)}
    clocks = [datum for column, datum in zip(columns, row, strict=True) if column.pointer == UUID_POINTER]
    return {"at": _time(clocks[0]) if clocks and isinstance(clocks[0], int) else None, "row": document}


def row_json(explained: ExplainedRow, above: Mapping[int, Sequence[Trace | None]]) -> dict[str, Any]:
    """Return the explanation of a view's row as JSON; see `row_lines`."""
    return {
        "view": explained.view,
        "row": _row_json(explained.columns, explained.row),
        "copies": explained.copies,
        "as_of": _time(explained.as_of),
        "equal": explained.is_equal,
        "stored": explained.is_stored,
        "sources": [
            {
                "name": source.name,
                "condition": source.condition or None,
                "whole": source.is_whole,
                "missing": source.is_absence,
                "rows": source.count,
                "shown": [
                    {**_stored_json(source, row), "why": None if trace is None else trace_json(trace)}
                    for row, trace in zip(source.rows, above.get(index, [None] * len(source.rows)), strict=True)
                ],
            }
            for index, source in enumerate(explained.sources)
        ],
    }


_MOST_CELLS = 72
"""Number of characters of a document or value in a picture."""


def trace_graph(explained: Trace) -> FlowGraph:
    """Return the explanation of a document as a graph, sources first."""
    graph = _Graph()
    graph.add_trace(explained)
    return graph.made()


def row_graph(explained: ExplainedRow, above: Mapping[int, Sequence[Trace | None]]) -> FlowGraph:
    """Return the explanation of a view's row as a graph, sources first; see `derive.cli.explanations.row_lines`."""
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
        omitted = [f"after {counted(explained.omitted, 'earlier document')}"] if explained.omitted else []
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
        notes = [f"{counted(document.omitted, 'earlier cause')} in this tick"] if document.omitted else []
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
        if not source.rows:
            self.add_node(source_text(source), "collection")
            return [source_text(source)]
        names = [
            self._row(source, row) if trace is None else self.add_trace(trace)
            for row, trace in zip(source.rows, above or [None] * len(source.rows), strict=True)
        ]
        if source.count > len(source.rows):
            more = f"{counted(source.count - len(source.rows), 'more row')} of {source.name}"
            self.add_node(more, "collection", source.condition)
            names.append(more)
        return names

    def _row(self, source: TracedRows, row: Row) -> str:
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
    seen = [] if cause.observation is None else [text for _, text in observation_lines(cause.observation, 0)]
    return [*waits(cause), *seen]
