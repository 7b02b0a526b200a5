"""Pages of collections: the list, one collection, its documents, and the explanation of a document."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from math import ceil
from typing import Any
from urllib.parse import urlencode

import orjson
from starlette.requests import Request
from starlette.responses import Response

from derive.cli.collections import Chosen, collection_row, selector_from, updates_of, versions_of
from derive.cli.console import render_error
from derive.cli.keys import packed_keys
from derive.cli.options import catalog_with_shadows, clock_of
from derive.contents.reads import ReadOptions, compacted_before
from derive.contents.reduced import Versions, reduced_documents
from derive.document.clock import format_rfc3339, parse_rfc3339, parse_time
from derive.document.exact import dump_exact
from derive.document.key import show_key, unpack
from derive.errors import FlowError
from derive.protocol.specs import CollectionSpec
from derive.scratch import scratch_folder
from derive.time import BEGINNING
from derive.time.positions import Segment
from derive.ui.folder import Folder
from derive.ui.rendering import page, path_of

_ROWS = 50
"""Number of documents of a page."""

_BARS, _LEAST_BARS = 60, 4
"""Largest and smallest number of bars of a chart; a bar stands for a second or more."""

_MOST_PARTITIONS = 50
_BEGINNING = format_rfc3339(BEGINNING)
_READS = threading.BoundedSemaphore(2)
"""Limit of reads at the same time, so that pages leave processors to the run."""


def show_list(request: Request) -> Response:
    """Return the page with all collections and tables."""
    folder: Folder = request.app.state.folder
    rows = folder.collections()
    values = {"title": "Collections", "page": "Collections", "version": folder.version(), "rows": rows}
    known = folder.catalog().collections
    return page(request, "collections.html", {**values, "known": known, "beginning": _BEGINNING})


def show(request: Request) -> Response:
    """Return the page of one collection; its documents are loaded afterwards, because reading may take seconds."""
    folder: Folder = request.app.state.folder
    name: str = request.path_params["name"]
    store = folder.store()
    catalog = catalog_with_shadows(store, folder.catalog(), [name])
    spec = catalog.find_collection(name)
    known, row = store.collection(name), collection_row(store, catalog, name, spec.key)
    segments = store.segments(spec) if known else []
    query = _Query.of(request.query_params)
    values: dict[str, Any] = {
        "title": name,
        "page": "Collections",
        "version": folder.version(),
        "name": name,
        "row": row,
        "is_complete": row["since"] in (None, _BEGINNING),
        "beginning": _BEGINNING,
        "is_derived": name in catalog.derivations,
        "readers": [task.name for task in catalog.tasks.values() if name in task.sources],
        "fields": spec.projections,
        "schema": dump_pretty(spec.read_schema),
        "write_schema": dump_pretty(spec.write_schema) if spec.write_schema != spec.read_schema else None,
        "partitions": _partitions(spec, segments),
        "growth": growth(segments),
        "query": query,
        "span": _Span.of(segments, row["upper"], query.as_of),
        "documents_url": f"/documents/{path_of(name)}?{request.query_params}",
    }
    return page(request, "collection.html", values)


def dump_pretty(value: Any) -> str:
    """Return a JSON value as indented text."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def _partitions(spec: CollectionSpec, segments: Sequence[Segment]) -> list[tuple[str, int]]:
    """Return the largest logical partitions, each with its number of documents."""
    counts: Counter[str] = Counter()
    for segment in segments if spec.partitions else ():
        values = zip(spec.partitions, segment.partition, strict=False)
        counts[", ".join(f"{item.field} = {dump_exact(value).decode()}" for item, value in values)] += segment.documents
    return counts.most_common(_MOST_PARTITIONS)


@dataclass(frozen=True, slots=True)
class Growth:
    """The number of documents over time.

    Attributes:
        begin: time of the first document, RFC 3339.
        end: time of the last document, RFC 3339.
        bars: height of each bar, from 0 to 100, for equal intervals of at least a second.
        most: number of documents of the highest bar.
    """

    begin: str
    end: str
    bars: tuple[float, ...]
    most: int


def growth(segments: Sequence[Segment]) -> Growth | None:
    """Return the growth of a collection; None without documents, or if all have nearly the same time.

    The documents of a file are spread evenly between its first and its last time.
    """
    if not segments:
        return None
    begin, end = min(one.clock_min for one in segments), max(one.clock_max for one in segments) + 1
    number_of_bars = min(_BARS, (end - begin) // 1_000_000)
    if number_of_bars < _LEAST_BARS:
        return None
    width = (end - begin) / number_of_bars
    counts = [0.0] * number_of_bars
    for one in segments:
        first, last = (
            min(int((clock - begin) / width), number_of_bars - 1) for clock in (one.clock_min, one.clock_max)
        )
        for number in range(first, last + 1):
            counts[number] += one.documents / (last + 1 - first)
    most = max(counts)
    bars = tuple(round(100 * count / most, 1) for count in counts)
    return Growth(format_rfc3339(begin), format_rfc3339(end - 1), bars, ceil(most))


_VIEWS = {"reduced": "one document per key", "raw": "all published documents", "history": "versions of one key"}


@dataclass(frozen=True, slots=True)
class _Query:
    """The selection of documents.

    Attributes:
        view: one of `_VIEWS`.
        key: the key, as JSON or as a bare text; empty for all.
        where: a condition of SQL; empty for none.
        as_of: time of the contents; empty for the latest.
        since: time of the first document; empty for all.
        offset: number of skipped documents.
    """

    view: str
    key: str
    where: str
    as_of: str
    since: str
    offset: int

    @staticmethod
    def of(values: Mapping[str, str]) -> _Query:
        """Return the selection that parameters of a URL describe."""
        key, where, as_of, since = (values.get(name, "").strip() for name in ("key", "where", "as_of", "since"))
        view, offset = values.get("view", ""), values.get("offset", "")
        start = int(offset) if offset.isdecimal() else 0
        return _Query(view if view in _VIEWS else "reduced", key, where, as_of, since, start)

    @property
    def views(self) -> Mapping[str, str]:
        """Return the names and descriptions of all views."""
        return _VIEWS

    def url(self, path: str, **changes: str | int) -> str:
        """Return a URL with this selection and changes of it."""
        values = {"view": self.view, "key": self.key, "where": self.where, "as_of": self.as_of, "since": self.since}
        chosen = {name: value for name, value in {**values, **changes}.items() if value}
        return f"{path}?{urlencode(chosen)}"


@dataclass(frozen=True, slots=True)
class _Span:
    """The times of a slider, in milliseconds.

    Attributes:
        first: time of the first document.
        last: last time at which the documents are final.
        value: chosen time.
    """

    first: int
    last: int
    value: int

    @staticmethod
    def of(segments: Sequence[Segment], upper: str | None, as_of: str) -> _Span | None:
        """Return the times of a collection; None without documents.

        Args:
            segments: files of the collection.
            upper: RFC 3339 time before which the documents are final.
            as_of: time that the person has chosen; empty for the latest.
        """
        if not segments or upper is None:
            return None
        first = -(-min(one.clock_min for one in segments) // 1000)
        last = (parse_rfc3339(upper) - 1) // 1000
        value = last
        with suppress(ValueError):
            value = parse_time(as_of) // 1000 if as_of else last
        return _Span(first, last, value) if first < last else None


@dataclass(frozen=True, slots=True)
class _Shown:
    """A document on a page.

    Attributes:
        at: RFC 3339 time of its publication.
        key: text of the key.
        key_json: JSON of the key, as an array.
        text: JSON of the document; `null` is a deletion.
    """

    at: str
    key: str
    key_json: str
    text: str


def show_documents(request: Request) -> Response:
    """Return the documents of a collection as a part of its page; an error is shown in their place."""
    folder: Folder = request.app.state.folder
    name: str = request.path_params["name"]
    query = _Query.of(request.query_params)
    values: dict[str, Any] = {"rows": [], "error": None, "next": None, "before": None, "notes": []}
    path = f"/collections/{path_of(name)}"
    try:
        with _READS:
            rows = list(_read(folder, name, query, values["notes"]))
    except FlowError as error:
        values["error"] = render_error(error)
    else:
        values["rows"] = rows[:_ROWS]
        if len(rows) > _ROWS:
            values["next"] = query.url(path, offset=query.offset + _ROWS)
        if query.offset:
            values["before"] = query.url(path, offset=max(0, query.offset - _ROWS))
    is_derived = name in folder.catalog().derivations
    values |= {"title": name, "page": None, "query": query, "path": path, "name": name, "is_derived": is_derived}
    is_form = request.headers.get("hx-trigger") == "query"
    return page(request, "documents.html", values, headers={"hx-push-url": query.url(path)} if is_form else {})


def _read(folder: Folder, name: str, query: _Query, notes: list[str]) -> Iterator[_Shown]:
    """Yield the documents of a page, and the next document if there is one.

    Raises:
        UsageError: the selection is invalid.
        FlowError: the documents cannot be read, as for `flowctl collections read`.
    """
    store = folder.store()
    spec = catalog_with_shadows(store, folder.catalog(), [name]).find_collection(name)
    if store.collection(name) is None:
        return
    begin, at = clock_of("since", query.since or None), clock_of("as of", query.as_of or None)
    stored = store.read_as(store.tables.as_stored(spec), at)
    is_history = query.view == "history"
    keys = packed_keys(stored, [query.key] if query.key else [])
    options = ReadOptions(None if is_history else begin, at, selector_from(stored, None), keys)
    chosen = Chosen(spec, query.where or None, begin if is_history else None, None)
    if is_history:
        if keys is None:
            notes.append("Give a key to see its versions.")
            return
        if (since := compacted_before(store, spec)) is not None:
            notes.append(f"Before {format_rfc3339(since)}, only the last version of a key is kept.")
        parts: Generator[Any] = versions_of(store, spec, options, Versions(stored))
    elif query.view == "raw":
        parts = updates_of(store, spec, options)
    else:
        parts = reduced_documents(store, spec, options)
    skip, left = query.offset, _ROWS + 1
    with closing(parts):
        for part in parts:
            rows = chosen.of(part)
            taken = rows.slice(min(skip, len(rows)), left)
            skip, left = max(0, skip - len(rows)), left - len(taken)
            for clock, _, key, text in taken.tuples():
                yield _Shown(format_rfc3339(clock), show_key(key), dump_exact(list(unpack(key))).decode(), text)
            if left == 0:
                return


def explain(request: Request) -> Response:
    """Return the explanation of one document, as `flowctl why` prints it."""
    from derive.cli.explanations import trace_lines
    from derive.cli.why import explained_document

    folder: Folder = request.app.state.folder
    name: str = request.path_params["name"]
    query = request.query_params
    store = folder.store()
    values: dict[str, Any] = {"title": f"Why {name}", "page": "Collections", "name": name, "lines": [], "error": None}
    values["key"] = query.get("key", "")
    try:
        catalog = catalog_with_shadows(store, folder.catalog(), [name])
        clock = clock_of("as of", query.get("as_of", "") or None)
        with _READS, scratch_folder() as scratch:
            traced = explained_document(store, catalog, scratch, name, values["key"], clock, depth=2)
        values["lines"] = list(trace_lines(traced))
        values["is_equal"] = traced.is_equal
    except FlowError as error:
        values["error"] = render_error(error)
    return page(request, "why.html", values)
