"""`flowctl split`."""

from __future__ import annotations

from pathlib import Path

import click

from derive.cli.options import catalog_options, data_folder


@click.command()
@catalog_options
@click.option("--task", "tasks", multiple=True, required=True, metavar="NAME", help="The derivation (repeatable).")
def command(source: Path, data: Path | None, tasks: tuple[str, ...]) -> None:
    """Double the shards of a derivation, at the cost of a copy of its state.

    What it derives stays the same, byte for byte. A `flowctl run` that is under way is superseded: start it again.

    \b
    Examples:
      flowctl split --task acmeBank/first-send
    """
    from derive.catalog import load
    from derive.cli.console import note
    from derive.engine.split import split
    from derive.errors import UsageError
    from derive.storage.store import Store

    catalog = load(source)
    unknown = [name for name in tasks if name not in catalog.derivations]
    if unknown:
        known = ", ".join(catalog.derivations) or "none"
        raise UsageError(f"the catalog has no derivation '{unknown[0]}'", hint=f"it has: {known}")
    store = Store(data_folder(source, data))
    try:
        for name in tasks:
            note(f"{name} has {split(store, name)} shards")
    finally:
        store.close()
