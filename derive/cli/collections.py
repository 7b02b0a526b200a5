"""`flowctl collections`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from derive.cli.options import (
    catalog_options,
    clock_of,
    local_option,
    open_store,
    output_option,
    stored_folder,
    wide_option,
)
from derive.cli.pipes import is_unread

if TYPE_CHECKING:
    from derive.contents.reads import ReadOptions
    from derive.protocol.specs import CatalogSpec, CollectionSpec, SelectorSpec
    from derive.storage.capability.table import Capability
    from derive.storage.roles import Maintainable, Readable
    from derive.storage.segments.rows import ContentRows, ReadRows
    from derive.time.source_read import SourceRead

Show: TypeAlias = "Callable[[ContentRows | ReadRows], str]"
"""A function that formats documents as lines of text."""

_POLL_MILLISECONDS = 200


@click.group()
def command() -> None:
    """List collections, and read their documents."""


@command.command("list")
@catalog_options
@output_option
@wide_option
@click.option(
    "--all", "with_internal", is_flag=True, help="List also the collections that the SQL catalog keeps for itself."
)
def list_command(source: Path, data: Path | None, output: str | None, *, wide: bool, with_internal: bool) -> None:
    """List collections and tables: sizes, the times between which their contents are known exactly, and who holds them.

    A reader keeps the contents of a collection from a time on. A writer keeps the collection from being final at later
    times.

    \b
    Examples:
      flowctl collections list
      flowctl collections list --wide
      flowctl collections list -o json | jq 'select(.documents > 0).collection'
    """
    from derive.catalog import load_without_tests
    from derive.cli.console import print_rows
    from derive.protocol.sql_names import is_internal

    catalog = load_without_tests(source)
    with closing(open_store(stored_folder(source, data), reading=True)) as store:
        keys = {name: spec.key for name, spec in catalog.collections.items()}
        keys.update(
            {table.name: table.key for table in store.tables.all() if with_internal or not is_internal(table.name)}
        )
        rows = [_listed(store, name, key) | _derived(catalog, name) for name, key in keys.items()]
    print_rows(_LISTED, rows, output, spare=_SPARE, wide=wide)


_LISTED = (
    "collection",
    "id",
    "key",
    "derived",
    "documents",
    "segments",
    "bytes",
    "since",
    "upper",
    "readers",
    "writers",
)
_SPARE = ("readers", "writers", "id", "since", "segments", "key", "bytes", "upper", "derived")


def _derived(catalog: CatalogSpec, name: str) -> dict[str, Any]:
    return {"derived": "yes" if name in catalog.derivations else "no"}


def _listed(store: Maintainable, name: str, key: Sequence[str]) -> dict[str, Any]:
    from derive.document.clock import format_rfc3339

    known, frontiers = store.collection(name), store.history.frontiers(name)
    return {
        "collection": name,
        "id": store.tables.id_of(name),
        "key": ", ".join(key),
        "documents": known.documents if known else 0,
        "segments": known.segments if known else 0,
        "bytes": known.bytes if known else 0,
        "since": format_rfc3339(known.since) if known else None,
        "upper": format_rfc3339(known.upper) if known else None,
        "readers": list(map(_described, frontiers.readers)) if frontiers else [],
        "writers": list(map(_described, frontiers.writers)) if frontiers else [],
    }


def _described(capability: Capability) -> str:
    """Return the holder of a capability, and the time of its frontier, as text."""
    from derive.document.clock import format_rfc3339

    return f"{capability.holder} from {format_rfc3339(capability.frontier)} on"


@command.command("read")
@catalog_options
@click.option("--collection", required=True, help="The collection to read.")
@click.option("--reduce", "reduced", is_flag=True, help="One document per key, reduced by the schema's annotations.")
@click.option("--since", metavar="TIME", help="Only documents published at or after this RFC 3339 time.")
@click.option("--as-of", metavar="TIME", help="The contents at this RFC 3339 time.")
@click.option("--follow", is_flag=True, help="Continue with documents as they become final, until Ctrl-C.")
@click.option("--progress", is_flag=True, help='With --follow, print progress lines {"_meta":{"upper":TIME}}.')
@click.option("--partitions", metavar="JSON", help='Logical partitions: \'{"include": {"field": ["value"]}}\'.')
@click.option("--uuid", is_flag=True, help="Add /_meta/uuid, which holds the publication time.")
@click.option("--master", help="Spark master URL, for --reduce.  [default: this machine]")
@local_option
def read_command(
    source: Path,
    data: Path | None,
    collection: str,
    since: str | None,
    as_of: str | None,
    partitions: str | None,
    master: str | None,
    local_documents: int | None,
    *,
    reduced: bool,
    follow: bool,
    progress: bool,
    uuid: bool,
) -> None:
    """Print documents of a collection, one JSON object per line.

    With --follow, a note after each batch gives the time before which everything is printed. To resume, pass this time
    to --since.

    \b
    Examples:
      flowctl collections read --collection acmeBank/balances --reduce
      flowctl collections read --collection acmeBank/transfer-outcomes --partitions '{"include":{"outcome":["deny"]}}'
      flowctl collections read --collection acmeBank/first-send --follow | jq .sender
    """
    from derive.catalog import load_without_tests
    from derive.contents.reads import ReadOptions
    from derive.errors import UsageError
    from derive.storage.metadata.opening import is_data_folder

    if follow and (reduced or as_of is not None):
        raise UsageError(f"--follow never ends, so it cannot be combined with {'--reduce' if reduced else '--as-of'}")
    if progress and not follow:
        raise UsageError("--progress needs --follow")
    spec = load_without_tests(source).find_collection(collection)
    options = ReadOptions(clock_of("--since", since), clock_of("--as-of", as_of), _selector(spec, partitions))
    folder = stored_folder(source, data)
    show = _with_uuid if uuid else _as_it_is
    if follow:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # supervisors send SIGTERM: treat it as Ctrl-C
    with ExitStack() as stack:
        while follow and not is_data_folder(folder):
            _check_output(_POLL_MILLISECONDS)
        store = stack.enter_context(closing(open_store(folder, reading=True)))
        if follow:
            _follow(store, spec, options, show, in_stream=progress)
            return
        parts = _reduced(store, spec, options, master, local_documents) if reduced else _history(store, spec, options)
        with closing(parts):
            for rows in parts:
                sys.stdout.write(show(rows))


def _selector(spec: CollectionSpec, partitions: str | None) -> SelectorSpec:
    import orjson

    from derive.contents.reads import selector_of
    from derive.errors import UsageError

    try:
        selection = orjson.loads(partitions) if partitions else {}
    except orjson.JSONDecodeError as exc:
        raise UsageError(f"--partitions is not JSON: {exc}") from exc
    if not isinstance(selection, dict):
        raise UsageError("--partitions takes a JSON object")
    return selector_of(spec, selection)


def _history(store: Readable, spec: CollectionSpec, options: ReadOptions) -> Generator[ReadRows]:
    from derive.contents.reads import read_rows
    from derive.storage.segments.consolidation import with_deletions

    for rows in read_rows(store, spec, options):
        yield with_deletions(rows)


def _reduced(
    store: Readable, spec: CollectionSpec, options: ReadOptions, master: str | None, local_documents: int | None
) -> Generator[ContentRows]:
    from derive.contents.reduced import is_little, read_reduced, reduced_locally
    from derive.spark.session import start_seconds

    cores = os.cpu_count() if master is None or master.startswith("local") else None
    with TemporaryDirectory(prefix="flowctl-") as elsewhere:
        folder = store.root if os.access(store.root, os.W_OK) else Path(elsewhere)

        def reduced(root: Path, spec: CollectionSpec, read: SourceRead) -> Iterator[ContentRows]:
            if is_little(read, local_documents, cores, start_seconds(master)):
                return reduced_locally(root, spec, read, folder)
            return _reduced_on_spark(root, spec, read, master, folder / "logs" / "spark.log")

        yield from read_reduced(store, spec, options, reduced)


def _reduced_on_spark(
    root: Path, spec: CollectionSpec, read: SourceRead, master: str | None, log: Path
) -> Iterator[ContentRows]:
    from derive.spark.executor import SparkExecutor
    from derive.spark.reduced_read import reduced_on_spark

    with closing(SparkExecutor(master, log)) as executor:
        yield from reduced_on_spark(executor, root, spec, read)


def _follow(store: Readable, spec: CollectionSpec, options: ReadOptions, show: Show, *, in_stream: bool) -> None:
    """Print documents, and the time before which all are printed, until standard output is closed."""
    from derive.cli.console import note
    from derive.contents.reads import subscribe_at
    from derive.document.clock import format_rfc3339
    from derive.storage.segments.consolidation import with_deletions

    printed = 0
    upper: int | None = None
    try:
        with closing(subscribe_at(store, spec, options, _check_output)) as updates:
            for update in updates:
                if not isinstance(update, int):
                    sys.stdout.write(show(with_deletions(update)))
                    printed += len(update)
                    continue
                upper = update
                if in_stream:
                    sys.stdout.write(f'{{"_meta":{{"upper":"{format_rfc3339(upper)}"}}}}\n')
                elif printed:
                    note(f"{printed:,} document{'' if printed == 1 else 's'} before {format_rfc3339(upper)}")
                printed = 0
                sys.stdout.flush()
    except KeyboardInterrupt:
        note(f"stopped; resume with --since {format_rfc3339(upper)}" if upper is not None else "stopped")


def _check_output(milliseconds: int = 0) -> None:
    """Raise an error if standard output is closed, or becomes closed within a time.

    Raises:
        BrokenPipeError: standard output is a pipe whose other end is closed.
    """
    sys.stdout.flush()
    if is_unread(sys.stdout, milliseconds):
        raise BrokenPipeError


def _as_it_is(rows: ContentRows | ReadRows) -> str:
    return "\n".join([*rows.texts.to_pylist(), ""])


def _with_uuid(rows: ContentRows | ReadRows) -> str:
    from derive.document.clock import document_uuid
    from derive.document.exact import dump_exact, parse_exact

    lines = []
    for clock, seq, key, text in rows.tuples():
        document = parse_exact(text.encode())
        document["_meta"] = {**document.get("_meta", {}), "uuid": document_uuid(clock, seq, key)}
        lines.append(dump_exact(document).decode() + "\n")
    return "".join(lines)
