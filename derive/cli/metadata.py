"""`flowctl metadata`."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from derive.cli.options import catalog_options, output_option, quiet_option, settle_metadata, stored_folder
from derive.plural import counted


@click.group()
def command() -> None:
    """Move the metadata of a data folder to PostgreSQL, and back.

    \b
    Examples:
      flowctl metadata copy --to postgresql://flow@db.example.com/flow
    """


@command.command("copy")
@click.option("--to", "url", metavar="URL", help="Copy the metadata from the data folder to this database.")
@click.option("--to-folder", is_flag=True, help="Copy the metadata from the database to the data folder.")
@catalog_options
@output_option
@quiet_option
def copy_command(url: str | None, source: Path, data: Path | None, output: str | None, *, to_folder: bool) -> None:
    """Copy the metadata of a data folder to a PostgreSQL database, or back, and use the copy from then on.

    Stop all processes of the folder first. The copy of each table is compared with the original: the output has the
    number of its rows and a digest. All later commands find the new place by the folder, and the old place refuses
    processes that still use it. Collections and the state of derivations stay where they are.

    A command that was interrupted can be repeated.

    \b
    Examples:
      flowctl metadata copy --to postgresql://flow@db.example.com/flow
      flowctl metadata copy --to 'postgresql://db/flow?schema=shop' --data shop
      flowctl metadata copy --to-folder
    """
    from derive.cli.console import Progress, note, print_rows
    from derive.errors import UsageError
    from derive.storage.metadata.opening import this_host
    from derive.storage.metadata.place import place_of, read_place
    from derive.storage.metadata.relocation import move_to_folder, move_to_postgres

    if (url is None) != to_folder:
        raise UsageError("name one place for the metadata", hint="use --to URL or --to-folder")
    root = stored_folder(source, data)
    with Progress("row") as progress:
        show = partial(progress.show, "metadata")
        if url is not None:
            copied = move_to_postgres(root, place_of(url), this_host(), show)
        else:
            copied = move_to_folder(settle_metadata(root, creates=False), show)
        progress.stop("metadata")
    if copied:
        print_rows(["name", "rows", "digest"], [asdict(table) for table in copied], output, spare=["digest"])
    place = read_place(root)
    where = place.shown if place else "the folder"
    what = counted(sum(table.rows for table in copied), "row") if copied else "an interrupted copy was completed"
    note(f"the metadata of {root} are in {where} now: {what}", place=where)
