"""`flowctl check`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from derive.cli.options import catalog_options, data_folder, open_store, output_option

if TYPE_CHECKING:
    from derive.errors import Issue
    from derive.protocol.specs import CatalogSpec
    from derive.storage.roles import Maintainable

_COLUMNS = ("code", "message", "file", "line", "column", "length", "hint")


@click.command()
@catalog_options
@output_option
def command(source: Path, data: Path | None, output: str | None) -> None:
    """Report every error in a catalog: structure, references, keys, SQL, TypeScript, materializations.

    The connector of each materialization validates its bindings. A database or a secret that is missing is reported as
    a note, and is no error. If there is a data folder, it is an error if a derived collection belongs to another writer
    there, such as `flowctl ingest`.

    With -o json, each error is one object per line, in file order: code ("E" and three digits), message, file, line and
    column (from 1), length (characters to underline), and hint (or null).

    \b
    Exit codes: 0 without errors, 1 with errors, 2 if the command line is wrong.

    \b
    Example:
      flowctl check --source examples/flow.yaml -o json
    """
    from derive.catalog.check import check_catalog, with_issues
    from derive.cli.console import describe_error, note, print_rows
    from derive.errors import CatalogError

    built = check_catalog(source)
    if built.spec.materializations:
        from derive.materialize.check import check_materializations
        from derive.materialize.connector import Connectors

        with Connectors() as connectors:
            built = with_issues(built, check_materializations(built.spec.materializations.values(), connectors))
    built = with_issues(built, _owner_issues(built.spec, data_folder(source, data)))
    error = CatalogError(built.issues)
    if output == "json":
        print_rows(_COLUMNS, describe_error(error), "json")
    if error.issues:
        raise error if output != "json" else click.exceptions.Exit(1)
    spec = built.spec
    for catalog_note in built.notes:
        note(f"{catalog_note.position}: {catalog_note.message}{f' ({catalog_note.hint})' if catalog_note.hint else ''}")
    counts = {"collection": len(spec.collections), "derivation": len(spec.derivations)}
    if spec.materializations:
        counts["materialization"] = len(spec.materializations)
    said = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items())
    note(f"{source}: {said}, no errors")


def _owner_issues(catalog: CatalogSpec, folder: Path) -> Iterator[Issue]:
    """Yield an issue for each derived collection that belongs to another writer in the data folder, if there is one."""
    from derive.cli.console import note
    from derive.errors import StorageError
    from derive.storage.metadata.opening import is_data_folder

    if not is_data_folder(folder):
        return
    try:
        with closing(open_store(folder, reading=True)) as store:
            yield from owner_issues(catalog, store)
    except StorageError as error:
        note(f"the writers of the catalog's collections were not checked, as {folder} could not be read: {error}")


def owner_issues(catalog: CatalogSpec, store: Maintainable) -> Iterator[Issue]:
    """Yield an issue for each derived collection that belongs to another writer; a run stops its task with the same.

    Args:
        catalog: the catalog; it has already refused names of SQL.
        store: the data folder, which may be read-only.
    """
    from derive.errors import Issue, OwnedError
    from derive.protocol.sql_names import is_of_sql
    from derive.storage.metadata.owner import Door

    for name, derivation in catalog.derivations.items():
        try:
            if not is_of_sql(name):
                store.require_open(name, Door.TASK)
        except OwnedError as error:
            yield Issue("E106", error.message, derivation.collection.position, error.hint)
