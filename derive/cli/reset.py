"""`flowctl reset`."""

from __future__ import annotations

from pathlib import Path

import click

from derive.cli.options import catalog_options, open_store, stored_folder


@click.command()
@catalog_options
@click.option("--task", "tasks", multiple=True, required=True, metavar="NAME", help="The task (repeatable).")
@click.option("--cascade", is_flag=True, help="Also reset the tasks that read the collection.")
def command(source: Path, data: Path | None, tasks: tuple[str, ...], *, cascade: bool) -> None:
    """Start a task over: remove its derived documents, its state and its progress.

    The next run, or a `flowctl run --watch` that is running, derives everything again from the first document of each
    source. A materialization deletes its stored rows one by one, and stores all rows again; delta updates are sent
    again.

    \b
    Examples:
      flowctl reset --task acmeBank/balances
      flowctl reset --task acmeBank/transfer-outcomes --cascade
    """
    from derive.catalog import load_without_tests
    from derive.cli.console import note
    from derive.engine.reset import reset

    catalog = load_without_tests(source)
    store = open_store(stored_folder(source, data))
    try:
        for name in reset(catalog, store, tasks, cascade=cascade):
            note(f"{name} starts over with the next run, or in a running 'flowctl run --watch'")
    finally:
        store.close()
