"""`flowctl check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from derive.cli.options import catalog_options, data_folder, open_store, output_option, stored_folder
from derive.plural import counted

if TYPE_CHECKING:
    from derive.errors import Issue
    from derive.protocol.specs import CatalogSpec
    from derive.storage.roles import Maintainable

_COLUMNS = ("code", "message", "file", "line", "column", "length", "hint")


@click.command()
@catalog_options
@output_option
def command(source: Path, data: Path | None, output: str | None) -> None:
    """Report the errors of a catalog: structure, references, keys, SQL, TypeScript, materializations.

    The check has steps: the form of the files, then names and keys, then the migrations of each derivation, then its
    lambdas. Each step reports all its errors at once, and the next step follows when there are none.

    The connector of each materialization validates its bindings. A missing database or secret is a warning, not an
    error. If there is a data folder, two more errors are found: a derived collection that belongs to another
    writer in the folder, such as `flowctl ingest`; and a table with two rows of a key, if an endpoint stores one row
    for each key.

    With -o json, each error is one object per line, in file order: code ("E" and three digits), message, file, line and
    column (from 1), length (characters to underline), and hint (or null).

    \b
    Exit codes: 0 without errors, 1 with errors, 2 if the command line is wrong.

    \b
    Example:
      flowctl check --source examples/flow.yaml -o json
    """
    from derive.catalog.build import check_catalog, with_issues
    from derive.cli.console import describe_error, note, print_rows, print_warning
    from derive.errors import CatalogError

    built = check_catalog(source)
    with _stored(source, data) as store:
        if built.spec.materializations:
            from derive.engine.unique_keys import duplicate_issues
            from derive.materialize.connector import Connectors
            from derive.materialize.preparation import check_materializations

            specs = built.spec.materializations.values()
            with Connectors() as connectors:
                issues = check_materializations(
                    specs, connectors, lambda prepared: _read(duplicate_issues(prepared, store)) if store else ()
                )
            built = with_issues(built, issues)
        if store:
            built = with_issues(built, _read(owner_issues(built.spec, store)))
    error = CatalogError(built.issues)
    if output == "json":
        print_rows(_COLUMNS, describe_error(error), "json")
    if error.issues:
        raise error if output != "json" else click.exceptions.Exit(1)
    spec = built.spec
    for issue in built.notes:
        print_warning(issue)
    counts = {"collection": len(spec.collections), "derivation": len(spec.derivations)}
    if spec.materializations:
        counts["materialization"] = len(spec.materializations)
    summary = ", ".join(counted(count, noun) for noun, count in counts.items())
    warnings = f", {counted(len(built.notes), 'warning')}" if built.notes else ""
    note(f"{source}: {summary}, no errors{warnings}")


@contextmanager
def _stored(source: Path, data: Path | None) -> Iterator[Maintainable | None]:
    """Yield the data folder of the catalog, open for reading; None if there is none, or it cannot be read."""
    if data is None and not data_folder(source, None).exists():
        yield None  # without the imports below, which take as long as a small catalog
        return
    from derive.cli.console import note
    from derive.errors import StorageError, UsageError
    from derive.storage.metadata.opening import is_data_folder

    with ExitStack() as stack:
        store = None
        try:
            folder = stored_folder(source, data)
        except UsageError as error:
            note(f"the catalog was not checked against a data folder: {error}")
            yield None
            return
        try:
            if is_data_folder(folder):
                store = stack.enter_context(closing(open_store(folder, reading=True)))
        except StorageError as error:
            note(f"the catalog was not checked against the data folder, which could not be read: {error}")
        yield store


def _read(issues: Iterable[Issue]) -> list[Issue]:
    """Return issues that are found in the data folder; none if it cannot be read."""
    from derive.cli.console import note
    from derive.errors import StorageError

    try:
        return list(issues)
    except StorageError as error:
        note(f"the catalog was not checked against the data folder, which could not be read: {error}")
        return []


def owner_issues(catalog: CatalogSpec, store: Maintainable) -> Iterator[Issue]:
    """Yield an issue for each derived collection that belongs to another writer, because a run would stop its task.

    Args:
        catalog: the catalog, which has no names of SQL.
        store: the data folder, which may be read-only.
    """
    from derive.errors import Issue, OwnedError
    from derive.protocol.collection import is_of_sql
    from derive.storage.metadata.owner import Door

    for name, derivation in catalog.derivations.items():
        try:
            if not is_of_sql(name):
                store.require_open(name, Door.TASK)
        except OwnedError as error:
            yield Issue("E106", error.message, derivation.collection.position, error.hint)
