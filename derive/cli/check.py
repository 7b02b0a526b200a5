"""`flowctl check`."""

from __future__ import annotations

from pathlib import Path

import click

from derive.cli.options import output_option, source_option

_COLUMNS = ("code", "message", "file", "line", "column", "length", "hint")


@click.command()
@source_option
@output_option
def command(source: Path, output: str | None) -> None:
    """Find everything that is wrong in a catalog: its structure, references, keys, SQL and TypeScript.

    With -o json, each error is an object on a line of its own, in file order: code ("E" and three digits), message,
    file, line and column (from 1), length (characters to underline), and hint (or null).

    \b
    Exit codes: 0 if nothing is wrong, 1 if something is, 2 if the command line makes no sense.

    \b
    Example:
      flowctl check --source examples/flow.yaml -o json
    """
    from derive.catalog.check import check_catalog
    from derive.cli.console import note, print_rows
    from derive.cli.excerpt import describe_error
    from derive.errors import CatalogError

    built = check_catalog(source)
    error = CatalogError(built.issues)
    if output == "json":
        print_rows(_COLUMNS, describe_error(error), "json")
    if error.issues:
        raise error if output != "json" else click.exceptions.Exit(1)
    spec = built.spec
    for catalog_note in built.notes:
        note(f"{catalog_note.position}: {catalog_note.message}{f' ({catalog_note.hint})' if catalog_note.hint else ''}")
    counts = {"collection": len(spec.collections), "derivation": len(spec.derivations)}
    said = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items())
    note(f"{source}: {said}, no errors")
