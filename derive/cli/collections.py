"""`flowctl collections`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from derive.cli.options import (
    catalog_options,
    catalog_with_shadows,
    clock_of,
    local_option,
    open_store,
    output_option,
    quiet_option,
    stored_folder,
    wide_option,
)
from derive.cli.pipes import is_unread
from derive.plural import counted

if TYPE_CHECKING:
    from derive.contents.reads import ReadOptions
    from derive.contents.reduced import Versions
    from derive.protocol.specs import CatalogSpec, CollectionSpec, SelectorSpec
    from derive.sql.row_filter import DocumentFilter
    from derive.storage.capability.table import Capability
    from derive.storage.location import Location
    from derive.storage.roles import Maintainable, Readable
    from derive.storage.segments.rows import ContentRows, ReadRows
    from derive.storage.store import Store
    from derive.time.positions import SourceRead

Show: TypeAlias = "Callable[[ContentRows | ReadRows], str]"
"""A function that formats documents as lines of text."""

_POLL_MILLISECONDS = 200


@click.group()
def command() -> None:
    """List collections, read their documents, and remove ingested collections.

    \b
    Examples:
      flowctl collections list
      flowctl collections read --collection acmeBank/balances --reduce
    """


@command.command("list")
@catalog_options
@output_option
@wide_option
@click.option(
    "--all", "with_internal", is_flag=True, help="List also the collections that the SQL catalog keeps for itself."
)
@quiet_option
def list_command(source: Path, data: Path | None, output: str | None, *, wide: bool, with_internal: bool) -> None:
    """List collections and tables: sizes, the times between which contents are known exactly, and holders.

    The list shows a time for each holder. A reader keeps the history of a collection from its time on. A writer keeps
    `upper` at or below its time, because later times are not complete yet.

    \b
    Examples:
      flowctl collections list
      flowctl collections list --wide
      flowctl collections list -o json | jq 'select(.documents > 0).collection'
    """
    from derive.catalog import load_without_tests
    from derive.cli.console import print_rows
    from derive.protocol.collection import is_internal

    catalog = load_without_tests(source)
    with closing(open_store(stored_folder(source, data), reading=True)) as store:
        keys = {name: spec.key for name, spec in catalog.collections.items()}
        keys.update(
            {table.name: table.key for table in store.tables.all() if with_internal or not is_internal(table.name)}
        )
        rows = [collection_row(store, catalog, name, key) for name, key in keys.items()]
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
    "former versions",
)
_SPARE = ("former versions", "readers", "writers", "id", "since", "segments", "key", "bytes", "upper", "derived")


def collection_row(store: Maintainable, catalog: CatalogSpec, name: str, key: Sequence[str]) -> dict[str, Any]:
    """Return the row of a collection or table, as `flowctl collections list -o json` prints it."""
    from derive.document.clock import format_rfc3339

    known, frontiers = store.collection(name), store.history.frontiers(name)
    identifier = store.tables.id_of(name)
    stored = known.documents if known else 0
    if name not in catalog.collections and identifier is not None:
        stored = store.tables.updates_of([identifier])  # the last rows of a table may be in no file
    return {
        "collection": name,
        "id": identifier,
        "key": ", ".join(key),
        "documents": stored,
        "segments": known.segments if known else 0,
        "bytes": known.bytes if known else 0,
        "since": format_rfc3339(known.since) if known else None,
        "upper": format_rfc3339(known.upper) if known else None,
        "readers": list(map(_described, frontiers.readers)) if frontiers else [],
        "writers": list(map(_described, frontiers.writers)) if frontiers else [],
        "former versions": [
            f"version {version.number} until {format_rfc3339(version.ends)}"
            for version in store.history.versions(name)
            if version.ends is not None
        ],
        "derived": "yes" if name in catalog.derivations else "no",
    }


def _described(capability: Capability) -> str:
    """Return the holder of a capability, and the time of its frontier, as text."""
    from derive.document.clock import format_rfc3339

    return f"{capability.holder} from {format_rfc3339(capability.frontier)} on"


@command.command("read")
@catalog_options
@click.option("--collection", required=True, help="The collection to read.")
@click.option("--reduce", "reduced", is_flag=True, help="One document per key, reduced by the schema's annotations.")
@click.option("--since", metavar="TIME", help="Only documents published at or after this time.")
@click.option("--as-of", metavar="TIME", help="The contents at this time.")
@click.option(
    "--key", "keys", multiple=True, metavar="JSON", help="Only this key: a JSON array of its values (repeatable)."
)
@click.option("--where", metavar="EXPR", help="Only documents for which this condition of SQL is true.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N documents.")
@click.option("--history", is_flag=True, help="All versions of one key, each with the time of its publication.")
@click.option("--follow", is_flag=True, help="Continue with documents as they become final, until Ctrl-C.")
@click.option("--progress", is_flag=True, help='With --follow, print progress lines {"_meta":{"upper":TIME}}.')
@click.option("--partitions", metavar="JSON", help='Logical partitions: \'{"include": {"field": ["value"]}}\'.')
@click.option("-o", "--output", hidden=True, expose_value=False, callback=lambda *given: _only_json(given[2]))
@click.option("--uuid", is_flag=True, help="Add /_meta/uuid, which holds the publication time.")
@click.option("--master", help="Spark master URL, for --reduce.  [default: this machine]")
@local_option
@quiet_option
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
    keys: Sequence[str],
    where: str | None,
    limit: int | None,
    reduced: bool,
    history: bool,
    follow: bool,
    progress: bool,
    uuid: bool,
) -> None:
    """Print documents of a collection, one JSON object per line.

    A time is 2024-01-31T12:00:00Z (RFC 3339), a time as SQL prints it, or a duration before now: 30s, 15m,
    1h, 7d.

    With --follow, a note after each batch gives the time before which everything is printed. To resume, pass this time
    to --since. With --follow --reduce, each changed document is printed as it is after the change; a deleted one has
    its key and {"_meta":{"op":"d"}}.

    A condition of --where uses the columns that the collection has in SQL. Without --reduce and --history, the
    condition is applied to each published document.

    \b
    Examples:
      flowctl collections read --collection acmeBank/balances --reduce
      flowctl collections read --collection acmeBank/balances --reduce \\
        --key '["ann"]' --key '["ben"]'
      flowctl collections read --collection acmeBank/balances --reduce \\
        --where 'balance < 0' --limit 10
      flowctl collections read --collection acmeBank/balances --history \\
        --key '["ann"]'
      flowctl collections read --collection acmeBank/transfer-outcomes \\
        --partitions '{"include":{"outcome":["deny"]}}'
      flowctl collections read --collection acmeBank/first-send --follow \\
        | jq .sender
    """
    from derive.catalog import load_without_tests
    from derive.cli.keys import packed_keys
    from derive.contents.reads import ReadOptions
    from derive.contents.reduced import follow_reduced
    from derive.protocol.collection import owner_of_version, task_of

    _check_follow(as_of, where, reduced=reduced, follow=follow, progress=progress)
    if history:
        _check_history(keys, partitions, reduced=reduced, uuid=uuid)
    catalog = load_without_tests(source)
    if owner_of_version(task_of(collection) or collection) is None:
        catalog.find_collection(collection)  # before the wait for a data folder
    begin, at = clock_of("--since", since), clock_of("--as-of", as_of)
    show = _with_time if history else _with_uuid if uuid else _as_it_is
    with ExitStack() as stack:
        store = stack.enter_context(closing(_opened(stored_folder(source, data), waits=follow)))
        spec = catalog_with_shadows(store, catalog, [collection]).find_collection(collection)
        known = store.collection(spec.name)
        if known is None and not follow and at is None:
            _note_nothing(store, catalog, spec, at, 0)
            return
        printer = _Printer(Chosen(spec, where, begin if history else None, limit), show)
        stored = store.read_as(store.tables.as_stored(spec), at)
        options = ReadOptions(
            None if history else begin, at, selector_from(stored, partitions), packed_keys(stored, keys)
        )
        versions = _kept_versions(store, spec, stored) if history else None
        read = partial(_reduced, store, spec, master=master, local_documents=local_documents)
        if follow and reduced:
            updates = follow_reduced(store, stored, options, read, _check_output)
            _follow(stack.enter_context(closing(updates)), printer, in_stream=progress)
        elif follow:
            published = _published(store, spec, options, versions)
            _follow(stack.enter_context(closing(published)), printer, in_stream=progress)
        else:
            stored_rows = read(options) if reduced else _stored_rows(store, spec, options, versions)
            parts = stack.enter_context(closing(stored_rows))
            printer.print_all(_showing(parts, spec.name, known.documents) if known and not reduced else parts)
            _note_nothing(store, catalog, stored, at, printer.count)


def _note_nothing(store: Readable, catalog: CatalogSpec, spec: CollectionSpec, clock: int | None, printed: int) -> None:
    """Print a note if no document was printed, because a collection has none, or none as early as a time."""
    from derive.cli.console import note
    from derive.document.clock import format_rfc3339

    if printed:
        return
    name, first = spec.name, min((segment.clock_min for segment in store.segments(spec)), default=None)
    if first is not None and clock is not None and first > clock:
        at, since = format_rfc3339(clock), format_rfc3339(first)
        note(f"no documents in '{name}' as of {at}; its first document is of {since}")
    elif first is None:
        ways = dict.fromkeys(catalog.collections, f"; load some: flowctl ingest --collection {name} FILE")
        ways |= dict.fromkeys(catalog.derivations, "; derive them: flowctl run --until-idle")
        note(f"'{name}' has no documents{ways.get(name, '')}")


def _only_json(output: str | None) -> None:
    """Refuse formats that other commands have, and name the command that prints a collection as a table."""
    from derive.errors import UsageError

    if output not in {None, "json"}:
        raise UsageError(
            f"documents are printed as JSON, and not as {output}",
            hint="as a table: flowctl sql -c 'SELECT * FROM \"NAME\"' -o table",
        )


@command.command("truncate")
@catalog_options
@click.option("--collection", required=True, help="The ingested collection.")
@quiet_option
def truncate_command(source: Path, data: Path | None, collection: str) -> None:
    """Remove all documents of an ingested collection.

    The collection begins a new history, in which all clocks are free and no load was ingested. A task that has read the
    former history stops with an error; with 'onSourceReset: follow', it reads the new history.

    \b
    Examples:
      flowctl collections truncate --collection acmeBank/transfers
    """
    from derive.cli.console import note

    with _stored(source, data, collection) as store:
        store.truncate(collection)
    note(f"'{collection}' has no documents")


@command.command("drop")
@catalog_options
@click.option("--collection", required=True, help="The ingested collection.")
@click.option("--force", is_flag=True, help="Remove it although tasks of the catalog or processes read it.")
@quiet_option
def drop_command(source: Path, data: Path | None, collection: str, *, force: bool) -> None:
    """Remove an ingested collection from the data folder: its documents, its files and its name.

    The command refuses a collection that a task of the catalog reads. A command that was interrupted may be repeated.

    \b
    Examples:
      flowctl collections drop --collection acmeBank/former-transfers
      flowctl collections drop --collection acmeBank/transfers --force
    """
    from derive.cli.console import note
    from derive.cli.options import optional_catalog
    from derive.errors import UsageError

    catalog = optional_catalog(source, data)
    tasks = catalog.tasks.items() if catalog is not None else ()
    readers = [name for name, task in tasks if collection in task.sources]
    if readers and not force:
        raise UsageError(
            f"{', '.join(readers)} {'reads' if len(readers) == 1 else 'read'} '{collection}'",
            hint="remove them from the catalog, or add --force",
        )
    with _stored(source, data, collection) as store:
        store.drop(collection, force=force)
    note(f"'{collection}' is dropped")


@contextmanager
def _stored(source: Path, data: Path | None, collection: str) -> Iterator[Store]:
    """Open the data folder that has a collection.

    Raises:
        UsageError: nothing is stored under the name.
    """
    from derive.errors import UsageError

    with closing(open_store(stored_folder(source, data))) as store:
        if store.collection(collection) is None:
            raise UsageError(
                f"no collection '{collection}' is stored", hint="list the collections: flowctl collections list"
            )
        yield store


def _opened(folder: Path, *, waits: bool) -> Store:
    """Open a data folder; for --follow, wait until the folder exists."""
    from derive.storage.metadata.opening import is_data_folder

    if waits:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # supervisors send SIGTERM: treat it as Ctrl-C
    while waits and not is_data_folder(folder):
        _check_output(_POLL_MILLISECONDS)
    return open_store(folder, reading=True)


def _check_follow(as_of: str | None, where: str | None, *, reduced: bool, follow: bool, progress: bool) -> None:
    """Refuse options that make no sense with or without --follow."""
    from derive.errors import UsageError

    if follow and as_of is not None:
        raise UsageError("--follow never ends, so it cannot be combined with --as-of")
    if follow and reduced and where is not None:
        raise UsageError("--follow --reduce prints every changed document, so it cannot be combined with --where")
    if progress and not follow:
        raise UsageError("--progress needs --follow")


def _check_history(keys: Sequence[str], partitions: str | None, *, reduced: bool, uuid: bool) -> None:
    """Refuse options that make no sense with --history."""
    from derive.errors import UsageError

    if len(keys) != 1:
        raise UsageError("--history prints the versions of one key, so it needs one --key")
    if reduced:
        raise UsageError("--history reduces the documents of each version, so it cannot be combined with --reduce")
    if uuid:
        raise UsageError("--history prints the time of each version, so it cannot be combined with --uuid")
    if partitions is not None:
        raise UsageError("--history needs all documents of the key, so it cannot be combined with --partitions")


class Chosen:
    """Selects rows from a time on for which a condition is true, up to a number of rows.

    Args:
        spec: the collection.
        where: the condition; None for none.
        begin: the first timestamp; None for any.
        limit: the number of rows; None for no limit.

    Attributes:
        left: number of rows that may still be selected; None for no limit.

    Raises:
        SqlError: the condition is invalid; the error has the position of the cause.
    """

    def __init__(self, spec: CollectionSpec, where: str | None, begin: int | None, limit: int | None) -> None:
        self._where = where or ""
        self._begin = begin
        self.left = limit
        self._filter: DocumentFilter | None = None
        if where is not None:
            from derive.sql.row_filter import DocumentFilter

            with self._located():
                self._filter = DocumentFilter(spec, where)

    def of(self, rows: ContentRows | ReadRows) -> ContentRows | ReadRows:
        """Return the rows that the options select."""
        if self._begin is not None:
            rows = rows.filter([clock >= self._begin for clock in _clocks(rows)])
        if self._filter is not None and len(rows):
            documents, clocks = rows.documents(), _clocks(rows)
            present = [index for index, document in enumerate(documents) if document is not None]
            with self._located():
                kept = self._filter.indices([documents[index] for index in present], [clocks[at] for at in present])
            rows = rows.take([present[index] for index in kept])
        if self.left is not None:
            rows = rows.slice(0, self.left)
            self.left -= len(rows)
        return rows

    def _located(self) -> AbstractContextManager[None]:
        """Add positions in the condition to errors of SQL."""
        from derive.sql.client import located

        return located("--where", self._where, 0)


def _clocks(rows: ContentRows | ReadRows) -> list[int]:
    return [clock for clock, *_ in rows.tuples()]


class _Printer:
    """Prints the selected rows.

    Args:
        chosen: the selection.
        show: formats rows.

    Attributes:
        count: number of printed rows.
    """

    def __init__(self, chosen: Chosen, show: Show) -> None:
        self._chosen = chosen
        self._show = show
        self.count = 0

    @property
    def is_done(self) -> bool:
        """Return whether no more rows will be printed."""
        return self._chosen.left == 0

    def print(self, rows: ContentRows | ReadRows) -> None:
        """Print the rows that the options select."""
        rows = self._chosen.of(rows)
        if len(rows):
            sys.stdout.write(self._show(rows))
        self.count += len(rows)

    def print_all(self, parts: Iterable[ContentRows | ReadRows]) -> None:
        """Print the selected rows among all rows."""
        for rows in parts:
            self.print(rows)
            if self.is_done:
                return


def selector_from(spec: CollectionSpec, partitions: str | None) -> SelectorSpec:
    """Return the selection of logical partitions that a JSON text describes; None selects all."""
    import orjson

    from derive.contents.reads import selector_of
    from derive.errors import UsageError

    try:
        selection = orjson.loads(partitions) if partitions else {}
    except orjson.JSONDecodeError as exc:
        raise UsageError(f"--partitions is not JSON: {exc}") from exc
    if not isinstance(selection, dict):
        raise UsageError(
            "--partitions takes a JSON object", hint='for example: --partitions \'{"include": {"status": ["open"]}}\''
        )
    return selector_of(spec, selection)


def _kept_versions(store: Readable, spec: CollectionSpec, stored: CollectionSpec) -> Versions:
    """Return the reduction to versions of a key, after a note if earlier versions are lost."""
    from derive.contents.reduced import Versions

    _note_compaction(store, spec)
    return Versions(stored)


def _note_compaction(store: Readable, spec: CollectionSpec) -> None:
    """Print a note if earlier versions of keys are lost."""
    from derive.cli.console import note
    from derive.contents.reads import compacted_before
    from derive.document.clock import format_rfc3339

    if (since := compacted_before(store, spec)) is not None:
        note(
            f"the history of '{spec.name}' before {format_rfc3339(since)} is compacted: a key has only its last version"
            " of that time",
            level="warn",
        )


def _showing(parts: Iterable[ContentRows | ReadRows], work: str, total: int) -> Iterator[ContentRows | ReadRows]:
    """Yield rows, and show their number unless the terminal shows the rows themselves."""
    from derive.cli.console import Progress

    if sys.stdout.isatty():
        yield from parts
        return
    count = 0
    with Progress() as progress:
        progress.show(work, 0, total)
        for rows in parts:
            count += len(rows)
            progress.show(work, count, total)
            yield rows


def _stored_rows(
    store: Readable, spec: CollectionSpec, options: ReadOptions, versions: Versions | None
) -> Generator[ContentRows] | Generator[ReadRows]:
    return updates_of(store, spec, options) if versions is None else versions_of(store, spec, options, versions)


def versions_of(
    store: Readable, spec: CollectionSpec, options: ReadOptions, versions: Versions
) -> Generator[ContentRows]:
    """Yield all versions of one key."""
    from derive.contents.reads import read_rows

    for rows in read_rows(store, spec, options):
        yield versions.take(rows)
    yield versions.finish()


def updates_of(store: Readable, spec: CollectionSpec, options: ReadOptions) -> Generator[ReadRows]:
    """Yield published documents, in the order of their times."""
    from derive.contents.reads import read_rows
    from derive.storage.segments.rows import with_deletions

    for rows in read_rows(store, spec, options):
        yield with_deletions(rows)


def _reduced(
    store: Readable, spec: CollectionSpec, options: ReadOptions, *, master: str | None, local_documents: int | None
) -> Generator[ContentRows]:
    from derive.contents.reduced import ChosenRows, is_little, read_reduced, reduced_locally
    from derive.spark.session import start_seconds

    cores = os.cpu_count() if master is None or master.startswith("local") else None
    with TemporaryDirectory(prefix="flowctl-") as elsewhere:
        folder = store.root if os.access(store.root, os.W_OK) else Path(elsewhere)

        def reduced(location: Location, spec: CollectionSpec, read: SourceRead) -> Iterator[ContentRows]:
            if options.keys is not None or is_little(read, local_documents, cores, start_seconds(master)):
                return reduced_locally(location, spec, read, folder, chosen=ChosenRows(conditions=options.conditions))
            return _reduced_on_spark(location, spec, read, master, folder / "logs" / "spark.log")

        yield from read_reduced(store, spec, options, reduced)


def _reduced_on_spark(
    location: Location, spec: CollectionSpec, read: SourceRead, master: str | None, log: Path
) -> Iterator[ContentRows]:
    from derive.spark.executor import SparkExecutor, reduced_on_spark

    with closing(SparkExecutor(master, log)) as executor:
        yield from reduced_on_spark(executor, location, spec, read)


def _published(
    store: Readable, spec: CollectionSpec, options: ReadOptions, versions: Versions | None
) -> Generator[ContentRows | ReadRows | int]:
    """Yield published documents, or the versions of a key, and the times before which all were yielded."""
    from derive.contents.reads import subscribe_at
    from derive.storage.segments.rows import with_deletions

    with closing(subscribe_at(store, spec, options, _check_output)) as updates:
        for update in updates:
            if isinstance(update, int):
                if versions is not None:
                    yield versions.finish()
                yield update
            else:
                yield with_deletions(update) if versions is None else versions.take(update)


def _follow(updates: Iterator[ContentRows | ReadRows | int], printer: _Printer, *, in_stream: bool) -> None:
    """Print rows, and the times before which all are printed.

    The end is a closed standard output, Ctrl-C, or the limit of the printer.
    """
    from derive.cli.console import note
    from derive.document.clock import format_rfc3339

    noted = 0
    upper: int | None = None
    try:
        for update in updates:
            if not isinstance(update, int):
                printer.print(update)
                if printer.is_done:
                    return
                continue
            upper = update
            printed = printer.count - noted
            noted = printer.count
            if in_stream:
                sys.stdout.write(f'{{"_meta":{{"upper":"{format_rfc3339(upper)}"}}}}\n')
            elif printed:
                note(f"{counted(printed, 'document')} before {format_rfc3339(upper)}")
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


def _with_time(rows: ContentRows | ReadRows) -> str:
    """Format versions of a key, each with its time; a deletion is null."""
    from derive.document.clock import format_rfc3339

    return "".join(
        f'{{"published_at":"{format_rfc3339(clock)}","document":{text}}}\n' for clock, _, _, text in rows.tuples()
    )


def _with_uuid(rows: ContentRows | ReadRows) -> str:
    from derive.document.clock import document_uuid
    from derive.document.exact import dump_exact, parse_exact

    lines = []
    for clock, seq, key, text in rows.tuples():
        document = parse_exact(text.encode())
        document["_meta"] = {**document.get("_meta", {}), "uuid": document_uuid(clock, seq, key)}
        lines.append(dump_exact(document).decode() + "\n")
    return "".join(lines)
