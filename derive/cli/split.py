"""`flowctl split`."""

from __future__ import annotations

from pathlib import Path

import click

from derive.cli.options import catalog_options, open_store, stored_folder


@click.command()
@catalog_options
@click.option("--task", "tasks", multiple=True, required=True, metavar="NAME", help="The task (repeatable).")
def command(source: Path, data: Path | None, tasks: tuple[str, ...]) -> None:
    """Double the shards of a task, at the cost of a copy of its state.

    What it derives or materializes stays the same, byte for byte. A `flowctl run --watch` that is under way goes on
    with them; without `--watch`, start it again.

    \b
    Examples:
      flowctl split --task acmeBank/first-send
    """
    from derive.catalog import load
    from derive.cli.console import note
    from derive.engine.split import split

    catalog = load(source)
    names = [catalog.find_task(name).name for name in tasks]
    store = open_store(stored_folder(source, data))
    try:
        for name in names:
            count = split(store, name, is_materialized=name in catalog.materializations)
            note(f"{name} has {count} shards")
    finally:
        store.close()
