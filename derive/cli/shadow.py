"""`flowctl shadow`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from derive.cli.options import catalog_options, open_store, stored_folder


@click.group()
def command() -> None:
    """Give up a shadow that `flowctl run --shadow` derives."""


@command.command("drop")
@catalog_options
def drop_command(source: Path, data: Path | None) -> None:
    """Give up the shadow: remove its documents and its state. The live derivations stay as they are.

    A run that derives the shadow ends. After a swap there is no shadow to give up.

    \b
    Examples:
      flowctl shadow drop
    """
    from derive.cli.console import note
    from derive.engine.shadow import give_up
    from derive.errors import UsageError

    with closing(open_store(stored_folder(source, data))) as store:
        names = give_up(store)
        if not names:
            raise UsageError("there is no shadow", hint="begin one after an edit: flowctl run --shadow")
        note(f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} given up")
