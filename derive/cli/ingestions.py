"""`flowctl ingestions`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from derive.cli.options import catalog_options, open_store, output_option, stored_folder, wide_option

if TYPE_CHECKING:
    from derive.storage.metadata.ingestions import Load


@click.group()
def command() -> None:
    """List and undo loads of `flowctl ingest`."""


_LISTED = ("collection", "load_id", "at", "file", "documents", "bytes", "state")
_SPARE = ("bytes", "documents", "file")


@command.command("list")
@catalog_options
@click.option("--collection", help="Only the loads of this collection.")
@output_option
@wide_option
def list_command(source: Path, data: Path | None, collection: str | None, output: str | None, *, wide: bool) -> None:
    """List the loads of collections in the order of their commits.

    For each collection, the last 1,000 loads without --load-id are listed.

    \b
    Examples:
      flowctl ingestions list
      flowctl ingestions list --collection acmeBank/transfers
      flowctl ingestions list -o json | jq 'select(.load_id == "2024-05-01")'
    """
    from derive.catalog import load_without_tests
    from derive.cli.console import print_rows

    if collection is not None:
        load_without_tests(source).find_collection(collection)
    with closing(open_store(stored_folder(source, data), reading=True)) as store:
        loads = store.loads(collection)
    print_rows(_LISTED, [_listed(load) for load in loads], output, spare=_SPARE, wide=wide)


def _listed(load: Load) -> dict[str, Any]:
    from derive.document.clock import format_rfc3339

    return {
        "collection": load.collection,
        "load_id": load.load_id,
        "at": format_rfc3339(load.at),
        "file": load.name,
        "documents": load.documents,
        "bytes": load.bytes,
        "state": "loaded" if load.undone is None else f"undone at {format_rfc3339(load.undone)}",
    }


@command.command("undo")
@catalog_options
@click.option("--collection", required=True, help="The collection.")
@click.option("--load-id", required=True, metavar="ID", help="The --load-id of the ingestion.")
@click.option(
    "--reset-readers", is_flag=True, help="Reset the tasks that read the collection, if one has read the load."
)
def undo_command(source: Path, data: Path | None, collection: str, load_id: str, *, reset_readers: bool) -> None:
    """Remove the documents of a load that no reader has read.

    With --reset-readers, the tasks that read the collection, directly or indirectly, start over without the load, as
    after `flowctl reset --cascade`. The reset and the removal are one commit.

    The ID can be used again. The time up to the last document stays final.

    \b
    Examples:
      flowctl ingestions undo --collection acmeBank/transfers --load-id 2024-05-01
      flowctl ingestions undo --collection acmeBank/transfers --load-id 2024-05-01 --reset-readers
    """
    from derive.catalog import load_without_tests
    from derive.cli.console import note
    from derive.engine.reset import undo

    catalog = load_without_tests(source)
    catalog.find_collection(collection)
    with closing(open_store(stored_folder(source, data))) as store:
        tasks = undo(catalog, store, collection, load_id, reset_readers=reset_readers)
    note(f"load '{load_id}' of '{collection}' is undone")
    for name in tasks:
        note(f"{name} starts over with the next run, or in a running 'flowctl run --watch'")
