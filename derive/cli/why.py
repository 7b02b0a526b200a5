"""`flowctl why`."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from derive.cli.console import visible
from derive.cli.options import (
    catalog_options,
    catalog_with_shadows,
    clock_of,
    limit_options,
    limited_catalog,
    open_store,
    stored_folder,
)

if TYPE_CHECKING:
    from derive.document.pointer import JSON
    from derive.errors import FlowError
    from derive.protocol.specs import CatalogSpec, CollectionSpec, LambdaLimits
    from derive.storage.roles import Readable
    from derive.storage.store import Store
    from derive.why.trace import Trace
    from derive.why.views import ExplainedRow

FORMS = ("dot", "mermaid", "svg")
"""Formats of pictures."""


@click.command()
@catalog_options
@click.option("--collection", help="The collection of the document; NAME@N is a shadow.")
@click.option("--key", "key_text", metavar="JSON", help="The document's key, as a JSON array.")
@click.option("--view", metavar="NAME", help="The view of SQL that has the row, in place of --collection.")
@click.option("--row", "row_text", metavar="JSON", help="Values of some of the row's columns, as a JSON object.")
@click.option("--where", metavar="EXPR", help="A condition of SQL that is true for the row alone.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Largest number of shown rows of each source of a view's row.",
)
@click.option(
    "--as-of",
    metavar="TIME",
    help="The value at this time: RFC 3339, or a duration before now (1h).  [default: the latest final one]",
)
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
    type=click.Choice(["tree", "json", *FORMS]),
    help="Format of the output.  [default: tree on a terminal, json otherwise]",
)
@limit_options
def command(
    *,
    source: Path,
    data: Path | None,
    collection: str | None,
    key_text: str | None,
    view: str | None,
    row_text: str | None,
    where: str | None,
    limit: int,
    as_of: str | None,
    depth: int,
    output: str | None,
    lambda_limits: LambdaLimits,
) -> None:
    """Explain a document, or a row of a SQL view: show the source documents from which it follows.

    For a document, the lambdas run again over the documents that matter, in a temporary folder, and the result is
    compared with the stored documents byte for byte. A cause is shown with the values that its lambda was given, the
    state of its shuffle key before, the rows that it changed, and the documents that it published.

    For a row of a view or materialized view, the command finds the rows of tables and collections from which the row
    follows. The view is computed again from only these rows. Documents of derived collections are explained, too.

    The exit code is 1 if the replay gives another document, or the view another row.

    \b
    Examples:
      flowctl why --collection shop/spending --key '["ann"]'
      flowctl why --collection acmeBank/balances --key '["account-1"]' \\
        --as-of 2024-01-01T01:00:00Z
      flowctl why --collection acmeBank/transfer-outcomes --key '[59127]' \\
        --depth 3 -o json | jq .value
      flowctl why --view public.top_customers --row '{"customer": "ann"}'
      flowctl why --view revenue --where "day = '2024-01-01'" -o dot \\
        | dot -Tpdf > why.pdf
    """
    import signal

    from derive.scratch import scratch_folder

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the folder is removed, as at Ctrl-C
    _require_one(collection, key_text, view, row_text, where)
    clock = clock_of("--as-of", as_of)
    with (
        closing(open_store(stored_folder(source, data), reading=True)) as store,
        scratch_folder() as scratch,
    ):
        catalog = None
        if view is None or data is None or source.exists():
            catalog = limited_catalog(source, lambda_limits, with_tests=False)
        if view is not None:
            row = _explain_row(store, catalog, scratch, view, _condition_of(row_text, where), clock, limit, depth)
            _print(row, output)
            is_equal = _is_equal(*row)
        else:
            assert catalog is not None
            catalog = catalog_with_shadows(store, catalog, [collection or ""])
            explained = explained_document(store, catalog, scratch, collection or "", key_text or "", clock, depth)
            _print((explained, {}), output)
            is_equal = explained.is_equal
    if not is_equal:
        raise click.exceptions.Exit(1)


def _require_one(collection: str | None, key: str | None, view: str | None, row: str | None, where: str | None) -> None:
    """Require the options of a document, or the options of a view's row.

    Raises:
        UsageError: options are missing, or do not belong together.
    """
    from derive.errors import UsageError

    of_document, of_row = collection is not None or key is not None, (view, row, where) != (None, None, None)
    if of_document and of_row:
        raise UsageError("--collection and --key explain a document, and --view, --row and --where a row: not both")
    if of_row and view is None:
        raise UsageError("--row and --where choose a row of a view", hint="name the view with --view")
    if not of_row and (collection is None or key is None):
        raise UsageError(
            f"{'--collection' if collection is None else '--key'} is missing",
            hint="give --collection and --key for a document, or --view and --row for a row of a SQL view",
        )


def explained_document(
    store: Store, catalog: CatalogSpec, scratch: Path, collection: str, key_text: str, clock: int | None, depth: int
) -> Trace:
    """Return the explanation of a document.

    Args:
        store: the data folder.
        catalog: the catalog.
        scratch: an empty folder, for the replay.
        collection: name of the collection.
        key_text: the key, as a JSON array or as one component.
        clock: timestamp of the value; None for the latest final one.
        depth: number of levels of derived sources to explain too.

    Raises:
        UsageError: the collection or the key is unknown.
        FrontierError: the contents are not known at the time.
    """
    from derive.errors import UsageError

    if store.tables.find(collection) is not None:
        raise UsageError(
            f"'{collection}' is a table or view of SQL, whose rows have no lambdas to replay",
            hint=f"explain a row of a view: flowctl why --view {collection} --row '{{\"column\": value}}'",
        )
    if collection not in catalog.collections:
        _refuse_view(store, catalog, collection)
    spec = catalog.find_collection(collection)
    key = key_of(spec, key_text)
    end = _end_of(store, catalog, collection, clock)
    _start_ahead(catalog, collection)
    from derive.why.explain import Explainer
    from derive.why.trace import trace

    explained = trace(Explainer(catalog, store, scratch), collection, key, end, depth)
    if explained is None:
        raise unknown_key(store, spec, key, end)
    return explained


def _refuse_view(store: Store, catalog: CatalogSpec, name: str) -> None:
    """Raise an error with the right option if the name of a collection is the name of a view of SQL.

    Raises:
        UsageError: the name belongs to a view.
    """
    from derive.errors import UsageError
    from derive.sql.catalog.snapshot import stored_objects
    from derive.sql.parser.statement import ObjectKind

    schema, _, own = name.rpartition(".")
    item = stored_objects(*store.sql_catalog.read(), store.tables, catalog).find(schema or None, own)
    if item is not None and item.kind in (ObjectKind.VIEW, ObjectKind.MATERIALIZED_VIEW):
        raise UsageError(
            f"'{name}' is a view of SQL",
            hint=f"explain one of its rows: flowctl why --view {name} --row '{{\"column\": value}}'",
        )


def _end_of(store: Store, catalog: CatalogSpec, collection: str, clock: int | None) -> int:
    """Return the timestamp after the time of an explanation; the time is the latest final time by default.

    Raises:
        FrontierError: the contents are not known at the time.
        UsageError: nothing is stored, or the contents at the time belong to a former version.
    """
    from derive.errors import FrontierError, UsageError

    known = store.collection(collection)
    if known is None or not known.segments:
        ingest = f"ingest documents: flowctl ingest --collection {collection} FILE"
        is_derived = collection in catalog.derivations
        raise UsageError(
            f"nothing is stored in '{collection}' yet",
            hint="ingest its sources, and derive it: flowctl run --until-idle" if is_derived else ingest,
        )
    end = known.upper if clock is None else clock + 1
    begins = _beginning(store, collection)
    if end <= begins:
        raise UsageError(
            f"the contents of '{collection}' before {_time(begins)} belong to a former version, and only the present"
            " version is explained",
            hint="ask for a later time; or, right after a swap, run flowctl run first",
        )
    if end > known.upper or end <= known.since:
        latest = "leave out --as-of to explain the latest final document"
        raise FrontierError(
            f"the contents of '{collection}' are exact from {_time(known.since)} on, and final before"
            f" {_time(known.upper)}; {_time(end - 1)} is outside",
            hint=latest if end > known.upper else "choose a later time: --as-of TIME",
        )
    return end


def _start_ahead(catalog: CatalogSpec, collection: str) -> None:
    """Start the process that runs the lambdas of a collection, so that it starts while this process imports modules."""
    from derive.protocol.derive import StartsAhead
    from derive.protocol.entry_points import find_runtime

    spec = catalog.derivations.get(collection)
    runtime = None if spec is None else find_runtime(spec.connector)
    if spec is not None and isinstance(runtime, StartsAhead):
        runtime.start_ahead(spec)


def _beginning(store: Store, collection: str) -> int:
    """Return the first timestamp of the contents of a collection's present version."""
    return next((version.begins for version in reversed(store.history.versions(collection))), -1)


_Above: TypeAlias = "dict[int, list[Trace | None]]"
"""Explanations of the shown rows of a view row's sources, by index of the source."""


def _explain_row(
    store: Store,
    catalog: CatalogSpec | None,
    scratch: Path,
    view: str,
    condition: str,
    clock: int | None,
    limit: int,
    depth: int,
) -> tuple[ExplainedRow, _Above]:
    """Explain a row of a view, and the documents of derived collections from which it follows."""
    from derive.cli.console import note
    from derive.errors import SqlError
    from derive.sql.catalog.snapshot import stored_objects
    from derive.sql.client import place_in
    from derive.why.explain import Explainer
    from derive.why.trace import trace
    from derive.why.views import ViewExplainer

    objects = stored_objects(*store.sql_catalog.read(), store.tables, catalog)
    try:
        explained = ViewExplainer(store, objects).explain(view, condition, clock, limit)
    except SqlError as error:
        if error.offset is not None and condition:
            error.position = place_in("the condition", condition, error.offset)
        raise
    above: _Above = {}
    for index, source in enumerate(explained.sources):
        if depth == 0 or catalog is None or source.name not in catalog.derivations:
            continue
        if explained.as_of < (begins := _beginning(store, source.name)):
            note(
                f"documents of '{source.name}' before {_time(begins)} belong to a former version, and are not explained"
            )
        else:
            running = catalog_with_shadows(store, catalog, [source.name])
            explainer = Explainer(running, store, scratch / str(index))
            keys = [source.key(row) for row in source.rows]
            above[index] = [
                trace(explainer, source.name, key, explained.as_of + 1, depth - 1) if key is not None else None
                for key in keys
            ]
    return explained, above


def _condition_of(row: str | None, where: str | None) -> str:
    """Return the condition of SQL for a row, from values of its columns and from a condition.

    Raises:
        UsageError: the row is not a JSON object.
    """
    from derive.document.exact import dump_exact, parse_exact
    from derive.errors import UsageError

    try:
        values = {} if row is None else parse_exact(row.encode())
    except ValueError as exc:
        raise UsageError(f"--row is not JSON: {exc}", hint='it is a JSON object, such as {"customer": "ann"}') from exc
    if not isinstance(values, dict):
        raise UsageError(f"--row {row} is no JSON object", hint='it names columns, such as {"customer": "ann"}')
    parts = [] if where is None else [f"({where})"]
    for name, value in values.items():
        column = '"' + name.replace('"', '""') + '"'
        text = value if isinstance(value, str) else dump_exact(value).decode()
        parts.append(f"{column} IS NULL" if value is None else column + " = '" + text.replace("'", "''") + "'")
    return " AND ".join(parts)


def _is_equal(explained: ExplainedRow, above: _Above) -> bool:
    traces = [trace for several in above.values() for trace in several if trace is not None]
    return False not in (explained.is_equal, explained.is_stored) and all(trace.is_equal for trace in traces)


def _print(explained: tuple[Trace | ExplainedRow, _Above], output: str | None) -> None:
    import sys

    from derive.cli import explanations
    from derive.document.exact import dump_exact
    from derive.why.trace import Trace

    one, above = explained
    if output in FORMS:
        from derive.cli.explanations import row_graph, trace_graph
        from derive.cli.graph import render

        graph = trace_graph(one) if isinstance(one, Trace) else row_graph(one, above)
        click.echo(visible(render(graph, output, title="")), nl=False)
    elif output == "tree" or (output is None and sys.stdout.isatty()):
        lines = explanations.trace_lines(one) if isinstance(one, Trace) else explanations.row_lines(one, above)
        explanations.print_tree(lines)
    else:
        value = explanations.trace_json(one) if isinstance(one, Trace) else explanations.row_json(one, above)
        sys.stdout.write(dump_exact(value).decode() + "\n")


def _time(clock: int) -> str:
    from derive.document.clock import format_rfc3339

    return format_rfc3339(clock)


def key_of(spec: CollectionSpec, text: str) -> bytes:
    """Return the packed key of an option: a JSON array, or one component.

    Raises:
        UsageError: the text is not a key of the collection.
    """
    from derive.cli.keys import values_of_key
    from derive.document.key import pack
    from derive.errors import UsageError

    values = values_of_key(spec, text)
    scalars = all(value is None or isinstance(value, bool | int | str) for value in values)
    if len(values) != len(spec.key) or not scalars:
        raise UsageError(
            f"--key {text} is not a key of '{spec.name}'",
            hint=f"a key is a JSON array with a value for each of [{', '.join(spec.key)}]",
        )
    return pack(values)


_MOST_KEYS = 200_000
"""Largest number of documents whose keys are compared with an unknown key."""


def unknown_key(store: Readable, spec: CollectionSpec, key: bytes, end: int) -> FlowError:
    """Return the error of a key that no document before a time has."""
    from derive.document.key import show_key
    from derive.errors import UsageError

    return UsageError(
        f"no document of '{spec.name}' up to {_time(end - 1)} has the key {show_key(key)}",
        hint=_hint_of_unknown_key(store, spec, key, end),
    )


def _hint_of_unknown_key(store: Readable, spec: CollectionSpec, key: bytes, end: int) -> str | None:
    """Return a hint: the time of the key's first document, or the most similar key; None for an empty collection."""
    from itertools import islice

    from derive.document.key import show_key, unpack
    from derive.errors import suggest
    from derive.why.scan import Match, ScanBounds, scan

    later = scan(store, spec, ScanBounds(begin=end, match=Match.of_keys([key])))
    first = min((row.clock for row in later), default=None)
    if first is not None:
        return f"its first document has the time {_time(first)}: give this time or a later one as --as-of"
    converted = scan(store, spec, ScanBounds(end=end, match=Match.of_keys(_converted(key))))
    guess = next((show_key(row.key) for row in converted), None)
    if guess is None:
        keys = {row.key for row in islice(scan(store, spec, ScanBounds(end=end)), _MOST_KEYS)}
        if not keys:
            return None
        has_texts = any(isinstance(component, str) for component in unpack(key))
        guess = suggest(show_key(key), sorted(map(show_key, keys))) if has_texts else None
        if guess is None:
            return f"one key is '{show_key(min(keys))}'"
    return f"did you mean '{guess}'?"


def _converted(key: bytes) -> list[bytes]:
    """Return the packed keys that differ from a key in that integers are texts, or texts of integers are integers."""
    from itertools import islice, product

    from derive.document.key import pack, unpack

    def both(component: JSON) -> list[JSON]:
        if isinstance(component, int) and not isinstance(component, bool):
            return [component, str(component)]
        is_integer = isinstance(component, str) and re.fullmatch(r"-?\d{1,18}", component, re.ASCII)
        return [component, int(component)] if is_integer else [component]

    return [pack(list(components)) for components in islice(product(*map(both, unpack(key))), 1, 64)]
