"""`flowctl check`."""

from __future__ import annotations

from pathlib import Path

import click

from derive.cli.options import output_option, source_option


@click.command()
@source_option
@output_option
def command(source: Path, output: str | None) -> None:
    """Find everything that is wrong in a catalog: its structure, references, keys, SQL and TypeScript.

    \b
    Example:
      flowctl check --source examples/flow.yaml -o json
    """
    from derive.catalog import load
    from derive.catalog.check import check
    from derive.cli.console import note, print_rows
    from derive.errors import CatalogError, Issue

    issues: list[Issue]
    try:
        spec = load(source)
        issues = check(spec)
    except CatalogError as error:
        issues = list(error.issues)
    if output == "json":
        rows = [
            {
                "code": each.code,
                "message": each.message,
                "file": each.position.file,
                "line": each.position.line,
                "column": each.position.column,
                "hint": each.hint,
            }
            for each in issues
        ]
        print_rows(("code", "message", "file", "line", "column", "hint"), rows, "json")
    if issues:
        raise CatalogError(issues) if output != "json" else click.exceptions.Exit(1)
    note(f"{source}: {len(spec.collections)} collections, {len(spec.derivations)} derivations, no errors")
