"""`flowctl split`."""

from __future__ import annotations

from pathlib import Path

import click

from derive.cli.options import catalog_options, open_store, stored_folder


@click.command()
@catalog_options
@click.option("--task", "tasks", multiple=True, required=True, metavar="NAME", help="The task (repeatable).")
@click.option("--shards", type=click.IntRange(1, 1024), help="Double them until there are so many.  [default: once]")
def command(source: Path, data: Path | None, tasks: tuple[str, ...], shards: int | None) -> None:
    """Double the shards of a task, at the cost of a copy of its state.

    What it derives or materializes stays the same, byte for byte. A `flowctl run --watch` that is under way goes on
    with them; without `--watch`, start it again.

    Nobody knows of a split that was killed whether it has come to be. With --shards it can be given again: nothing
    happens to a task that has so many.

    \b
    Examples:
      flowctl split --task acmeBank/first-send
      flowctl split --task acmeBank/first-send --shards 8
    """
    from derive.catalog import load_without_tests
    from derive.cli.console import note
    from derive.engine.split import split, split_up_to

    catalog = load_without_tests(source)
    names = [catalog.find_task(name).name for name in tasks]
    store = open_store(stored_folder(source, data))
    try:
        for name in names:
            is_materialized = name in catalog.materializations
            if shards is None:
                count = split(store, name, is_materialized=is_materialized)
            else:
                count = split_up_to(store, name, shards, is_materialized=is_materialized)
            note(f"{name} has {count} shards")
    finally:
        store.close()
