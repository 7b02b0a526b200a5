"""`flowctl compact`."""

from __future__ import annotations

from pathlib import Path

import click

from derive.cli.options import catalog_options, data_folder, output_option


@click.command()
@catalog_options
@output_option
@click.option("--collection", "names", multiple=True, metavar="NAME", help="Only this collection (repeatable).")
@click.option("--grace", default="10m", show_default=True, metavar="DURATION", help="How long replaced files are kept.")
def command(source: Path, data: Path | None, output: str | None, names: tuple[str, ...], grace: str) -> None:
    """Merge small files into larger ones, which are read faster.

    Collections stay what they are, at every time. Others may read and write meanwhile; replaced files are kept for a
    while for those who began to read them. A continuous `flowctl run` does this by itself now and then.

    \b
    Examples:
      flowctl compact
      flowctl compact --collection acmeBank/transfers --grace 0s
    """
    from derive.catalog import load
    from derive.cli.console import print_rows
    from derive.document.clock import parse_duration
    from derive.errors import UsageError
    from derive.storage.compaction import compact
    from derive.storage.store import Store

    try:
        kept = parse_duration(grace)
    except ValueError as exc:
        raise UsageError(f"--grace: {exc}") from exc
    catalog = load(source)
    collections = [catalog.find_collection(name) for name in names] or list(catalog.collections.values())
    store = Store(data_folder(source, data))
    try:
        found = [compact(store, each, grace=kept) for each in collections if store.collection(each.name) is not None]
    finally:
        store.close()
    rows = [
        {"collection": each.collection, "segments before": each.before, "segments after": each.after} for each in found
    ]
    print_rows(["collection", "segments before", "segments after"], rows, output)
