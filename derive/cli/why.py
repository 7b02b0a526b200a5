"""`flowctl why`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from derive.cli.options import (
    catalog_options,
    clock_of,
    limit_options,
    limited_catalog,
    open_store,
    stored_folder,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from derive.errors import FlowError
    from derive.protocol.specs import CollectionSpec, LambdaLimits
    from derive.storage.roles import Readable
    from derive.why.observe import Observation
    from derive.why.trace import Cause, Trace, TracedDocument

_WIDTH = 80
_SHOWN_ROWS = 6
_SHOWN_VALUE = 60
_MOST_SHOWN = 4_000
"""Number of characters of a document that a tree shows."""


@click.command()
@catalog_options
@click.option("--collection", required=True, help="The collection.")
@click.option("--key", "key_text", required=True, metavar="JSON", help="The document's key, as a JSON array.")
@click.option("--as-of", metavar="TIME", help="The document at this RFC 3339 time.  [default: the latest final one]")
@click.option(
    "--depth",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Number of levels of derived sources to explain too.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["tree", "json"]),
    help="Format of the output.  [default: tree on a terminal, json otherwise]",
)
@limit_options
def command(
    source: Path,
    data: Path | None,
    collection: str,
    key_text: str,
    as_of: str | None,
    depth: int,
    output: str | None,
    lambda_limits: LambdaLimits,
) -> None:
    """Explain a document: the source documents that it follows from, and the work of each lambda.

    The lambdas run again over the documents that matter, in a temporary folder, and the result is compared with the
    stored documents byte for byte. A cause is shown with the values that its lambda was given, the state of its shuffle
    key before, the rows that it changed, and the documents that it published.

    The exit code is 1 if the replay gives another document; the reason is shown.

    \b
    Examples:
      flowctl why --collection shop/spending --key '["ann"]'
      flowctl why --collection acmeBank/balances --key '["account-1"]' --as-of 2024-01-01T01:00:00Z
      flowctl why --collection acmeBank/transfer-outcomes --key '[59127]' --depth 3 -o json | jq .value
    """
    import signal
    import sys

    from derive.errors import FrontierError, UsageError
    from derive.why.explain import Explainer
    from derive.why.trace import trace

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the folder is removed, as at Ctrl-C
    catalog = limited_catalog(source, lambda_limits, with_tests=False)
    folder, clock = stored_folder(source, data), clock_of("--as-of", as_of)
    with closing(open_store(folder, reading=True)) as store, TemporaryDirectory(prefix="flowctl-") as scratch:
        if store.tables.find(collection) is not None:
            raise UsageError(
                f"'{collection}' is a table or view of SQL, whose rows have no lambdas to replay",
                hint="query the tables that it reads as of the same time: flowctl sql -c 'SELECT … AS OF …'",
            )
        spec = catalog.find_collection(collection)
        key = _key_of(spec, key_text)
        known = store.collection(collection)
        if known is None or not known.segments:
            raise UsageError(f"nothing is stored in '{collection}' yet", hint="ingest its sources, and run flowctl run")
        end = known.upper if clock is None else clock + 1
        if end > known.upper or end <= known.since:
            raise FrontierError(
                f"the contents of '{collection}' are exact from {_time(known.since)} on, and final before"
                f" {_time(known.upper)}; {as_of} is outside"
            )
        explained = trace(Explainer(catalog, store, Path(scratch)), collection, key, end, depth)
        if explained is None:
            raise _unknown_key(store, spec, key, end)
    is_tree = output == "tree" or (output is None and sys.stdout.isatty())
    _print(explained, is_tree=is_tree)
    if not explained.is_equal:
        raise click.exceptions.Exit(1)


def _time(clock: int) -> str:
    from derive.document.clock import format_rfc3339

    return format_rfc3339(clock)


def _key_of(spec: CollectionSpec, text: str) -> bytes:
    """Return the packed key that an option gives, as a JSON array, or as one component.

    Raises:
        UsageError: the text is no key of the collection.
    """
    from derive.document.exact import parse_exact
    from derive.document.key import pack
    from derive.errors import UsageError

    pointers = ", ".join(spec.key)
    try:
        value = parse_exact(text.encode())
    except ValueError as exc:
        if len(spec.key) > 1 or text[:1] in ("[", "{", '"'):
            raise UsageError(f"--key is not JSON: {exc}", hint=f"the key of '{spec.name}' is [{pointers}]") from exc
        value = text
    components = value if isinstance(value, list) else [value]
    scalars = all(item is None or isinstance(item, bool | int | str) for item in components)
    if len(components) != len(spec.key) or not scalars:
        raise UsageError(
            f"--key {text} is no key of '{spec.name}'", hint=f"it is a JSON array with a value for each of [{pointers}]"
        )
    return pack(components)


_MOST_KEYS = 200_000


def _unknown_key(store: Readable, spec: CollectionSpec, key: bytes, end: int) -> FlowError:
    """Return the error of a key that no document has, with the most similar keys."""
    from itertools import islice

    from derive.document.key import show_key
    from derive.errors import UsageError
    from derive.suggest import suggest
    from derive.why.scan import ScanBounds, scan

    shown = show_key(key)
    keys = {row.key for row in islice(scan(store, spec, ScanBounds(end=end)), _MOST_KEYS)}
    guess = suggest(shown, sorted(map(show_key, keys)))
    example = show_key(min(keys)) if keys else None
    hint = f"did you mean '{guess}'?" if guess else f"one key is '{example}'" if example else None
    return UsageError(f"no document of '{spec.name}' before {_time(end)} has the key {shown}", hint=hint)


def _print(explained: Trace, *, is_tree: bool) -> None:
    import shutil
    import sys

    from derive.cli.console import visible_line
    from derive.document.exact import dump_exact

    if not is_tree:
        sys.stdout.write(dump_exact(_json(explained)).decode() + "\n")
        return
    width = shutil.get_terminal_size((_WIDTH, 24)).columns
    for indent, text in _lines(explained):
        sys.stdout.write(_wrapped(indent, visible_line(_without_middle(text)), width))


def _without_middle(text: str) -> str:
    """Return a line of a tree, without the middle of a very long one."""
    omitted = len(text) - _MOST_SHOWN
    if omitted <= 0:
        return text
    half = _MOST_SHOWN // 2
    return f"{text[:half]} … {omitted:,} characters are left out; -o json has all … {text[-half:]}"


def _wrapped(indent: int, text: str, width: int) -> str:
    """Return a line, continued below itself where it exceeds the width."""
    room, pieces, rest = max(width - indent, 20), list[str](), text
    while len(rest) > room:
        space = rest.rfind(" ", room // 2, room + 1)
        end = room if space < 0 else space
        pieces.append(rest[:end])
        rest = "  " + rest[end:].removeprefix(" ")
    return "".join(f"{' ' * indent}{piece}\n" for piece in [*pieces, rest])


def _lines(explained: Trace) -> Iterator[tuple[int, str]]:
    """Yield the lines of a tree, each with its indentation."""
    from derive.document.key import show_key

    yield 0, f"{explained.collection} {show_key(explained.key)} as of {_time(explained.as_of)}"
    yield 2, "is deleted" if explained.value is None else f"= {explained.value}"
    if explained.is_derived:
        yield from _equality(explained)
    if explained.omitted:
        before = "" if explained.omitted_value is None else f", reduced to {explained.omitted_value}"
        replaced = " that the last one replaces" if explained.omitted_value is None else ""
        yield 2, f"{explained.omitted:,} earlier document{'s' * (explained.omitted > 1)}{replaced}{before}"
    for document in explained.documents:
        how = "" if explained.is_derived else "ingested "
        yield 2, f"{how}{_time(document.stored.clock)}  {document.stored.text}"
        if document.reduced is not None:
            yield 4, f"⇒ {document.reduced}"
        yield from _causes(document, 4)


def _equality(explained: Trace) -> Iterator[tuple[int, str]]:
    counts = f"{_count(explained.replayed, 'document')} replayed, {_count(explained.candidates, 'candidate')}"
    if explained.is_equal:
        yield 2, f"replayed: equal to what is stored, byte for byte ({counts})"
        return
    yield 2, f"replayed: NOT equal to what is stored ({counts})"
    if explained.difference is not None:
        stored, made = explained.difference
        yield 4, "stored is nothing" if stored is None else f"stored is {_time(stored.clock)}  {stored.text}"
        yield 4, f"the replay gives {made or 'nothing at this time'}"
    for reason in explained.reasons:
        yield 4, f"reason: {reason}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _causes(document: TracedDocument, indent: int) -> Iterator[tuple[int, str]]:
    if document.omitted:
        yield indent, f"{_count(document.omitted, 'earlier cause')} in this tick"
    for cause in document.causes:
        yield from _cause(cause, indent)


def _cause(cause: Cause, indent: int) -> Iterator[tuple[int, str]]:
    from derive.document.key import show_key

    if cause.transform is None:
        yield indent, f"└ by flush() at the end of the tick, {_time(cause.row.adjusted)}"
        return
    yield indent, f"└ by {cause.transform} from {cause.source} {show_key(cause.row.key)}{_waited(cause)}"
    yield indent + 4, f"{_time(cause.row.clock)}  {cause.row.text}"
    if cause.observation is not None:
        yield from _observed(cause.observation, indent + 4)
    if cause.above is not None:
        if not cause.above.is_equal:
            yield indent + 6, "replayed: NOT equal to what is stored; explain this document for the reason"
        yield from _causes(cause.above, indent + 6)
    elif cause.is_derived:
        yield indent + 6, "… which is derived, too: see --depth"


def _waited(cause: Cause) -> str:
    from derive.document.clock import format_duration

    waits = [f"{format_duration(cause.read_delay)} later, by its readDelay"] if cause.read_delay else []
    waits += [f"{format_duration(cause.feedback)} later, as it feeds back"] if cause.feedback else []
    return "".join(f", {wait}" for wait in waits)


def _observed(seen: Observation, indent: int) -> Iterator[tuple[int, str]]:
    from derive.document.exact import dump_exact

    if seen.given:
        yield indent, "given " + ", ".join(f"{name} = {_sql(value)}" for name, value in seen.given.items())
    if seen.earlier:
        yield indent, f"after {_count(seen.earlier, 'document')} of the same shuffle key"
    for state in seen.state[:_SHOWN_ROWS]:
        by = "" if state.writer is None else f"  written at {_time(state.writer.adjusted)} for {_writer(state.writer)}"
        yield indent, f"state {state.table}{_row(state.row)}{by}"
    if seen.state_rows > _SHOWN_ROWS:
        yield indent, f"state: {_count(seen.state_rows - _SHOWN_ROWS, 'more row')}"
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


def _writer(row: Any) -> str:
    from derive.document.key import show_key

    return show_key(row.key)


def _row(row: Sequence[Any]) -> str:
    return f"({', '.join(map(_sql, row))})"


def _sql(value: Any) -> str:
    """Return a value of SQLite as a literal, shortened."""
    if isinstance(value, bytes):
        return f"x'{_short(value.hex())}'"
    return "NULL" if value is None else f"'{_short(value)}'" if isinstance(value, str) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}…"


def _json(explained: Trace) -> dict[str, Any]:
    """Return an explanation as JSON."""
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
                "written_at": None if state.writer is None else _time(state.writer.adjusted),
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


def _json_value(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value
